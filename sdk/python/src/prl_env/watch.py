"""What a component does not have, kept from an environment that runs natively: files of elsewhere, modules that are
imported late, a network, processes, threads, and time without end. Owns how that is noticed and what is said of it;
must not know what is played. Not part of a component."""

from __future__ import annotations

import _thread
import builtins
import contextlib
import functools
import importlib
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from .absent import advice
from .contents import goes_in, standard_modules
from .guest.modules import prl_env_sandbox
from .names import is_test
from .project import Project

_PACKAGE = os.path.dirname(os.path.realpath(__file__)) + os.sep
_STANDARD = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
    | {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")}
)
# These read sources for tracebacks, and do without where there are none.
_SOURCE_READERS = ("linecache.py", "tokenize.py", "inspect.py")

_NETWORK = "a component has no network; use `prl_env.http.fetch`, to addresses that the run's configuration lists"
_EVENTS = {
    "socket.__new__": _NETWORK,
    "socket.getaddrinfo": _NETWORK,
    "socket.gethostbyname": _NETWORK,
    "subprocess.Popen": "a component has no processes",
    "os.system": "a component has no processes",
    "os.fork": "a component has no processes",
    "os.posix_spawn": "a component has no processes",
}
_THREADS = "a component has no threads; call the function itself"

_active: Watch | None = None
_hooked = False


def _of_package(path: str) -> bool:
    """Whether a file is an installed package's own."""
    roots = (os.path.realpath(entry) for entry in sys.path if entry.endswith("-packages"))
    return any(path.startswith(root + os.sep) for root in roots)


class Hung(BaseException):
    """A call did not end in time. No `Exception`, so that an environment's own `except` does not take it for one."""


@functools.lru_cache(maxsize=4096)
def _kind(file: str, root: str) -> str:
    """Whose a source file is, seen from the environment in `root`."""
    whole = os.path.realpath(file)
    if file.startswith("<") or whole.startswith(_PACKAGE):
        driver = os.path.basename(file) == "testing.py" and whole.startswith(_PACKAGE)
        return "driver" if driver else "sdk"
    if "site-packages" in whole or "dist-packages" in whole:
        return "library"
    if whole.startswith(root + os.sep):
        return "driver" if is_test(os.path.basename(whole)) else "author"
    return "standard" if whole.startswith(_STANDARD) else "library"


@functools.lru_cache(maxsize=256)
def _named(file: str) -> frozenset[str]:
    """Modules of Python's own that the builder takes in because this file names them, and the packages they are in."""
    names = standard_modules([Path(file)])
    return frozenset(name.rsplit(".", up)[0] for name in names for up in range(name.count(".") + 1))


class Watch:
    """An environment's folder, and what its code did that it cannot do in a component."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.root = os.path.realpath(project.root)
        self.found: list[str] = []

    def author(self, frame: FrameType | None) -> tuple[FrameType | None, bool]:
        """The innermost frame of the environment's own code, and whether nothing but Python's own library is below it.
        None where a test, or the harness, is nearer: what stands in for a host may do what it likes."""
        direct = True
        while frame is not None:
            kind = _kind(frame.f_code.co_filename, self.root)
            if kind == "author":
                return frame, direct
            if kind == "driver":
                break
            direct = direct and kind != "library"
            frame = frame.f_back
        return None, direct

    def note(self, frame: FrameType, text: str) -> None:
        """Keeps what was found."""
        line = f"{text} ({frame.f_code.co_filename}:{frame.f_lineno}, in `{frame.f_code.co_name}`)"
        if line not in self.found:
            self.found.append(line)

    @contextlib.contextmanager
    def on(self, late: bool) -> Iterator[None]:
        """Looks on; `late` once the environment is made, when a component has no more than was taken into it."""
        global _active, _hooked
        if not _hooked:
            # What every component holds is there early.
            prl_env_sandbox.modules()
            _look_on()
            _hooked = True
        before, self.late = (_active, getattr(_active, "late", False)), late
        _active = self
        try:
            yield
        finally:
            _active = before[0]
            if _active is not None:
                _active.late = before[1]

    def absent(self, name: str) -> None:
        """A module that is asked for, there or not. Raises what a component would for one that it cannot have."""
        told, frame, settings = advice(name), sys._getframe(2), self.project.settings
        if told is None or _kind(frame.f_code.co_filename, self.root) != "author":
            return
        top = name.partition(".")[0]
        if top not in settings.stand_ins and not any(top in requirement for requirement in settings.packages):
            raise ModuleNotFoundError(f"No module named {name!r}; {told}")

    def imported(self, name: str) -> None:
        """A module that is not there yet."""
        if not self.late or name.partition(".")[0] in {*self.project.settings.bake, "prl_env"}:
            return
        below: FrameType | None = sys._getframe(2)
        while below is not None and ("importlib" in below.f_code.co_filename or below.f_code is _imported.__code__):
            below = below.f_back
        frame, _ = self.author(below)
        if frame is not None and frame is below and name not in _named(frame.f_code.co_filename):
            self.note(
                frame,
                f"`{name}` is imported late, when a component can import nothing more; import it at the top of a module, "
                "or name it in `modules` of [tool.prl-env] in pyproject.toml",
            )

    def opened(self, path: Any, mode: Any) -> None:
        """A file that is about to be opened. Raises what a component would."""
        below = sys._getframe(2)
        file = below.f_code.co_filename
        if isinstance(path, int) or "importlib" in file or os.path.basename(file) in _SOURCE_READERS:
            return
        frame, direct = self.author(below)
        if frame is None or not (direct or self.late):
            return
        name = os.fsdecode(path)
        whole = os.path.realpath(name)
        inside = os.path.relpath(whole, self.root)
        if not os.path.isabs(name):
            text = (
                f'"{name}" is opened by a relative path, which in a component leads nowhere; write '
                f'`Path(__file__).parent / "{name}"`, or use prl_env.load_lines, load_jsonl or load_csv, which look beside '
                "the module"
            )
        elif inside.startswith("..") and _of_package(whole):
            # Packages go in with their data.
            return
        elif inside.startswith(".."):
            text = f'"{name}" is not in the environment\'s folder; no other file goes into a component'
        elif self.late and isinstance(mode, str) and set(mode) - set("rbtU"):
            text = f'"{name}" is opened for writing; a component can only read'
        elif self.late and not goes_in(self.project, inside):
            text = f'"{name}" does not go into a component; see `exclude` and what is left out in the guide'
        else:
            return
        self.note(frame, text)
        raise FileNotFoundError(text)

    def reached(self, text: str, kind: type[Exception] = PermissionError) -> None:
        """Something that a component does not have. Raises what a component would."""
        frame, _ = self.author(sys._getframe(2))
        if frame is not None:
            self.note(frame, text)
            raise kind(text)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    watch = _active
    if watch is None:
        return
    if event == "open":
        watch.opened(args[0], args[1])
    elif event == "import":
        watch.imported(args[0])
    elif event in _EVENTS:
        watch.reached(_EVENTS[event])


_import, _import_module, _sleep = builtins.__import__, importlib.import_module, time.sleep


def _imported(name: str, *rest: Any, **more: Any) -> Any:
    """Stands in for `import`, which asks for modules that Python has and a component has not."""
    if _active is not None:
        _active.absent(name)
    return _import(name, *rest, **more)


def _imported_by_name(name: str, package: str | None = None) -> Any:
    """Stands in for `importlib.import_module`, of which the hook is not told."""
    if _active is not None and not name.startswith("."):
        _active.absent(name)
        if name not in sys.modules:
            _active.imported(name)
    return _import_module(name, package)


def _slept(seconds: float) -> None:
    """Stands in for `time.sleep`: in a component it is over at once."""
    asleep = _active is None or _active.author(sys._getframe(1))[0] is None
    _sleep(seconds if asleep else min(seconds, 0))


def _threadless(start: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for what starts a thread."""

    @functools.wraps(start)
    def refused(*args: Any, **options: Any) -> Any:
        if _active is not None:
            _active.reached(_THREADS, RuntimeError)
        return start(*args, **options)

    return refused


def _look_on() -> None:
    """Puts the watch in place, for good; it does nothing while nobody is watched."""
    sys.addaudithook(_hook)
    builtins.__import__ = _imported
    importlib.import_module = _imported_by_name
    time.sleep = _slept
    threading.Thread.start = _threadless(threading.Thread.start)  # type: ignore[method-assign]
    _thread.start_new_thread = _threadless(_thread.start_new_thread)


@contextlib.contextmanager
def deadline(seconds: float, watch: Watch | None = None) -> Iterator[None]:
    """Raises `Hung`, saying where, if the context does not end within `seconds`. Only in the main thread, and where no
    one else waits for the same signal; code that is no Python cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    left = 3

    def late(_: int, frame: FrameType | None) -> None:
        nonlocal left
        left -= 1
        own = watch.author(frame)[0] if watch is not None else None
        at = own or frame
        assert at is not None
        told = (
            f"`{at.f_code.co_name}` does not end: it was still running after {seconds:g} s "
            f"({at.f_code.co_filename}:{at.f_lineno})"
        )
        if left < 0:
            # It takes every exception that there is.
            print(f"error: {told}", file=sys.stderr, flush=True)
            os._exit(2)
        raise Hung(told)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
