"""`python -m prl_env.build ENV [-o OUT.wasm]`: makes a component of an environment. Owns what goes in and what is
said about it; the toolchain is `toolchain`'s. Exit codes: 0 with one line about the component, 2 with one line saying
what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from . import toolchain
from .console import Words, failing, one_line
from .contents import own_files, services_of, standard_modules
from .project import BadProject, Project, find

PACKAGE = Path(__file__).parent
WIT = PACKAGE / "wit"
WORLD = "python-env"
TIMEOUT = 120.0
"""Seconds for each stage of a build."""


def _stage(project: Project, stage: Path) -> list[str]:
    """Puts everything that goes in under `stage`; gives the services that the component imports."""
    app = stage / "app"
    files = own_files(project)
    imports = services_of(project)
    for inside in files:
        target = app / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(project.root / inside, target)
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "wit", "template")
    shutil.copytree(PACKAGE, stage / "sdk" / "prl_env", ignore=ignore)
    shutil.copytree(PACKAGE / "guest" / "modules", stage / "glue", ignore=ignore)
    settings = project.settings
    values = {
        "MODULE": project.module,
        # Where the folders below stand inside, and the bindings.
        "FOLDER": "/0",
        "ROOTS": ["/0", "/1", "/2", "/world", "/bundled"],
        "FILES": [inside.as_posix() for inside in files if inside.suffix != ".py"],
        "MODULES": settings.modules,
        "STANDARD": standard_modules(project.root / inside for inside in files if inside.suffix == ".py"),
        "BAKE": settings.bake,
        "DATA": settings.data,
        "SKIP": settings.skip,
        "STAND_INS": settings.stand_ins,
        "IMPORTS": imports,
    }
    text = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    (stage / "glue" / "prl_env_build.py").write_text(text + "\n", encoding="utf-8")
    world = f"package prl:env@0.1.0;\nworld {WORLD} {{\n  include pure-env;\n"
    world += "".join(f"  import {service};\n" for service in imports)
    shutil.copytree(WIT, stage / "wit")
    contract = (stage / "wit" / "env.wit").read_text(encoding="utf-8")
    # One package in one folder: the version is the contract's own.
    version = re.search(r"^package (prl:env@[^;]+);", contract, re.MULTILINE)
    assert version is not None
    world = world.replace("prl:env@0.1.0", version[1])
    (stage / "wit" / "world.wit").write_text(world + "}\n", encoding="utf-8")
    return imports


def build(
    env: str | Path,
    out: str | Path | None = None,
    componentize: str | None = None,
    verbose: bool = False,
    timeout: float = TIMEOUT,
) -> dict[str, object]:
    """Makes the component `out` of the environment `env` (default: in its folder); says what it made. Raises
    `BadProject`."""
    project = find(env)
    out = Path(out or project.root / f"{project.module if project.single else project.root.name}.wasm")
    if not out.parent.is_dir():
        raise BadProject(f"{out}: there is no folder `{out.parent}`")
    tool = toolchain.componentize_py(componentize)
    packages = toolchain.packages(project.settings.packages)
    with tempfile.TemporaryDirectory(prefix="prl-env-") as temporary:
        stage = Path(temporary)
        imports = _stage(project, stage)
        made = stage / "out.wasm"
        paths = [stage / "app", stage / "glue", stage / "sdk", *([packages] if packages else [])]
        parts = (stage / "wit", WORLD, "prl_env_component", paths, stage / "glue")
        toolchain.componentize(tool, *parts, made, project.file, verbose, timeout)
        data = made.read_bytes()
        # Whole or not at all, whatever becomes of this process.
        beside = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            shutil.copyfile(made, beside)
            beside.replace(out)
        finally:
            beside.unlink(missing_ok=True)
    digest = hashlib.sha256(data).hexdigest()
    return {
        "file": str(out),
        "bytes": len(data),
        "sha256": digest,
        "imports": ["log", *imports],
        "module": project.module,
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the command; gives its exit code."""
    parser = Words(prog="python -m prl_env.build", description="Makes a component of an environment.")
    parser.add_argument("env", help="its folder or its .py file")
    parser.add_argument("-o", "--output", help="the component (default: NAME.wasm in its folder)")
    parser.add_argument("--componentize-py", metavar="FILE", help="use this componentize-py instead of an own one")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="S", help="seconds for each stage of it (default 120)"
    )
    parser.add_argument("--json", action="store_true", help="say what was made as JSON")
    parser.add_argument("--verbose", action="store_true", help="show what the tools print")
    given = parser.parse_args(argv)
    with failing(BadProject, OSError):
        if not given.timeout > 0:
            raise BadProject(f"--timeout: {given.timeout} is not above 0")
        made = build(given.env, given.output, given.componentize_py, given.verbose, given.timeout)
        if given.json:
            print(json.dumps(made))
        else:
            imports = ", ".join(made["imports"])  # type: ignore[arg-type]
            print(one_line(f"{made['file']}: {made['bytes']} bytes, imports {imports}, sha256 {made['sha256']}", 1000))
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
