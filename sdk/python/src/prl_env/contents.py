"""What of an environment's folder goes into its component, and which services and modules of Python's own its code uses.
Owns all three; must not know how a component is made. Not part of a component."""

from __future__ import annotations

import ast
import fnmatch
import sys
from collections.abc import Iterable
from pathlib import Path

from .absent import ADVICE
from .names import is_test
from .project import SERVICES, BadProject, Project

# What a folder holds beside the environment.
_LEFT_OUT = (
    "pyproject.toml",
    "README*",
    "LICENSE*",
    "*.wasm",
    "*.toml",
    "*.pyc",
    "*.egg-info/*",
    "dist/*",
    "build/*",
    "outputs/*",
)


def goes_in(project: Project, name: str) -> bool:
    """Whether a file of the folder, by its path in it, goes into a component."""
    if project.single:
        return name == project.file.name
    parts = name.split("/")
    hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
    patterns = (*_LEFT_OUT, *project.settings.exclude)
    return not hidden and not is_test(parts[-1]) and not any(fnmatch.fnmatch(name, p) for p in patterns)


def own_files(project: Project) -> list[Path]:
    """The files that go into a component, by their paths in the folder."""
    if project.single:
        return [project.file.relative_to(project.root)]
    found = (path.relative_to(project.root) for path in sorted(project.root.rglob("*")) if path.is_file())
    return [inside for inside in found if goes_in(project, inside.as_posix())]


def services_used(code: str) -> set[str]:
    """The services that code imports from `prl_env`, or names as `prl_env.SERVICE`; `JudgeRubric` is one of them."""
    used, names = set(), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "prl_env"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "prl_env":
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            used.add(node.attr)
    return {"llm" if name == "JudgeRubric" else name for name in used} & {*SERVICES, "llm"}


def services_of(project: Project, files: list[Path] | None = None) -> list[str]:
    """The services that a component of it imports beside its log, by the code of `files`, or of all that go in. Raises
    `BadProject` for code that is none."""
    used = set(project.settings.imports)
    for inside in own_files(project) if files is None else files:
        if inside.suffix == ".py":
            file = project.root / inside
            try:
                used |= services_used(file.read_text(encoding="utf-8"))
            except SyntaxError as error:
                raise BadProject(f"{file}:{error.lineno}: {error.msg}") from None
            except UnicodeDecodeError as error:
                raise BadProject(f"{file}: {error}; write it in UTF-8") from None
    return [service for service in SERVICES if service in used]


def standard_modules(files: Iterable[Path]) -> list[str]:
    """Python's own modules that import statements in these files name, inside functions too; a component takes them in,
    so that they are there when a rollout first comes by. Some names may be no modules but what is in one."""
    named = set()
    for file in files:
        try:
            nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        except (SyntaxError, ValueError, OSError):
            # Whoever imports it is told.
            continue
        for node in nodes:
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    tops = sys.stdlib_module_names - ADVICE.keys()
    return sorted(name for name in named if name.partition(".")[0] in tops)
