"""Many rollouts of one environment at once, outside the sandbox. Owns which thread runs what, the configurations, and
when a rollout that nobody asks for any more is dropped; must not know how calls come in. Not part of a component.

What a process may have open is shared out before: so many rollouts, so many connections, and what is left for the
environment's own code. Who comes after that is told so.

Each rollout has a thread with an event loop and a state of the module `random` of its own, so that code which blocks or
awaits holds up no other rollout, and what belongs to a thread or a loop may be kept between a rollout's calls. Tasks of
one configuration are made one at a time, since a generator of tasks goes through one state."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import queue
import random
import resource
import secrets
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from . import calls, services
from .definition import Definition
from .engine import Engine
from .errors import EnvError, InvalidConfig, InvalidState, Limit, Unsupported
from .records import Completion, Context, Finished, Info, Score, Task, Turn
from .rollout import Rollout

MAX_ROLLOUTS = 10_000
"""Rollouts alive at once, where the process may have as many files open."""
MAX_CONNECTIONS = 4_096
"""Connections at once, likewise."""
FILES = 4
"""What a rollout has open: three for its event loop, and one for its own code."""
SPARE = 64
"""What the process has open beside rollouts and connections."""
MAX_CONFIGURATIONS = 1_000
"""Sets of arguments that are kept; the one that was used longest ago goes first."""


class Room(NamedTuple):
    """How much there may be at once."""

    rollouts: int
    connections: int


def room(files: int) -> Room:
    """What a process that may have so many files open has room for."""
    connections = min(MAX_CONNECTIONS, max(8, files // 4))
    return Room(min(MAX_ROLLOUTS, max(1, (files - connections - SPARE) // FILES)), connections)


def raise_files() -> int:
    """Has the process open as many files as it may; gives how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems name a limit that they do not grant.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


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


class _Late(Exception):
    """A call is not over in time."""


class _Lane:
    """A thread for the calls of one rollout, in the order in which they come. Raises `Limit` where there is no room."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rollout", daemon=True)
        # Here, and not on the thread: what fails is told to the caller.
        try:
            self._loop = asyncio.new_event_loop()
        except OSError as error:
            raise Limit(f"no room for another rollout: {error.strerror}; raise the limit of open files") from None
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise Limit(f"no room for another rollout: {error}; raise the limit of threads") from None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as _local.runner:
            while (work := self._work.get()) is not None:
                work()
                # Or what the work holds lives until the next.
                del work

    def submit(self, function: Callable[[], Any]) -> Callable[[float], Any]:
        """Has `function` called; waiting for what it gives or raises is to call what comes back with the most seconds
        that it may take, which raises `_Late` after them."""
        done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        # Emptied where nobody waits any more: what comes of it is then let go of on its own thread.
        waiting = [done]

        def work() -> None:
            try:
                value = function()
            except BaseException as error:  # It is raised where the call came from.
                # No name keeps it, since it holds this frame.
                for asker in waiting:
                    asker.put((False, error))
            else:
                for asker in waiting:
                    asker.put((True, value))

        def wait(seconds: float) -> Any:
            try:
                well, value = done.get(timeout=min(seconds, threading.TIMEOUT_MAX))
            except queue.Empty:
                waiting.clear()
                raise _Late from None
            if well:
                return value
            raise value

        self._work.put(work)
        return wait

    def end(self, last: Callable[[], None]) -> None:
        """Runs `last` after all calls, and ends the thread."""
        self._work.put(last)
        self._work.put(None)

    def interrupt(self) -> None:
        """Cancels what the loop awaits. What blocks the thread itself cannot be ended."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: the thread has ended.
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(self._loop)])

    def join(self, until: float) -> None:
        """Waits for the thread's end, no longer than `until`."""
        self._thread.join(max(0.0, until - time.monotonic()))

    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()


class UnknownConfiguration(InvalidState):
    """Its arguments are to be told again."""


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


Said = TypeVar("Said")


class Hosted:
    """An environment, and everything alive of it."""

    def __init__(self, definition: Definition, expire: float, rollouts: int) -> None:
        self._max_rollouts = rollouts
        self._fresh = Engine(definition)
        self._own(self._fresh.describe())
        self._expire = expire
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._configurations: OrderedDict[str, _Configuration] = OrderedDict()
        self._rollouts: dict[str, _Held] = {}
        # Of rollouts that are out: one in a call takes its room until that is over.
        self._ending: list[_Lane] = []

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
        found = self._find(name) or self._make(name, args)
        return name, found.engine.describe()

    def _make(self, name: str, args: Any) -> _Configuration:
        """The same arguments are taken once; others need not wait for them."""
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            try:
                if (found := self._find(name)) is not None:
                    return found
                engine = copy.copy(self._fresh)
                engine.configure(args)
                self._own(engine.describe())
                found = _Configuration(engine)
                with self._lock:
                    self._configurations[name] = found
                    while len(self._configurations) > MAX_CONFIGURATIONS:
                        self._configurations.popitem(last=False)
                return found
            finally:
                with self._lock:
                    self._making.pop(name, None)

    def _find(self, name: Any) -> _Configuration | None:
        with self._lock:
            found = self._configurations.get(name)
            if found is not None:
                self._configurations.move_to_end(name)
            return found

    def _configuration(self, name: Any) -> _Configuration:
        found = self._find(name)
        if found is None:
            raise UnknownConfiguration(
                f"there is no configuration {name!r}; `configure` comes first, also after a new start"
            )
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
            if len(self._rollouts) + len(self._ending) >= self._max_rollouts:
                self._ending = [lane for lane in self._ending if not lane.is_over()]
            if len(self._rollouts) + len(self._ending) >= self._max_rollouts:
                raise Limit(
                    f"{self._max_rollouts} rollouts are alive, which is all that this server has room for (10,000, or "
                    f"fewer where `ulimit -n` is low); run fewer at once with `max_concurrent`. One that nobody asks "
                    f"for ends in {self._expire:g} s"
                )
            self._rollouts[name] = held
        return name

    def _call(self, name: str, call: Callable[[Rollout], Any]) -> Any:
        """A call of a rollout. One that fails ends it: nobody can tell what state it is in."""
        try:
            return self._called(name, call)
        except BaseException:
            self.drop(name)
            raise

    def _called(self, name: str, call: Callable[[Rollout], Any]) -> Any:
        with self._lock:
            held = self._rollouts.get(name)
            if held is None:
                raise InvalidState("there is no such rollout: it is over, or nobody asked for it for too long")
            if held.lane is None:
                held.lane = _Lane()
            lane, rollout = held.lane, held.rollout
            held.running += 1
            # With the lock, so that no call comes after the lane's end.
            wait = lane.submit(lambda: call(rollout[0]))
        try:
            return wait(self._expire)
        except _Late:
            lane.interrupt()
            raise Limit(f"the call took longer than {self._expire:g} s (`--expire`)") from None
        finally:
            with self._lock:
                held.running -= 1
                held.used = time.monotonic()

    def start(self, name: str, say: Callable[[Turn], Said]) -> Said:
        """What comes before the first turn, as `say` has it."""
        return self._call(name, lambda rollout: say(rollout.start()))

    def step(self, name: str, completion: Completion, say: Callable[[Turn], Said]) -> Said:
        """What comes after a turn, as `say` has it."""
        return self._call(name, lambda rollout: say(rollout.step(completion)))

    def score(self, name: str, truncated: str | None) -> Score:
        """The final rubric; the rollout is over then."""
        score = self._call(name, lambda rollout: rollout.score(truncated))
        self.drop(name)
        return score

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
            self._ending += lanes
        return lanes

    def sweep(self) -> None:
        """Drops rollouts that nobody has asked for in a while."""
        since = time.monotonic() - self._expire
        with self._lock:
            old = [name for name, held in self._rollouts.items() if not held.running and held.used < since]
            self._ending = [lane for lane in self._ending if not lane.is_over()]
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
