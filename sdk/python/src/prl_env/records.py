"""The contract's records as Python values. Owns their fields; JSON texts of the contract are decoded values here.
Must not know how an environment makes them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from .messages import Message
from .rng import stream


@dataclass
class Split:
    """A split; without a size its tasks are made without end."""

    name: str
    size: int | None = None


@dataclass
class Component:
    """One line of the rubric."""

    name: str
    weight: float = 1.0
    description: str = ""


@dataclass
class Info:
    """What an environment is."""

    name: str
    version: str
    description: str
    args_schema: dict[str, Any]
    splits: list[Split]
    multi_turn: bool
    tools: bool
    group_scoring: bool
    deterministic: bool
    components: list[Component]
    metrics: list[str]
    roles: list[str]
    tags: list[str]


@dataclass
class ToolDef:
    """An OpenAI function schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False


@dataclass
class Task:
    """A task as plain data."""

    split: str
    index: int
    seed: int
    key: str
    prompt: list[Message]
    tools: list[ToolDef] = field(default_factory=list)
    answer: Any = None
    payload: dict[str, Any] = field(default_factory=dict)
    max_turns: int | None = None
    tags: list[str] = field(default_factory=list)

    @property
    def info(self) -> dict[str, Any]:
        """The `info` of the row that the task was made of."""
        return self.payload.get("info") or {}


@dataclass
class Context:
    """What a rollout is told about itself."""

    id: str = "0.0"
    seed: int = 0
    member: int = 0
    group_size: int = 1
    step: int = 0
    eval: bool = False

    @property
    def rng(self) -> random.Random:
        """The rollout's own randomness: the same object each time, seeded from `seed`."""
        if "_rng" not in self.__dict__:
            self.__dict__["_rng"] = stream("rollout", self.seed)
        return self.__dict__["_rng"]


@dataclass
class Completion:
    """One sampled assistant turn. `finish_reason` is `stop`, `length`, `tool-calls` or `content-filter`."""

    message: Message
    finish_reason: str = "stop"
    completion_tokens: int = 1
    context_left: int | None = None
    turns_left: int | None = None


@dataclass
class Stop:
    """Why a rollout ends: `reason` is 1 to 64 of a-z A-Z 0-9 _ - . and names a metric."""

    reason: str
    truncated: bool = False


@dataclass
class Turn:
    """What an environment says back."""

    messages: list[Message] = field(default_factory=list)
    reward: float | None = None
    stop: Stop | None = None
    tools: list[ToolDef] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    sampling: dict[str, Any] | None = None


@dataclass
class Score:
    """The final rubric: values by name."""

    components: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    info: Any = None


@dataclass
class Finished:
    """A member of a group that is scored as a whole."""

    context: Context
    messages: list[Message]
    truncated: str | None
    score: Score
    reward: float
