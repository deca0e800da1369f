"""Calls an author's function with the arguments that it names, plain or async. Owns the event loop that async functions
run on in the sandbox; must not know what is called."""

from __future__ import annotations

import inspect
import os
import sys
from asyncio import base_events
from collections.abc import Callable, Mapping
from typing import Any

from .errors import EnvError


class _Nothing:
    """Stands in for a selector: nothing ever comes from outside, and waiting takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise EnvError(
                "an async function waits for something that never comes; there are no sockets and no threads"
            )
        self.now += timeout
        return []


class _Loop(base_events.BaseEventLoop):
    """asyncio without a system below it: sleeping ends at once, in the order of the times."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Nothing()

    def time(self) -> float:
        return self._selector.now

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def __del__(self, _warn: Any = None) -> None:
        self.close()


_loop: _Loop | None = None
_waiter: Callable[[Any], Any] | None = None


def wait_with(waiter: Callable[[Any], Any]) -> None:
    """Has `waiter` wait for what is awaitable, in place of the sandbox's loop."""
    global _waiter
    _waiter = waiter


def finish(value: Any) -> Any:
    """`value`, or what it comes to where it is awaitable."""
    if not inspect.isawaitable(value):
        return value
    if _waiter is not None:
        return _waiter(value)
    global _loop
    if _loop is None or _loop.is_closed():
        _loop = _Loop()

    async def wait() -> Any:
        return await value

    try:
        return _loop.run_until_complete(wait())
    except BaseException:
        # What is left of this call must not run in the next.
        _loop.close()
        raise


def _at(file: str, line: int) -> str:
    # In a component the environment's folder is `/0`.
    return f" ({file.removeprefix('/0/')}:{line})"


def place(func: Any) -> str:
    """Where a function stands, as ` (file.py:12)`; nothing for one that is not written in Python."""
    code = getattr(inspect.unwrap(func), "__code__", None)
    return "" if code is None else _at(code.co_filename, code.co_firstlineno)


def called_from() -> str:
    """The innermost place outside this package that the call comes from, as ` (file.py:12)`; nothing where there is
    none."""
    package = os.path.dirname(__file__) + os.sep
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    return "" if frame is None else _at(frame.f_code.co_filename, frame.f_lineno)


class Function:
    """A function that is handed those of the known names which it asks for; one with `**kwargs` gets all of them."""

    def __init__(self, func: Callable[..., Any], name: str | None = None) -> None:
        if not callable(func):
            raise TypeError(f"{func!r} is no function")
        self.func = func
        self.name = str(name or getattr(func, "__name__", type(func).__name__))
        self.doc = inspect.getdoc(func) or ""
        self.place = place(func)
        parameters = inspect.signature(func).parameters.values()
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        self.needed = [p.name for p in parameters if p.name in self.names and p.default is p.empty]

    def __call__(self, known: Mapping[str, Any]) -> Any:
        """Calls it, and waits for it. Raises `EnvError` where it needs a name that there is not."""
        if self.takes_all:
            return finish(self.func(**(known.whole() if hasattr(known, "whole") else known)))
        missing = [name for name in self.needed if name not in known]
        if missing:
            names = ", ".join(f"`{name}`" for name in known)
            raise EnvError(f"`{self.name}` takes `{missing[0]}`, which there is not; there are {names}{self.place}")
        return finish(self.func(**{name: known[name] for name in self.names if name in known}))
