"""The exported interface. Owns what exceptions become: an `EnvError` as it says, anything else `internal` with its
traceback in the log. Only what cannot be caught traps."""

from __future__ import annotations

import copy
import functools
import json
import logging
import traceback
from collections.abc import Callable
from typing import Any

from componentize_py_types import Err
from wit_world import exports as wit_exports
from wit_world.exports import environment as wit

from .. import rollout, services
from ..calls import finish
from ..engine import Engine
from ..errors import EnvError, InvalidConfig, fix
from ..messages import assistant
from . import convert
from .backend import Host

ENGINE: Engine


def _place(problem: BaseException) -> str:
    """The last place of the environment's own code, or of any, that an exception came through."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith("/0/")] or frames
    return f" ({own[-1].filename.removeprefix('/0/')}:{own[-1].lineno})" if own else ""


def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Turns exceptions into the contract's errors."""

    @functools.wraps(call)
    def wrapper(*args: Any) -> Any:
        try:
            return call(*args)
        except Err:
            raise
        except EnvError as problem:
            raise Err(convert.error_out(problem)) from None
        except RecursionError:
            raise Err(convert.error_out(EnvError("RecursionError: it calls itself too deeply"))) from None
        except BaseException as problem:
            services.log("".join(traceback.format_exception(problem)[-12:]), "error")
            told = EnvError(f"{type(problem).__name__}: {problem}{fix(problem)}{_place(problem)}")
            raise Err(convert.error_out(told)) from None

    return wrapper


class Environment(wit_exports.Environment):
    """The interface's functions."""

    @guarded
    def describe(self) -> wit.Info:
        return convert.info_out(ENGINE.describe())

    @guarded
    def configure(self, args: str) -> None:
        try:
            given = json.loads(args)
        except ValueError as problem:
            raise InvalidConfig(f"the arguments are no JSON: {problem}") from None
        ENGINE.configure(given)

    @guarded
    def get_task(self, split: str, index: int, seed: int) -> wit.Task:
        return convert.task_out(ENGINE.get_task(split, index, seed))

    @guarded
    def score_group(self, task: wit.Task, members: list[wit.Finished]) -> list[Any]:
        finished = [convert.finished_in(member) for member in members]
        return [convert.score_out(score) for score in ENGINE.score_group(convert.task_in(task), finished)]


class Rollout(wit.Rollout):
    """The interface's resource."""

    def __init__(self, inner: rollout.Rollout) -> None:
        self._inner = inner

    @classmethod
    @guarded
    def open(cls, task: wit.Task, context: wit.RolloutContext) -> Rollout:
        return cls(ENGINE.open(convert.task_in(task), convert.context_in(context)))

    @guarded
    def start(self) -> wit.Turn:
        return convert.turn_out(self._inner.start())

    @guarded
    def step(self, completion: wit.Completion) -> wit.Turn:
        return convert.turn_out(self._inner.step(convert.completion_in(completion)))

    @guarded
    def score(self, truncated: str | None) -> Any:
        return convert.score_out(self._inner.score(truncated))


def warm_up(stage: Callable[[str], None]) -> None:
    """Plays a few rollouts before the snapshot is taken: instances then start with what a first one would have set
    up, and with code that the interpreter has fitted to its use, which it would else write to in each of them. An
    environment that cannot do without its services before it runs is taken as it is."""
    global ENGINE

    async def nothing() -> None:
        pass

    finish(nothing())
    fresh = ENGINE
    try:
        for round in range(_ROUNDS):
            ENGINE = copy.copy(fresh)
            _round(round, (lambda _: None) if round else stage)
    except Err as problem:
        print(f"not warmed up: {problem.value.message}")
    ENGINE = fresh
    stage("writing it")
    root = logging.getLogger()
    root.handlers[:] = [services.LogHandler()]
    root.setLevel(logging.INFO)
    services.serve(Host())


# From this many executions on, the interpreter leaves code as it is.
_ROUNDS = 24


def _round(round: int, stage: Callable[[str], None]) -> None:
    environment = Environment()
    environment.configure("{}")
    info = environment.describe()
    split = info.splits[0]
    stage("making a first task")
    task = environment.get_task(split.name, 0 if split.size is None else round % split.size, round)
    stage("starting a first rollout")
    played = Rollout.open(task, wit.RolloutContext("0", round, 0, 1, 0, False))
    played.start()
    stage("a first rollout's answer to the model")
    said = convert.message_out(assistant("<answer>\n1\n</answer>"))
    played.step(wit.Completion(said, wit.FinishReason.STOP, 1, 100, 100))
    stage("scoring a first rollout")
    played.score("max_turns")
