"""`python -m prl_env.check ENV [--args JSON] [--tasks N]`: tries an environment natively and says what it is. Owns
the words; the checks are `testing`'s. Exit codes: 0 all well, 2 with one line saying what is not."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from .absent import advice
from .console import Words, failing, one_line, where
from .project import BadProject, find
from .testing import Harness, Refused, Services
from .watch import Hung


def _show(harness: Harness) -> None:
    info = harness.info
    print(f"{info.name} {info.version}: {info.description}")
    sizes = ", ".join(f"{s.name} ({'endless' if s.size is None else s.size})" for s in info.splits)
    lines = ", ".join(f"{line.name} × {line.weight:g}" for line in info.components)
    traits = ("multi_turn", "tools", "group_scoring", "deterministic")
    print(f"  splits: {sizes}\n  rewards: {lines}\n  metrics: {', '.join(info.metrics) or 'none'}")
    print(f"  traits: {', '.join(trait for trait in traits if getattr(info, trait)) or 'none'}")
    for name, schema in info.args_schema["properties"].items():
        default = json.dumps(schema.get("default"))
        print(f"  args.{name} = {default}  {schema.get('description', '')}".rstrip())


def _example(harness: Harness) -> None:
    task = harness.task(harness.info.splits[0].name, 0, 0)
    for message in task.prompt:
        print(f"  {message['role']}: {one_line(message.text, 100)}")
    print(f"  answer: {one_line(json.dumps(task.answer, ensure_ascii=False), 100)}")


def _services(given: str) -> Services:
    """The stand-in of that name in a file of Python. Raises `BadProject`."""
    file, _, name = given.rpartition(":")
    if not file:
        raise BadProject(f"--services: {given}: write it as FILE.py:NAME, such as test_env.py:SERVICES")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file) if Path(file).is_file() else None
    if spec is None or spec.loader is None:
        raise BadProject(f"--services: {given}: there is no such file; write it as test_env.py:SERVICES")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if not isinstance(found, Services):
        raise BadProject(f"--services: {file} holds no prl_env.testing.Services `{name}`")
    return found


def _harness(env: str, *rest: Any) -> Harness:
    """The environment, made. Raises `BadProject` for a package that only a component would have."""
    try:
        return Harness(env, *rest)
    except ModuleNotFoundError as error:
        # What is refused because no component has it comes with its own words, and without a name.
        told = ""
        if error.name:
            stand_in = error.name in find(env).settings.stand_ins
            told = "" if stand_in else advice(error.name) or ""
            told = "; " + (told or "pip install it here as well, to check natively what goes into the component")
        raise BadProject(f"{error}{told}{where(error)}") from None


def main(argv: list[str] | None = None) -> int:
    """Runs the command; gives its exit code."""
    parser = Words(prog="python -m prl_env.check", description="Tries an environment natively.")
    parser.add_argument("env", help="its folder or its .py file")
    parser.add_argument("--args", default="{}", help="the run's arguments, a JSON object")
    parser.add_argument("--tasks", type=int, default=5, help="tasks of each split that are played (default 5)")
    parser.add_argument("--services", metavar="FILE.py:NAME", help="what stands in for a host: a testing.Services")
    parser.add_argument("--call-timeout", type=float, default=10.0, metavar="S", help="seconds a call may take (default 10)")
    parser.add_argument("--json", action="store_true", help="print its description as JSON")
    given = parser.parse_args(argv)
    with failing((BadProject, Refused, Hung), Exception, SystemExit):
        try:
            args: Any = json.loads(given.args)
        except ValueError as error:
            raise BadProject(f"--args: {error}") from None
        if not isinstance(args, dict):
            raise BadProject(f"--args: {one_line(given.args, 80)} is no JSON object; write it as '{{\"name\": 1}}'")
        if given.tasks < 1:
            raise BadProject(f"--tasks: {given.tasks} is not above 0")
        if not given.call_timeout > 0:
            raise BadProject(f"--call-timeout: {given.call_timeout} is not above 0")
        harness = _harness(given.env, args, given.services and _services(given.services), given.call_timeout)
        if given.json:
            print(json.dumps(dataclasses.asdict(harness.info)))
            return 0
        _show(harness)
        _example(harness)
        count = harness.conforms(given.tasks)
        print(f"ok: {count} rollouts pass the checks of a host, the same in two instances")
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
