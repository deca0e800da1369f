"""What is taken into the snapshot. Nothing can be read once the component runs: a module that is not imported by then
cannot be imported later, and a file that is not read by then is not there. Owns both; must not know any
environment."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import io
import os
import pkgutil
import random
import sys
import types
from collections.abc import Iterable
from typing import Any

STANDARD = """
abc ast asyncio base64 binascii bisect calendar cmath collections.abc contextlib copy csv dataclasses datetime
decimal difflib enum fnmatch fractions functools gettext glob hashlib heapq html html.parser
importlib.resources inspect io itertools json keyword linecache locale logging math numbers operator pathlib
pickle pprint queue random re secrets shlex statistics string _strptime stringprep struct tempfile textwrap threading
time timeit token tokenize traceback types typing unicodedata urllib.parse uuid warnings weakref zipfile zlib
zoneinfo
""".split()
"""Modules of the standard library that are imported late by itself or by common code."""

STAGE = "prl_env_stage"
"""Name of the file, beside this one, in which the builder reads how far the build is."""

# Codecs are modules too, found by name.
_CODECS = ("utf-8", "ascii", "latin-1", "utf-16", "utf-32", "unicode_escape", "raw_unicode_escape", "idna", "cp1252")

_files: dict[str, bytes] = {}
_folders: set[str] = set()


class _Stand(types.ModuleType):
    """A module that can be imported from, subclassed and decorated with, and used for nothing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # so that `hasattr(module, "__version__")` tells it from the real one
        whole = f"{self.__name__}.{name}"
        if whole in sys.modules:
            return sys.modules[whole]

        def refuse(*_: Any, **__: Any) -> Any:
            raise ImportError(f"`{whole}` cannot be had in the sandbox")

        def decorated(func: Any) -> Any:
            return func if isinstance(func, types.FunctionType) else refuse()

        def called(kind: type, *args: Any, **options: Any) -> Any:
            if kind is not stand:
                refuse()
            if len(args) == 1 and not options:
                return decorated(args[0])
            return refuse() if args else decorated

        body = {"__new__": called, "__class_getitem__": classmethod(lambda kind, _: kind)}
        stand = type(name, (), body)
        return stand


class Notes(io.TextIOBase):
    """Takes what is printed while the component is built; the builder's own pipe holds only so much of it."""

    def __init__(self, into: Any) -> None:
        self._into, self._left = into, 4000

    def write(self, text: str) -> int:
        self._into.write(text[: self._left])
        self._left -= min(self._left, len(text))
        return len(text)

    def flush(self) -> None:
        self._into.flush()


_printed = (sys.stdout, sys.stderr)


def stage(name: str) -> None:
    """Tells the builder what begins, so that it can say what does not end. What is printed it sees only afterwards."""
    with io.open(os.path.join(os.path.dirname(__file__), STAGE), "w", encoding="utf-8") as file:
        file.write(name)


def open_up() -> None:
    """Begins the build."""
    sys.stdout, sys.stderr = Notes(sys.stdout), Notes(sys.stderr)


def stand_ins(names: Iterable[str]) -> None:
    """Puts modules that cannot be had where they are imported from."""
    for name in names:
        sys.modules[name] = _Stand(name)
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, sys.modules[name])
    if "ctypes" not in sys.modules:
        # sympy asks for the size of a long before it does anything.
        known = types.ModuleType("ctypes")
        known.c_long = type("c_long", (), {})  # type: ignore[attr-defined]
        known.sizeof = lambda _: 4  # type: ignore[attr-defined]
        sys.modules["ctypes"] = known


def modules() -> None:
    """Imports the common part of the standard library."""
    for name in STANDARD:
        importlib.import_module(name)
    for codec in _CODECS:
        "a".encode(codec)


def _configured(key: str, name: str) -> types.ModuleType:
    """The module that a key of `[tool.prl-env]` names. Raises `EnvError`, which names the key."""
    from prl_env.errors import EnvError

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvError(
            f'`{key}` of [tool.prl-env] in pyproject.toml has "{name}", which cannot be imported ({error}); correct it, or '
            "name its package in `packages`"
        ) from None


def further(modules: Iterable[str], standard: Iterable[str]) -> None:
    """Imports modules that are imported late: those that are configured, and those of the standard library that the
    environment's code names, as far as there are such."""
    for name in modules:
        _configured("modules", name)
    for name in standard:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def whole_packages(names: Iterable[str], skip: Iterable[str]) -> None:
    """Imports all modules of packages, as far as they can be imported."""
    skip = list(skip)
    for name in names:
        package = _configured("bake", name)
        for found in pkgutil.walk_packages(getattr(package, "__path__", []), name + ".", onerror=lambda _: None):
            if any(part in found.name for part in skip):
                continue
            try:
                importlib.import_module(found.name)
            except (Exception, SystemExit) as error:
                print(f"left out {found.name}: {type(error).__name__}: {error}")


def _keep(path: str, data: bytes) -> None:
    path = os.path.normpath(path)
    _files[path] = data
    while len(path) > 1:
        path = os.path.dirname(path)
        _folders.add(path)


def files(folder: str, names: Iterable[str]) -> None:
    """Keeps files of the environment's own folder, by their paths in it."""
    for name in names:
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            _keep(path, file.read())


def package_files(names: Iterable[str], skip: Iterable[str]) -> None:
    """Keeps the files of packages that are no code."""
    skip = list(skip)
    for name in names:
        base = os.path.dirname(_configured("data", name).__file__ or "")
        for folder, _, found in os.walk(base):
            for entry in found:
                path = os.path.join(folder, entry)
                if entry.endswith((".py", ".pyc", ".pyi", ".so")) or any(part in path for part in skip):
                    continue
                with open(path, "rb") as file:
                    _keep(path, file.read())


def _path(file: Any) -> str | None:
    if isinstance(file, int):
        return None
    path = os.fspath(file)
    path = path.decode() if isinstance(path, bytes) else path
    return os.path.normpath(path)


def seal() -> None:
    """From here on `open` and the like find the files that were kept."""
    plain_open, plain_exists, plain_isfile, plain_isdir = io.open, os.path.exists, os.path.isfile, os.path.isdir
    plain_listdir = os.listdir

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
               newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        data = _files.get(_path(file) or "")
        if data is None:
            return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if set(mode) - set("rbt"):
            raise PermissionError(f"{file!r} can only be read")
        if "b" in mode:
            return io.BytesIO(data)
        return io.TextIOWrapper(io.BytesIO(data), encoding or "utf-8", errors, newline)

    def listed(path: Any = ".") -> list[str]:
        folder = _path(path)
        if folder not in _folders:
            return plain_listdir(path)
        inside = [known for known in (*_files, *_folders) if os.path.dirname(known) == folder and known != folder]
        return sorted(os.path.basename(known) for known in inside)

    def get_data(self: Any, path: str) -> bytes:
        with opened(path, "rb") as file:
            return file.read()

    builtins.open = io.open = opened  # type: ignore[assignment]
    os.path.exists = lambda path: _path(path) in _files or _path(path) in _folders or plain_exists(path)
    os.path.isfile = lambda path: _path(path) in _files or plain_isfile(path)
    os.path.isdir = lambda path: _path(path) in _folders or plain_isdir(path)
    os.listdir = listed  # type: ignore[assignment]
    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign]


def no_network() -> None:
    """Sockets are refused with words, also while the first rollouts are tried: one that is open when the snapshot is
    taken would be a handle to nothing."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(
            "a component has no network; use `prl_env.http.fetch`, to addresses that the run's configuration lists"
        )

    socket = importlib.import_module("socket")
    socket.socket.__init__ = refuse
    socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse


def close_up() -> None:
    """Ends the build: what is printed from here on goes to the run's log. Instances share the snapshot's memory until
    they write to it; a collection would write to every object there is."""
    sys.stdout, sys.stderr = _printed
    random.seed(0)
    gc.collect()
    gc.freeze()
