"""Where an environment's files are and what it says about its build. Owns the folder's layout and `[tool.prl-env]`;
must not know how a component is made. Not part of a component."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from . import schema
from .names import TAKEN, bad_name, is_test

SERVICES = ("llm", "assets", "kv", "http")
"""What a component may import beside its log."""

_TABLE = "tool.prl-env"


class BadProject(Exception):
    """A message for whoever wrote the files: what, where, how to fix."""


@dataclass
class Settings:
    """The table `[tool.prl-env]` of the folder's `pyproject.toml`; every key may be left out.

    module: the module that holds the environment packages: requirements to take in, each pinned as `name==version`;
    all of them, since they are installed without theirs imports: what the component imports beside its log, as far as
    its code does not show it: llm, assets, kv, http bake: packages whose modules are all taken in, for those that
    import some of them late skip: texts; modules and files whose dotted name or path holds one are left out of `bake`
    and `data` data: packages whose files other than code are taken in modules: further modules to take in, such as
    ones of the standard library that are imported late stand_ins: modules that cannot be had in the sandbox and are
    only imported, never used exclude: patterns of files in the folder that are left out"""

    module: str = ""
    packages: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    bake: list[str] = field(default_factory=list)
    skip: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)


@dataclass
class Project:
    """An environment on disk."""

    root: Path
    """The folder that its modules are imported from."""
    module: str
    single: bool
    """Whether it is this one file, and nothing else of the folder."""
    settings: Settings

    @property
    def file(self) -> Path:
        """The module's file."""
        package = self.root / self.module / "__init__.py"
        return package if package.is_file() else self.root / f"{self.module}.py"


def _settings(root: Path) -> Settings:
    path = root / "pyproject.toml"
    if not path.is_file():
        return Settings()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadProject(f"{path}: {error}") from None
    for key in _TABLE.split("."):
        table = table.get(key, {})
    fields = schema.fields_of(Settings)
    try:
        settings = Settings(**schema.check_object(table, fields))
    except schema.Mismatch as mismatch:
        text = str(mismatch).replace("unknown argument", "unknown key")
        raise BadProject(f"{path}: [{_TABLE}]: {text}") from None
    for requirement in settings.packages:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+", requirement):
            raise BadProject(f'{path}: [{_TABLE}]: `packages` has "{requirement}"; write it as "name==version"')
    for service in settings.imports:
        if service not in SERVICES:
            raise BadProject(f'{path}: [{_TABLE}]: `imports` has "{service}"; there are {", ".join(SERVICES)}')
    return settings


def _check_modules(project: Project) -> Project:
    """The project itself. Raises `BadProject` for a module's name that means another module in a component."""
    reason = bad_name(project.module)
    if reason:
        raise BadProject(f"{project.file}: {reason}; rename the file")
    beside = [] if project.single else sorted([*project.root.glob("*.py"), *project.root.glob("*/__init__.py")])
    for path in beside:
        name = path.parent.name if path.name == "__init__.py" else path.stem
        taken = name in sys.stdlib_module_names or name in TAKEN or name.startswith("prl_env_")
        if taken and not any(fnmatch.fnmatch(path.relative_to(project.root).as_posix(), pattern) for pattern in project.settings.exclude):
            raise BadProject(
                f"{path}: there is a module `{name}` in Python or prl, which a component would not find; rename the file"
            )
    return project


def find(given: str | Path) -> Project:
    """The environment in a folder, or in one file. Raises `BadProject`."""
    path = Path(given)
    if len(path.name) > 255:
        raise BadProject(f"{path.name[:64]}…: there is no such file or folder")
    if path.is_file():
        if path.suffix != ".py" or "-" in path.stem:
            raise BadProject(f"{path}: not a Python module; its name must be like `my_env.py`")
        return _check_modules(Project(path.resolve().parent, path.stem, True, Settings()))
    if not path.is_dir():
        raise BadProject(f"{path}: there is no such file or folder")
    root = path.resolve()
    settings = _settings(root)
    module = settings.module
    if not module:
        files = sorted(p.stem for p in root.glob("*.py") if not is_test(p.name) and p.name != "setup.py")
        own = root.name.replace("-", "_")
        if own in files or len(files) != 1:
            found = [own] if own in files or (root / own / "__init__.py").is_file() else []
        else:
            found = files
        if not found and (root / f"{own}.py").is_file():
            raise BadProject(f"{root / own}.py: {bad_name(own)}; rename the file")
        if not found:
            told = f"there are {', '.join(files)}" if files else "there is no .py file"
            raise BadProject(
                f"{path}: which module is the environment? {told}; name it `{own}.py`, or set `module` in [{_TABLE}]"
            )
        (module,) = found
    if "-" in module:
        raise BadProject(f"{path}: the module's name `{module}` holds a `-`; Python imports none such, write `_`")
    project = Project(root, module, False, settings)
    if not project.file.is_file():
        raise BadProject(f"{path}: there is no `{module}.py`")
    return _check_modules(project)


def around(module: ModuleType) -> Project | None:
    """The project that an imported module is the environment of; None for one without a file."""
    if not getattr(module, "__file__", None):
        return None
    file = Path(module.__file__ or "").resolve()
    root = file.parent.parent if file.name == "__init__.py" else file.parent
    name = file.parent.name if file.name == "__init__.py" else file.stem
    return Project(root, name, False, _settings(root))


def again(module: ModuleType) -> ModuleType:
    """A second copy of a module, which shares nothing that it made when it was imported; a module without a file is
    itself."""
    if not getattr(module, "__file__", None):
        return module
    spec = importlib.util.spec_from_file_location(module.__name__, module.__file__ or "")
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def load(given: Any) -> ModuleType:
    """Imports an environment natively, from its folder, file, or module. Raises `BadProject`."""
    if isinstance(given, ModuleType):
        return given
    project = find(given)
    sys.path.insert(0, str(project.root))
    try:
        known = sys.modules.get(project.module)
        if known is not None and getattr(known, "__file__", None) != str(project.file):
            del sys.modules[project.module]
        module = importlib.import_module(project.module)
        for name in project.settings.modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                raise BadProject(
                    f'{project.root / "pyproject.toml"}: [{_TABLE}]: `modules` has "{name}": {error}; correct it, or pip '
                    "install its package here as well, to check natively what goes into the component"
                ) from None
        return module
    finally:
        sys.path.remove(str(project.root))
