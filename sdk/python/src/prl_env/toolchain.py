"""The tools behind a build: componentize-py in a clean virtual environment of its own, and pinned packages, both made
on demand under the cache folder. Owns how they are called and what is said when they fail; must not know what is
built."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .console import one_line
from .errors import fix
from .guest.modules import prl_env_sandbox
from .project import BadProject

VERSION = "0.25.1"
"""Of componentize-py; it brings CPython 3.14."""


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/prl/python`, else `~/.cache/prl/python`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "prl" / "python"


@contextlib.contextmanager
def _made_once(path: Path) -> Iterator[bool]:
    """Whether `path` has yet to be made; others wait meanwhile. What is left unfinished is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.parent / f".{path.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = path / ".complete"
        if done.is_file():
            yield False
            return
        shutil.rmtree(path, ignore_errors=True)
        try:
            yield True
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        done.touch()


def _run(command: list[str], what: str, fix: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        reason = next((line for line in said if "error" in line.lower()), said[-1] if said else "no output")
        raise BadProject(f"{what}: {one_line(reason)}; {fix}")


def componentize_py(given: str | None = None) -> Path:
    """The program componentize-py: `given`, or one of the pinned version. Raises `BadProject`, saying what to
    install."""
    if given:
        if not os.access(given, os.X_OK):
            raise BadProject(f"{given}: not a program; --componentize-py takes the program componentize-py {VERSION}")
        return Path(given)
    venv = cache_dir() / f"componentize-py-{VERSION}"
    with _made_once(venv) as needed:
        if needed:
            python = sys.executable or "python3"
            fix = "install the package python3-venv (Debian, Ubuntu), or use a Python that has `venv`"
            _run([python, "-m", "venv", str(venv)], f"cannot make a virtual environment in {venv}", fix)
            fix = "it must be reachable from here: check pip's index, or install it yourself and give --componentize-py"
            pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, f"componentize-py=={VERSION}"], f"cannot install componentize-py=={VERSION}", fix)
    return venv / "bin" / "componentize-py"


def packages(requirements: list[str]) -> Path | None:
    """A folder with these packages and no others, unpacked once for each list. Raises `BadProject`."""
    if not requirements:
        return None
    text = "\n".join(sorted(requirements))
    folder = cache_dir() / f"packages-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    tool = componentize_py()
    with _made_once(folder) as needed:
        if needed:
            pip = [str(tool.parent / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            command = [*pip, "--no-deps", "--no-compile", "--target", str(folder), *sorted(requirements)]
            _run(command, "cannot install `packages`", "check their names and versions")
    return folder


def _reason(output: str, file: Path) -> str:
    """What went wrong inside, from a Python traceback in componentize-py's output."""
    block = output.partition("Traceback (most recent call last):")[2] if "AssertionError" not in output else ""
    block = block or output.rpartition("Traceback (most recent call last):")[2] or output
    lines = [line for line in block.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"^[A-Za-z_][\w.]*(Error|Exception|Config|Task|Exit)\b.*", line)]
    places = re.findall(r'File "/0/([^"]+)", line (\d+)', block)
    place = f" ({file.parent / places[-1][0]}:{places[-1][1]})" if places else ""
    said = one_line(told[-1] if told else lines[-1] if lines else "no output", 600)
    return re.sub(r"^prl_env\.errors\.\w+: ", "", said) + fix(_exception(said)) + place


def _exception(said: str) -> BaseException | None:
    """The exception that a traceback's last line is of, as far as there is a fix for it."""
    missing = re.fullmatch(r"ModuleNotFoundError: No module named '([^']+)'.*", said)
    if missing:
        return ModuleNotFoundError(name=missing[1])
    absent = re.fullmatch(r"FileNotFoundError: \[Errno \d+\] [^:]+: '([^']+)'", said)
    return FileNotFoundError(0, "", absent[1]) if absent else None


def _run_by_stages(
    command: list[str], env: dict[str, str], stage: Path, limit: float, file: Path
) -> tuple[int, str]:
    """The exit code and all output of a build, which writes into the file `stage` how far it is. Raises `BadProject`
    where it stays at one for more than `limit` seconds."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, stdin=subprocess.DEVNULL)
        try:
            known, until = "", time.monotonic() + limit
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(0.1)
                    output.seek(0)
                    return code, output.read().decode(errors="replace")
                now = stage.read_text(encoding="utf-8") if stage.is_file() else ""
                if now != known:
                    known, until = now, time.monotonic() + limit
                if time.monotonic() > until:
                    raise BadProject(
                        f"{file}: the build does not end: {known or 'preparing it'} took more than {limit:g} s; `python -m "
                        "prl_env.check` names the line where code of its own hangs, `--timeout` gives it longer"
                    )
        finally:
            process.kill()
            process.wait()


def componentize(
    tool: Path,
    wit: Path,
    world: str,
    app: str,
    paths: list[Path],
    glue: Path,
    out: Path,
    file: Path,
    verbose: bool,
    timeout: float,
) -> None:
    """Runs componentize-py; `paths` are found at `/0`, `/1`, ... inside; `glue` is the one with the
    modules around it. Raises `BadProject` with the author's own error, or where a stage takes more than `timeout` seconds."""
    empty = out.parent / "empty"
    (empty / "lib" / "python3" / "site-packages").mkdir(parents=True)
    # Without these it would take in whatever the interpreter that runs it has installed.
    env = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/"), "VIRTUAL_ENV": str(empty)}
    command = [str(tool), "-d", str(wit), "-w", world, "componentize", app, "-o", str(out)]
    for path in paths:
        command += ["-p", str(path)]
    code, output = _run_by_stages(command, env, glue / prl_env_sandbox.STAGE, timeout, file)
    if verbose:
        print(output, file=sys.stderr)
    if code or not out.is_file():
        raise BadProject(f"{file} fails inside the sandbox: {_reason(output, file)}")
