"""Reward functions with weights. Owns which functions score one rollout and which a group, and what they are handed;
must not know how rollouts come about."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import services
from .calls import Function
from .errors import EnvError
from .parsers import Parser
from .records import Component
from .schema import summary
from .state import State

_GROUP = {"prompts", "completions", "answers", "states", "tasks", "infos", "members"}


def _is_group(func: Callable[..., Any]) -> bool:
    """Whether it scores a whole group: it takes names in the plural, or says that it returns a list."""
    signature = inspect.signature(func)
    returned = signature.return_annotation
    if isinstance(returned, str):
        returned = list if returned.partition("[")[0] in ("list", "List") else returned
    return bool(_GROUP & set(signature.parameters)) or returned is list or typing.get_origin(returned) is list


class Line:
    """A function of the rubric."""

    def __init__(self, func: Callable[..., Any], weight: float, name: str | None, group: bool) -> None:
        self.function = Function(func, name)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise EnvError(f"the weight of `{self.function.name}` is {weight!r}; it must be a number{self.function.place}")
        self.weight = float(weight)
        self.group = group

    @property
    def name(self) -> str:
        return self.function.name

    def component(self) -> Component:
        return Component(self.name, self.weight, summary(self.function.doc))


class Rubric:
    """Weighted reward functions, plain or async. Each is handed what it names of `prompt`, `completion`, `answer`,
    `info`, `state`, `task`, `parser`, `text` (the last assistant message), `messages`, `ctx`, `rng`, `args`,
    `truncated`, further columns of the dataset's row, and what `add_class_object` adds. A function that takes names
    in the plural (`completions`, `states`, ...) scores a whole group and returns one number per member.

    Reward 0 is a judgement: an exception fails the rollout instead."""

    def __init__(
        self,
        funcs: Iterable[Callable[..., Any]] | None = None,
        weights: Iterable[float] | None = None,
        parser: Parser | None = None,
    ) -> None:
        self.lines: list[Line] = []
        self.metrics: list[Line] = []
        self.parser = parser
        self.class_objects: dict[str, Any] = {}
        self.roles: list[str] = []
        funcs = list(funcs or [])
        weights = [1.0] * len(funcs) if weights is None else list(weights)
        if len(weights) != len(funcs):
            raise ValueError(f"{len(weights)} weights for {len(funcs)} reward functions")
        for func, weight in zip(funcs, weights):
            self.add_reward_func(func, weight)

    def add_reward_func(self, func: Callable[..., Any], weight: float = 1.0, name: str | None = None) -> None:
        """Adds a line: its value times `weight` goes into the reward."""
        self.lines.append(Line(func, weight, name, _is_group(func)))

    def add_metric(self, func: Callable[..., Any], weight: float = 0.0, name: str | None = None) -> None:
        """Adds a number that is only watched, or, with a weight, a line."""
        if weight or _is_group(func):
            return self.add_reward_func(func, weight, name)
        self.metrics.append(Line(func, 0.0, name, False))

    def add_class_object(self, name: str, thing: Any) -> None:
        """Hands `thing` to functions that name it."""
        self.class_objects[name] = thing

    def reward(
        self, weight: float = 1.0, name: str | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator for `add_reward_func`."""

        def add(func: Callable[..., Any]) -> Callable[..., Any]:
            self.add_reward_func(func, weight, name)
            return func

        return add

    def metric(self, name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator for `add_metric`."""

        def add(func: Callable[..., Any]) -> Callable[..., Any]:
            self.add_metric(func, name=name)
            return func

        return add

    def objects(self) -> dict[str, Any]:
        """What this rubric itself hands to its functions."""
        return {**({"parser": self.parser} if self.parser else {}), **self.class_objects}


class RubricGroup(Rubric):
    """Several rubrics as one; each keeps its own parser and objects."""

    def __init__(self, rubrics: Iterable[Rubric]) -> None:
        super().__init__()
        self.rubrics = list(rubrics)
        for rubric in self.rubrics:
            self.roles.extend(role for role in rubric.roles if role not in self.roles)


def parts(rubric: Rubric) -> list[Rubric]:
    """The rubric itself, and those that it groups."""
    grouped = [part for inner in getattr(rubric, "rubrics", []) for part in parts(inner)]
    return [rubric, *grouped]


JUDGE_PROMPT = """Given a ground truth answer and a response, determine if the response is correct.

Question:
```
{question}
```

Ground truth answer:
```
{answer}
```

Response:
```
{response}
```

Respond either "yes" or "no" only."""


class JudgeRubric(Rubric):
    """A rubric whose functions may name `judge`: `await judge(prompt, completion, answer, state)` asks the model that
    the run's configuration gives for `role` and returns its text. Needs the grant `llm`."""

    def __init__(
        self,
        funcs: Iterable[Callable[..., Any]] | None = None,
        weights: Iterable[float] | None = None,
        parser: Parser | None = None,
        judge_prompt: str = JUDGE_PROMPT,
        role: str = "judge",
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(funcs, weights, parser or Parser())
        self.roles.append(role)
        self.judge_prompt = judge_prompt
        self._role, self._sampling = role, dict(sampling or {})
        self.add_class_object("judge", self.judge)

    async def judge(self, prompt: Any, completion: Any, answer: Any, state: State | None = None) -> str:
        """The judge's answer to the filled in template: `{question}` is the last user message of the prompt."""
        asked = [message for message in prompt if message["role"] == "user"]
        assert self.parser is not None
        text = self.judge_prompt.format(
            question=asked[-1].text if asked else "",
            answer=answer,
            response=self.parser.parse_answer(completion) or "",
        )
        return services.llm.generate(self._role, text, **self._sampling).text
