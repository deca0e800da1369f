"""Many rollouts of one environment at once, outside the sandbox. Owns which thread runs what, the configurations, and
when a rollout that nobody asks for any more is dropped; must not know how calls come in. Not part of a component.

Each rollout has a thread with an event loop and a state of the module `random` of its own, so that code which blocks or
awaits holds up no other rollout, and what belongs to a thread or a loop may be kept between a rollout's calls. Tasks of
one configuration are made one at a time, since a generator of tasks goes through one state."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import queue
import random
import secrets
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from . import calls, services
from .definition import Definition
from .engine import Engine
from .errors import EnvError, InvalidConfig, InvalidState, Limit, Unsupported
from .records import Completion, Context, Finished, Info, Score, Task, Turn
from .rollout import Rollout

MAX_ROLLOUTS = 10_000
"""Rollouts alive at once."""
MAX_CONFIGURATIONS = 1_000
"""Sets of arguments that are kept; the one that was used longest ago goes first."""


class Outside:
    """Behind the services: the log goes to standard error, the rest is not there."""

    def log(self, level: str, message: str, fields: list[tuple[str, str]]) -> None:
        named = "".join(f" {name}={value}" for name, value in fields)
        print(f"log {level}: {message}{named}", file=sys.stderr)

    def __getattr__(self, name: str) -> Any:
        def refused(*_: Any) -> Any:
            service = {"generate": "llm", "fetch": "http", "get": "kv", "set": "kv"}.get(name, "assets")
            raise Unsupported(
                f"an environment that is served over HTTP has no `{service}` from the host; outside the sandbox its "
                "own code can reach what it needs"
            )

        return refused


class _Local(threading.local):
    """What a thread has of its own."""

    def __init__(self) -> None:
        self.random = random.Random()
        self.runner: asyncio.Runner | None = None


_local = _Local()


def _wait(value: Any) -> Any:
    """Waits for `value` on the thread's loop; a thread that keeps none gets one for this."""

    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if _local.runner is None else _local.runner.run(wait())


def _behind(name: str) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        return getattr(_local.random, name)(*given, **named)

    call.__name__ = call.__qualname__ = name
    return call


def install() -> None:
    """Makes the process one that serves: to be called once, before an environment is imported, since that may take
    functions out of the module `random`."""
    for name in random.__all__:
        if isinstance(getattr(getattr(random, name), "__self__", None), random.Random):
            setattr(random, name, _behind(name))
    calls.wait_with(_wait)
    services.serve(Outside())


class _Lane:
    """A thread for the calls of one rollout, in the order in which they come."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rollout", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner() as _local.runner:
            while (work := self._work.get()) is not None:
                work()
                # Or what the work holds lives until the next.
                del work

    def submit(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Has `function` called; waiting for what it gives or raises is to call what comes back."""
        done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def work() -> None:
            try:
                done.put((True, function()))
            except BaseException as error:  # It is raised where the call came from.
                done.put((False, error))

        def wait() -> Any:
            well, value = done.get()
            if well:
                return value
            raise value

        self._work.put(work)
        return wait

    def end(self, last: Callable[[], None]) -> None:
        """Runs `last` after all calls, and ends the thread."""
        self._work.put(last)
        self._work.put(None)

    def join(self, until: float) -> None:
        """Waits for the thread's end, no longer than `until`."""
        self._thread.join(max(0.0, until - time.monotonic()))


class _Held:
    """A rollout that is under way."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout: list[Rollout] = [rollout]
        self.lane: _Lane | None = None
        self.used = time.monotonic()
        self.running = 0


class _Configuration:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tasks = threading.Lock()


class Hosted:
    """An environment, and everything alive of it."""

    def __init__(self, definition: Definition, expire: float) -> None:
        self._fresh = Engine(definition)
        self._own(self._fresh.describe())
        self._expire = expire
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._configurations: OrderedDict[str, _Configuration] = OrderedDict()
        self._rollouts: dict[str, _Held] = {}

    @staticmethod
    def _own(info: Info) -> Info:
        if info.roles:
            roles = ", ".join(f"`{role}`" for role in info.roles)
            raise Unsupported(
                f"it asks the host for models ({roles}), which an environment that is served over HTTP does not get; "
                "have its own code ask the model's server, or build a component of it"
            )
        return info

    def describe(self) -> Info:
        """What it is with its defaults."""
        return self._fresh.describe()

    def configure(self, args: Any) -> tuple[str, Info]:
        """The name of the configuration with these arguments, which are an object, and what they make of it."""
        if not isinstance(args, dict):
            raise InvalidConfig("the arguments are not a JSON object")
        text = json.dumps(args, sort_keys=True)
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        with self._making:
            found = self._find(name)
            if found is None:
                engine = copy.copy(self._fresh)
                engine.configure(args)
                self._own(engine.describe())
                found = _Configuration(engine)
                with self._lock:
                    self._configurations[name] = found
                    while len(self._configurations) > MAX_CONFIGURATIONS:
                        self._configurations.popitem(last=False)
        return name, found.engine.describe()

    def _find(self, name: Any) -> _Configuration | None:
        with self._lock:
            found = self._configurations.get(name)
            if found is not None:
                self._configurations.move_to_end(name)
            return found

    def _configuration(self, name: Any) -> _Configuration:
        found = self._find(name)
        if found is None:
            raise InvalidState(f"there is no configuration {name!r}; `configure` comes first, also after a new start")
        return found

    def task(self, configuration: Any, split: str, index: int, seed: int) -> Task:
        """The task at `index` of `split`."""
        found = self._configuration(configuration)
        with found.tasks:
            return found.engine.get_task(split, index, seed)

    def open(self, configuration: Any, task: Task, context: Context) -> str:
        """Begins a rollout; gives its name."""
        held = _Held(self._configuration(configuration).engine.open(task, context))
        name = secrets.token_hex(16)
        with self._lock:
            if len(self._rollouts) >= MAX_ROLLOUTS:
                raise Limit(f"{MAX_ROLLOUTS} rollouts are alive; one that nobody asks for ends in {self._expire:g} s")
            self._rollouts[name] = held
        return name

    def _call(self, name: str, call: Callable[[Rollout], Any]) -> Any:
        with self._lock:
            held = self._rollouts.get(name)
            if held is None:
                raise InvalidState("there is no such rollout: it is over, or nobody asked for it for too long")
            held.running += 1
            if held.lane is None:
                held.lane = _Lane()
            rollout = held.rollout
            # With the lock, so that no call comes after the lane's end.
            wait = held.lane.submit(lambda: call(rollout[0]))
        try:
            return wait()
        finally:
            with self._lock:
                held.running -= 1
                held.used = time.monotonic()

    def start(self, name: str) -> Turn:
        """What comes before the first turn."""
        return self._call(name, lambda rollout: rollout.start())

    def step(self, name: str, completion: Completion) -> Turn:
        """What comes after a turn."""
        return self._call(name, lambda rollout: rollout.step(completion))

    def score(self, name: str, truncated: str | None) -> Score:
        """The final rubric; the rollout is over then, whatever comes of it."""
        try:
            return self._call(name, lambda rollout: rollout.score(truncated))
        finally:
            self.drop(name)

    def score_group(self, configuration: Any, task: Task, members: list[Finished]) -> list[Score]:
        """Scores of a whole group."""
        return self._configuration(configuration).engine.score_group(task, members)

    def drop(self, name: str) -> None:
        """Ends a rollout, if it is there. What it holds is let go of on its own thread."""
        self._end([name])

    def _end(self, names: Iterable[str]) -> list[_Lane]:
        """Takes rollouts out and has their threads end."""
        with self._lock:
            ended = [held for held in (self._rollouts.pop(name, None) for name in names) if held is not None]
            lanes = []
            for held in ended:
                if held.lane is not None:
                    held.lane.end(held.rollout.clear)
                    lanes.append(held.lane)
        return lanes

    def sweep(self) -> None:
        """Drops rollouts that nobody has asked for in a while."""
        since = time.monotonic() - self._expire
        with self._lock:
            old = [name for name, held in self._rollouts.items() if not held.running and held.used < since]
        self._end(old)

    def close(self, seconds: float) -> None:
        """Ends all rollouts, so that they let go of what they hold; gives those that are in a call some time for it."""
        with self._lock:
            names = list(self._rollouts)
        until = time.monotonic() + seconds
        for lane in self._end(names):
            lane.join(until)


def problem(error: BaseException) -> EnvError:
    """What an exception that left an environment is to the host; what is not the environment's own word is logged."""
    if isinstance(error, EnvError):
        return error
    if isinstance(error, RecursionError):
        return EnvError("RecursionError: it calls itself too deeply")
    print("".join(traceback.format_exception(error)[-12:]), file=sys.stderr, end="")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return EnvError(f"{type(error).__name__}: {error}{place}")
