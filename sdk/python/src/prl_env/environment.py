"""The author's object: tasks, a rubric, hooks for further turns, tools. Owns what can be declared and how; the course
of a rollout is `rollout`'s business."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .calls import Function, called_from
from .datasets import Rows
from .messages import Message, as_messages
from .parsers import Parser
from .records import Stop
from .rubric import Rubric, RubricGroup, parts
from .schema import summary
from .state import State
from .tools import Tool

_MARK = "_prl_env_mark"


def _marker(kind: str) -> Callable[..., Any]:
    """A decorator for methods, with options or without."""

    def decorator(func: Callable[..., Any] | None = None, **options: Any) -> Any:
        def mark(func: Callable[..., Any]) -> Callable[..., Any]:
            setattr(func, _MARK, (kind, options))
            return func

        return mark if func is None else mark(func)

    return decorator


reward = _marker("reward")
"""Marks a method as a line of the rubric: `@reward` or `@reward(weight=0.5, name="...")`."""
metric = _marker("metric")
"""Marks a method as a metric: a number without reward."""
turn_reward = _marker("turn_reward")
"""Marks a method that gives credit for each turn of the model."""
stop = _marker("stop")
"""Marks a method that ends the rollout where it is true, by its name as the reason: `@stop` or
`@stop(truncated=True)`."""
tool = _marker("tool")
"""Marks a method as a tool."""


class Environment:
    """An environment from its parts. Make one at the top of a module, or return one from `load_environment`.

    - `dataset`, `eval_dataset`: the splits `train` and `eval`; or `splits`, by name. Each is a list of rows, a
      function of `index`, a generator function, or `procedural(...)`. A row has `prompt` (messages) or `question` (a
      text), and may have `answer`, `info` (a dictionary), `key`, `tags`, `max_turns`, and columns of its own. All of
      it must be JSON.
    - `system_prompt`, `few_shot`: put before prompts that have no system message.
    - `rubric`: a `Rubric`, or several. Functions decorated with `reward` and `metric` add to it.
    - `tools`: functions that the model may call.
    - `max_turns`: most turns of the model.
    - `args`: a dataclass or `TypedDict` of what a run may set; functions are handed the run's as `args`.
    - `roles`: roles that `llm` is asked for.
    - `deterministic`: whether the same turns of the model always come to the same; unsaid, it is so where neither `llm`
      nor `http` is used.
    - `metrics`: names of numbers that turns give (see `Turn.metrics`).
    - `sampling`: hints for every turn: `max_tokens` and `stop`.
    """

    multi_turn = False

    def __init__(
        self,
        name: str | None = None,
        version: str | None = None,
        description: str | None = None,
        *,
        dataset: Any = None,
        eval_dataset: Any = None,
        splits: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        few_shot: Any = None,
        parser: Parser | None = None,
        rubric: Rubric | Iterable[Rubric] | None = None,
        tools: Iterable[Callable[..., Any]] = (),
        max_turns: int | None = None,
        args: Any = None,
        roles: Iterable[str] = (),
        metrics: Iterable[str] = (),
        tags: Iterable[str] = (),
        sampling: Mapping[str, Any] | None = None,
        deterministic: bool | None = None,
    ) -> None:
        self.name, self.version, self.description = name, version, description
        self.place = called_from()
        self.splits: dict[str, Rows] = {}
        for split, source in {"train": dataset, "eval": eval_dataset, **(splits or {})}.items():
            if source is not None:
                self.splits[split] = source if isinstance(source, Rows) else Rows(source)
        self.system_prompt = system_prompt
        self.few_shot = as_messages(few_shot)
        given = [] if rubric is None else [rubric] if isinstance(rubric, Rubric) else list(rubric)
        self._given = RubricGroup(given)
        self.parser = parser or next((part.parser for part in parts(self._given) if part.parser), None) or Parser()
        self.max_turns = max_turns if max_turns is None or max_turns > 0 else None
        self.args_type, self.args = args, None
        self._roles, self._metrics, self.tags = list(roles), list(metrics), list(tags)
        self.sampling = dict(sampling or {})
        self.deterministic = deterministic
        self._added: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []
        self._given_tools = [tool if isinstance(tool, Tool) else Tool(tool) for tool in tools]
        self._gather()

    # What a subclass may write.

    def setup_state(self, state: State) -> Any:
        """Before the first turn: sets up the state; messages that it returns are added to the prompt."""

    def env_response(self, messages: list[Message], state: State) -> Any:
        """Reacts to a turn of the model without tool calls: a text, messages, or a `Turn`.
        `Turn(stop=Stop("reason"))`, or `state["final_env_response"]`, ends the rollout."""
        raise NotImplementedError

    def is_completed(self, messages: list[Message], state: State) -> bool:
        """Whether the rollout is over; asked after each turn of the model and after each answer to it."""
        return False

    # Decorators.

    def tasks(
        self, split: str = "train", size: int | None = None, seed: int | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Makes a function of `index` (and `rng`, `seed`, `split`, `args`), or a generator function, a split's tasks.
        Without a size they have no end; with a `seed` of their own they are the same in every run."""

        def add(func: Callable[..., Any]) -> Callable[..., Any]:
            self.splits[split] = Rows(func, size, seed)
            return func

        return add

    def _add(self, kind: str, func: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
        def add(func: Callable[..., Any]) -> Callable[..., Any]:
            self._added.append((kind, func, options))
            self._gather()
            return func

        return add if func is None else add(func)

    def reward(self, func: Callable[..., Any] | None = None, *, weight: float = 1.0, name: str | None = None) -> Any:
        """Adds a line to the rubric; see `Rubric` for what it may name."""
        return self._add("reward", func, {"weight": weight, "name": name})

    def metric(self, func: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
        """Adds a number that is only watched."""
        return self._add("metric", func, {"name": name})

    def turn_reward(self, func: Callable[..., Any] | None = None) -> Any:
        """Adds credit for each turn of the model, asked after the environment's answer to it."""
        return self._add("turn_reward", func, {})

    def stop(self, func: Callable[..., Any] | None = None, *, truncated: bool = False, name: str | None = None) -> Any:
        """Ends the rollout where the function is true; its name is the reason."""
        return self._add("stop", func, {"truncated": truncated, "name": name})

    def tool(self, func: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
        """Offers a function to the model."""
        return self._add("tool", func, {"name": name})

    def setup(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Makes the function `setup_state`."""
        return self._add("setup", func, {})

    def reply(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Makes the function `env_response`, and the environment a multi-turn one."""
        return self._add("reply", func, {})

    # What came of it.

    def _gather(self) -> None:
        marked = []
        for name in dict.fromkeys(name for kind in reversed(type(self).__mro__) for name in vars(kind)):
            mark = getattr(getattr(type(self), name, None), _MARK, None)
            if mark:
                marked.append((mark[0], getattr(self, name), mark[1]))
        own = Rubric(parser=self.parser)
        self.tools: dict[str, Tool] = {tool.name: tool for tool in self._given_tools}
        self.stops: list[tuple[Function, Stop]] = []
        self.turn_rewards: list[Function] = []
        kind = type(self)
        self.on_setup = None if kind.setup_state is Environment.setup_state else Function(self.setup_state)
        self.on_completed = None if kind.is_completed is Environment.is_completed else Function(self.is_completed)
        self.on_reply = Function(self.env_response)
        replies = kind.env_response is not Environment.env_response
        for what, func, options in [*marked, *self._added]:
            if what == "reward":
                own.add_reward_func(func, options.get("weight", 1.0), options.get("name"))
            elif what == "metric":
                own.add_metric(func, name=options.get("name"))
            elif what == "turn_reward":
                self.turn_rewards.append(Function(func))
            elif what == "stop":
                function = Function(func, options.get("name"))
                self.stops.append((function, Stop(function.name, bool(options.get("truncated")))))
            elif what == "tool":
                made = Tool(func, options.get("name"))
                self.tools[made.name] = made
            elif what == "setup":
                self.on_setup = Function(func)
            elif what == "reply":
                self.on_reply, replies = Function(func), True
        self.replies = replies
        self.rubrics = [*parts(self._given), own]

    @property
    def goes_on(self) -> bool:
        """Whether a rollout may have more than one turn of the model."""
        return self.replies or bool(self.tools)

    @property
    def roles(self) -> list[str]:
        """Roles that `llm` may be asked for."""
        roles = [*self._roles, *(role for rubric in self.rubrics for role in rubric.roles)]
        return list(dict.fromkeys(roles))

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics."""
        return list(dict.fromkeys([*self._metrics, *(line.name for rubric in self.rubrics for line in rubric.metrics)]))

    def bound(self, args: Any) -> Environment:
        """The same environment with a run's arguments."""
        bound = copy.copy(self)
        bound.args = args
        bound._gather()
        return bound

    def named(self, module_name: str, doc: str | None, version: str) -> Environment:
        """Fills in what was not said of itself from the module it stands in."""
        self.name = self.name or module_name.rpartition(".")[2].replace("_", "-")
        self.version = self.version or version
        self.description = self.description or summary(doc) or self.name
        return self


class SingleTurnEnv(Environment):
    """One turn of the model, then the rubric."""


class MultiTurnEnv(Environment):
    """Turns of the model with `env_response` between them, until `is_completed`, a `stop`, or `max_turns`."""

    multi_turn = True


class ToolEnv(Environment):
    """The model may call tools, turn after turn; a turn without a call is its answer. At most `max_turns` (10)
    turns."""

    multi_turn = True

    def __init__(self, name: str | None = None, *rest: Any, max_turns: int | None = 10, **options: Any) -> None:
        super().__init__(name, *rest, max_turns=max_turns, **options)
