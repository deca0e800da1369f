"""The contract's calls, on Python values: what a component exports and what a test runs. Owns the checks on what an
author's module gives; must not know how values cross into the host."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from .definition import Definition
from .environment import Environment
from .errors import EnvError, InvalidConfig, InvalidState, InvalidTask, kind_of
from .messages import as_messages, system
from .names import bad_form
from .records import Context, Finished, Info, Score, Split, Task
from .rng import begin, stream
from .rollout import Rollout, number, short
from .rubric import Line, Rubric
from .state import State

_COLUMNS = {"prompt", "question", "answer", "info", "key", "id", "tags", "max_turns", "system_prompt"}


def _as_json(what: str, value: Any) -> Any:
    """A value as JSON gives it back. Raises `EnvError` where it cannot hold it."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise EnvError(f"{what} is no JSON: {error}") from None


class Engine:
    """An environment, before and after its arguments."""

    def __init__(self, definition: Definition, imports: Iterable[str] = ()) -> None:
        """`imports` are the services that the environment's code uses."""
        self.definition = definition
        self._imports = list(imports)
        # Made once, so that a component which is built from it starts with it.
        self._default = definition.make({})
        self._configured: Environment | None = None
        self._info = self._describe(self._default)

    def describe(self) -> Info:
        """What it is: with its defaults, or with the arguments it was given."""
        return self._info

    def _describe(self, environment: Environment) -> Info:
        lines = [line for rubric in environment.rubrics for line in rubric.lines]
        info = Info(
            name=environment.name or "",
            version=environment.version or "",
            description=environment.description or "",
            args_schema=self.definition.args_schema,
            splits=[Split(name, rows.size) for name, rows in environment.splits.items()],
            multi_turn=environment.goes_on,
            tools=bool(environment.tools),
            group_scoring=any(line.group for line in lines),
            deterministic=self._deterministic(environment),
            components=[line.component() for line in lines],
            metrics=environment.metrics,
            roles=environment.roles,
            tags=environment.tags,
        )
        place = environment.place
        reason = bad_form(info.name)
        if reason:
            raise EnvError(f"{reason}{place}")
        if not info.splits:
            raise EnvError(f"there are no tasks: give a `dataset`, or decorate a function with `tasks`{place}")
        if not lines:
            raise EnvError(f"there is no reward: give a `rubric`, or decorate a function with `reward`{place}")
        if environment.multi_turn and not environment.goes_on:
            raise EnvError(f"a multi-turn environment needs an `env_response`, or tools{place}")
        for what, names in (
            ("reward", [line.name for line in lines]),
            ("metric", info.metrics),
        ):
            twice = next((name for at, name in enumerate(names) if not name or name in names[:at]), None)
            if twice is not None:
                raise EnvError(f"the {what} `{twice}` is there twice or has no name; give one of them another `name`{place}")
        for line in lines:
            number("the weight of", line.name, line.weight, line.function.place or place)
        return info

    def _deterministic(self, environment: Environment) -> bool:
        """Whether it is, as it says or else by what it uses. Raises `EnvError` where the two do not go together."""
        outside = [service for service in self._imports if service in ("llm", "http")]
        if "llm" in outside and not environment.roles:
            raise EnvError(
                'it uses `prl_env.llm` and names no role: give the environment `roles=["judge"]`, with every name that '
                f"`llm.generate` is given, so that a run says which models they are{environment.place}"
            )
        if environment.deterministic and (outside or environment.roles):
            raise EnvError(
                f"it says `deterministic=True` and uses `prl_env.{(outside or ['llm'])[0]}`, whose answers differ from one "
                f"time to the next; leave `deterministic` out{environment.place}"
            )
        return not outside and not environment.roles if environment.deterministic is None else environment.deterministic

    def configure(self, args: Any) -> None:
        """Takes the run's arguments. Raises `InvalidConfig`."""
        if self._configured is not None:
            raise InvalidState("it is configured already")
        if not isinstance(args, Mapping):
            raise InvalidConfig("the arguments are not a JSON object")
        if not args:
            # Each rollout has an instance of its own, which had better start with what was made before the snapshot.
            self._configured = self._default
            return
        begin("configure", json.dumps(args, sort_keys=True))
        self._configured = self.definition.make(args)
        self._info = self._describe(self._configured)

    @property
    def environment(self) -> Environment:
        """The configured environment. Raises `InvalidState` before that."""
        if self._configured is None:
            raise InvalidState("`configure` comes first")
        return self._configured

    def get_task(self, split: str, index: int, seed: int) -> Task:
        """The task at `index` of `split`. Raises `InvalidTask`."""
        environment = self.environment
        rows = environment.splits.get(split)
        if rows is None:
            names = ", ".join(f"`{name}`" for name in environment.splits)
            raise InvalidTask(f"no split `{split}`; there are {names}{environment.place}")
        row = rows.row(split, index, seed, {"args": environment.args})
        if isinstance(row, str):
            row = {"question": row}
        elif dataclasses.is_dataclass(row) and not isinstance(row, type):
            row = dataclasses.asdict(row)
        place = rows.place
        if not isinstance(row, Mapping):
            raise EnvError(f"row {index} of `{split}` is {kind_of(row)}; give a dictionary or a text{place}")
        asked = row.get("prompt") or row.get("question")
        if not asked:
            there = ", ".join(f"`{name}`" for name in row) or "nothing"
            raise EnvError(
                f"row {index} of `{split}` has no `prompt` (messages) and no `question` (a text): it has {there}{place}"
            )
        try:
            prompt = as_messages(asked)
        except ValueError as error:
            raise EnvError(f"the prompt of row {index} of `{split}`: {error}{place}") from None
        instruction = row.get("system_prompt") or environment.system_prompt
        if not any(message["role"] == "system" for message in prompt):
            prompt = [*([system(instruction)] if instruction else []), *environment.few_shot, *prompt]
        key = row.get("key", row.get("id"))
        if key is None:
            key = f"{split}/{seed}/{index}" if rows.seeded else f"{split}/{index}"
        single = None if environment.goes_on else 1
        payload = {
            "info": row.get("info") or {},
            "row": {name: value for name, value in row.items() if name not in _COLUMNS},
        }
        return Task(
            split=split,
            index=index,
            seed=seed,
            key=str(key),
            prompt=prompt,
            tools=[tool.definition for tool in environment.tools.values()],
            answer=_as_json(f"`answer` of row {index} of `{split}`", row.get("answer")),
            payload=_as_json(f"`info` or another column of row {index} of `{split}`", payload),
            max_turns=row.get("max_turns") or environment.max_turns or single,
            tags=[str(tag) for tag in row.get("tags") or []],
        )

    def open(self, task: Task, context: Context) -> Rollout:
        """Begins a rollout. Raises `InvalidTask` for a task of another environment."""
        if not isinstance(task.payload, dict):
            raise InvalidTask("the task's payload is not of this environment")
        return Rollout(self.environment, task, context)

    def score_group(self, task: Task, members: list[Finished]) -> list[Score]:
        """Scores a whole group: the members' own lines, and those that look at all of them. Raises `EnvError`."""
        environment = self.environment
        begin("group", task.seed, task.index)
        scores = [Score(dict(m.score.components), dict(m.score.metrics), m.score.info) for m in members]
        states = [self._state(task, member) for member in members]
        rng = stream("group", task.seed, task.index)
        for rubric in environment.rubrics:
            for line in rubric.lines:
                if line.group:
                    known = {**self._group(environment, task, members, states), "rng": rng, **rubric.objects()}
                    for score, value in zip(scores, self._values(line, rubric, known, len(members))):
                        score.components[line.name] = value
        return scores

    def _values(self, line: Line, rubric: Rubric, known: dict[str, Any], count: int) -> list[float]:
        given, place = line.function(known), line.function.place
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise EnvError(f"group reward `{line.name}` gave {short(given)}; return a list of {count} numbers{place}")
        values = list(given)
        if len(values) != count:
            raise EnvError(f"group reward `{line.name}` gave {len(values)} values for {count} members{place}")
        return [number("group reward", line.name, value, place) for value in values]

    def _group(
        self, environment: Environment, task: Task, members: list[Finished], states: list[State]
    ) -> dict[str, Any]:
        return {
            "prompts": [state["prompt"] for state in states],
            "completions": [state["completion"] for state in states],
            "answers": [state["answer"] for state in states],
            "infos": [state["info"] for state in states],
            "tasks": [task] * len(members),
            "states": states,
            "members": members,
            "task": task,
            "parser": environment.parser,
            "args": environment.args,
        }

    def _state(self, task: Task, member: Finished) -> State:
        """What is left of a member's state: the rollout may have run elsewhere. Its `trace` came along."""
        state = Rollout(self.environment, task, member.context).state
        # What `setup_state` added to the prompt counts as completion, as it did while the rollout ran.
        state["completion"] = list(member.messages[len(task.prompt) :])
        state["trajectory"] = [{"completion": [m]} for m in state["completion"] if m["role"] == "assistant"]
        state.update(
            turn=len(state["trajectory"]),
            truncated=member.truncated,
            is_completed=True,
            is_truncated=member.truncated is not None,
            reward=member.reward,
            metrics={**member.score.metrics, **member.score.components},
            trace=member.score.info,
        )
        return state
