"""The course of one rollout: which hook is asked when, and what its answer comes to. Owns the order and the
bookkeeping; must not know any particular environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .calls import Function
from .environment import Environment
from .errors import EnvError, InvalidState
from .messages import Message, as_message, as_messages
from .records import Completion, Context, Score, Stop, Task, Turn
from .rng import begin
from .rubric import Line, Rubric
from .state import State
from .tools import answer

ANSWERED = "answered"
"""The reason where the model's answer ends the rollout."""


def number(what: str, name: str, value: Any, place: str = "") -> float:
    """A finite number. Raises `EnvError`, which names it and the place that it is from."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError("a text is no number, even where it reads like one")
        made = float(value)
    except (TypeError, ValueError, OverflowError):
        raise EnvError(f"{what} `{name}` gave {short(value)}, which is no number; return one, or a bool{place}") from None
    if not math.isfinite(made):
        raise EnvError(f"{what} `{name}` is {made}; return a finite number{place}")
    return made


def short(value: Any) -> str:
    """A value in a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


class Objects(dict):
    """What an author's function may name; some of it is only made where it is named."""

    def __init__(self, environment: Environment, state: State) -> None:
        task: Task = state["task"]
        columns = task.payload.get("row")
        if columns:
            self.update(columns)
        self.update(
            prompt=state["prompt"],
            completion=state["completion"],
            answer=state["answer"],
            info=state["info"],
            state=state,
            task=task,
            parser=environment.parser,
            ctx=state["ctx"],
            args=environment.args,
            truncated=state["truncated"],
            messages=None,
            text=None,
            rng=None,
        )

    def __getitem__(self, name: str) -> Any:
        if name == "messages":
            return self["state"].messages
        if name == "text":
            return next((m.text for m in reversed(self["completion"]) if m["role"] == "assistant"), "")
        if name == "rng":
            return self["ctx"].rng
        return super().__getitem__(name)

    def whole(self) -> dict[str, Any]:
        """Everything, for a function that takes `**kwargs`."""
        return {name: self[name] for name in self}


class Rollout:
    """One attempt at a task."""

    def __init__(self, environment: Environment, task: Task, context: Context) -> None:
        self.environment = environment
        self.state = State(
            task=task,
            prompt=list(task.prompt),
            completion=[],
            answer="" if task.answer is None else task.answer,
            info=task.info,
            ctx=context,
            args=environment.args,
            trajectory=[],
            turn=0,
            truncated=None,
            is_completed=False,
            is_truncated=False,
            stop_condition=None,
            final_env_response=None,
            trace=None,
        )
        self._calls = 0

    def _begin(self) -> None:
        """Code that draws from the module `random` is seeded anew in each call, whatever other rollouts drew since."""
        begin("rollout", self.state["ctx"].seed, self._calls)
        self._calls += 1

    def _call(self, function: Function) -> Any:
        return function(Objects(self.environment, self.state))

    def start(self) -> Turn:
        """Sets up the state. Raises `EnvError`."""
        self._begin()
        setup = self.environment.on_setup
        given = None if setup is None else self._call(setup)
        # Some return the state, as `verifiers` once wanted.
        turn = Turn() if setup is None or isinstance(given, State) else self._turn(given, setup)
        return self._finish(turn, setup)

    def step(self, completion: Completion) -> Turn:
        """Takes a turn of the model. Raises `EnvError`."""
        state, environment = self.state, self.environment
        if state["is_completed"]:
            raise InvalidState("the rollout is over")
        self._begin()
        message = as_message(completion.message)
        state["completion"].append(message)
        state["trajectory"].append({"completion": [message], "finish_reason": completion.finish_reason})
        state["turn"] += 1
        turn = Turn()
        if not environment.goes_on:
            turn.stop = Stop(ANSWERED)
        else:
            turn.stop = self._stop()
            if turn.stop is None:
                turn = self._react(message)
        turn = self._finish(turn, environment.on_reply)
        if turn.stop is None and not turn.messages:
            name, place = environment.on_reply.name, environment.on_reply.place
            raise EnvError(f"`{name}` gave no message, and nothing ended the rollout{place}")
        return turn

    def _react(self, message: Message) -> Turn:
        state, environment = self.state, self.environment
        if message.tool_calls and environment.tools:
            turn = Turn([answer(call, environment.tools, state) for call in message["tool_calls"]])
        elif environment.replies:
            turn = self._turn(self._call(environment.on_reply), environment.on_reply)
        else:
            return Turn(stop=Stop(ANSWERED))
        if state["final_env_response"] is not None:
            final = self._turn(state["final_env_response"], environment.on_reply).messages
            if not turn.messages:
                turn.messages = final
            turn.stop = turn.stop or Stop("final_env_response")
        # Stops may look at what the environment just said.
        said, state["completion"] = state["completion"], state["completion"] + turn.messages
        turn.stop = turn.stop or self._stop()
        state["completion"] = said
        return turn

    def _stop(self) -> Stop | None:
        for function, stop in self.environment.stops:
            if self._call(function):
                return Stop(stop.reason, stop.truncated)
        completed = self.environment.on_completed
        return Stop("is_completed") if completed is not None and self._call(completed) else None

    def _turn(self, given: Any, hook: Function) -> Turn:
        """What a hook returned. Raises `EnvError`, which names it."""
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], State):
            given = given[0]
        turn = given if isinstance(given, Turn) else Turn(messages=given)
        try:
            turn.messages = as_messages(turn.messages)
        except ValueError as error:
            raise EnvError(f"`{hook.name}` gave {short(given)}: {error}{hook.place}") from error
        for name, value, kind in (
            ("stop", turn.stop, Stop),
            ("metrics", turn.metrics, Mapping),
            ("sampling", turn.sampling, Mapping),
        ):
            if value is not None and not isinstance(value, kind):
                told = {"stop": '`prl_env.Stop("reason")`'}.get(name, "a dictionary")
                raise EnvError(f"`{hook.name}` gave a turn whose `{name}` is {short(value)}, not {told}{hook.place}")
        return turn

    def _finish(self, turn: Turn, hook: Function | None) -> Turn:
        state, environment, place = self.state, self.environment, hook.place if hook else ""
        state["completion"].extend(turn.messages)
        if state["turn"] and environment.turn_rewards:
            extra = math.fsum(
                number("turn reward", func.name, self._call(func), func.place) for func in environment.turn_rewards
            )
            turn.reward = extra if turn.reward is None else turn.reward + extra
        if turn.reward is not None:
            turn.reward = number("the reward of the turn of", hook.name if hook else "", turn.reward, place)
        turn.metrics = {name: number("metric", name, value, place) for name, value in (turn.metrics or {}).items()}
        undeclared = [name for name in turn.metrics if name not in environment.metrics]
        if undeclared:
            raise EnvError(f'a turn gives the metric `{undeclared[0]}`; declare it with `metrics=["{undeclared[0]}"]`{place}')
        if environment.sampling and turn.sampling is None:
            turn.sampling = dict(environment.sampling)
        if turn.stop is not None:
            state["is_completed"] = True
            state["stop_condition"] = turn.stop.reason
        return turn

    def score(self, truncated: str | None) -> Score:
        """The final rubric. Raises `EnvError`."""
        self._begin()
        state = self.state
        state["is_completed"], state["is_truncated"] = True, truncated is not None
        state["truncated"] = truncated
        score = Score()
        for rubric in self.environment.rubrics:
            for line in rubric.lines:
                if not line.group:
                    score.components[line.name] = self._value("reward", rubric, line)
            for line in rubric.metrics:
                score.metrics[line.name] = self._value("metric", rubric, line)
        score.info = state["trace"]
        return score

    def _value(self, what: str, rubric: Rubric, line: Line) -> float:
        known = Objects(self.environment, self.state)
        known.update(rubric.objects())
        return number(what, line.name, line.function(known), line.function.place)
