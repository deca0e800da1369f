"""Runs an environment natively, without a component and without a host. Owns the same checks on what it gives that a
host makes, so that what passes here is not refused there.

    from prl_env.testing import Harness

    def test_right_answers_are_rewarded():
        harness = Harness("sums")                    # a folder, a file, or the imported module
        task = harness.task("train", 0)
        assert harness.answer(task, task.answer).reward == 1.0
        harness.conforms()
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from . import project, services
from .contents import services_of
from .definition import find
from .engine import Engine
from .errors import Denied, EnvError, NotFound, Unsupported
from .messages import Message, as_message, as_messages, assistant, calling
from .records import Completion, Context, Finished, Info, Score, Task, ToolDef, Turn
from .rollout import Rollout
from .watch import Watch, deadline

MAX_TURNS = 100
"""Turns after which a rollout is cut off where the task sets no bound."""
LOAD_TIMEOUT = 30.0
"""Seconds that it may take to import an environment and to make it."""
MAX_VALUE = 1e9
"""Largest magnitude of a reward or a metric."""
_REASON = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")

Model = Callable[[list[Message]], Any]
"""Shown the conversation, gives the next assistant message, or its text."""


class Refused(AssertionError):
    """A host would refuse this."""


@dataclass
class Played:
    """A rollout from its start to its score."""

    messages: list[Message]
    turns: list[Turn] = field(default_factory=list)
    score: Score = field(default_factory=Score)
    reward: float = 0.0
    """Values times weights, plus the rewards of turns."""
    stop: str | None = None
    truncated: str | None = None

    def value(self, name: str) -> float:
        """The line of the rubric, or the metric, of this name. Raises `KeyError`."""
        return {**self.score.metrics, **self.score.components}[name]

    def finished(self, context: Context) -> Finished:
        """As a member of a group."""
        return Finished(context, self.messages, self.truncated, self.score, self.reward)


_NONE = (
    "it asks the service `{0}`, and nothing stands in for it here; give one: `Harness(..., services=Services({0}=...))` in "
    "a test, `--services FILE.py:NAME` to prl_env.check"
)


class Services:
    """Stands in for the host's services; give what the environment uses. `llm` is called with a `Request` and gives a
    text, a message, or raises; `assets` is a folder; `http` is called with method, URL, headers and body."""

    def __init__(
        self,
        llm: Callable[[services.Request], Any] | None = None,
        assets: str | Path | None = None,
        http: Callable[..., services.HttpResponse] | None = None,
        kv: dict[str, bytes] | None = None,
    ) -> None:
        self._llm, self._assets, self._http = llm, None if assets is None else Path(assets), http
        self._kv = {} if kv is None else kv
        self.lines: list[tuple[str, str]] = []
        self.roles: list[str] | None = None
        """Roles that the environment says it asks; `None` before it said so."""

    def log(self, level: str, message: str, fields: list[tuple[str, str]]) -> None:
        self.lines.append((level, message))

    def generate(self, requests: list[services.Request]) -> list[Any]:
        if self._llm is None:
            raise Unsupported(_NONE.format("llm"))
        answers: list[Any] = []
        for request in requests:
            if self.roles is not None and request.role not in self.roles:
                known = ", ".join(f"`{role}`" for role in self.roles) or "none"
                told = f"no model has the role `{request.role}`; there are {known}: name it in the environment's `roles`"
                answers.append(Denied(told))
                continue
            try:
                said = self._llm(request)
                answers.append(assistant(said) if isinstance(said, str) else as_message(said))
            except EnvError as error:
                answers.append(error)
        return answers

    def assets(self) -> dict[str, int]:
        if self._assets is None:
            raise Unsupported(_NONE.format("assets"))
        files = sorted(path for path in self._assets.rglob("*") if path.is_file())
        return {path.relative_to(self._assets).as_posix(): path.stat().st_size for path in files}

    def read(self, name: str, offset: int, length: int) -> bytes:
        if name not in self.assets():
            raise NotFound(f"no asset `{name}`")
        assert self._assets is not None
        return (self._assets / name).read_bytes()[offset : offset + length]

    def get(self, key: str) -> bytes | None:
        return self._kv.get(key)

    def set(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._kv.pop(key, None)
        else:
            self._kv[key] = value

    def fetch(self, method: str, url: str, headers: Any, body: bytes | None, timeout_ms: int) -> services.HttpResponse:
        if self._http is None:
            raise Unsupported(_NONE.format("http"))
        return self._http(method, url, headers, body)


def _same(value: Any) -> Any:
    """As JSON would carry it."""
    return json.loads(json.dumps(value, allow_nan=False))


class Harness:
    """A configured environment. `given` is its folder, its file, or its imported module. Raises what the environment
    raises, `Refused` where a host would not take what it gives, and `watch.Hung` where a call takes longer than
    `call_timeout` seconds. `services` stands in for the host's."""

    def __init__(
        self,
        given: Any,
        args: Mapping[str, Any] | None = None,
        services: Services | None = None,
        call_timeout: float = 10.0,
    ) -> None:
        self._args = dict(args or {})
        self._services = services or Services()
        self._call_timeout = call_timeout
        whole = not isinstance(given, ModuleType)
        found = project.find(given) if whole else project.around(given)
        self._watch = None if found is None else Watch(found)
        # Around a module there may be anything.
        self._imports = [] if found is None else services_of(found, None if whole else [found.file])
        with self._calling(late=False):
            self._given = project.load(given)
            self.engine = Engine(find(self._given), self._imports)
            self._check_info(self.engine.describe())
            self.engine.configure(_same(self._args))
            self._check_info(self.engine.describe())

    @contextlib.contextmanager
    def _calling(self, late: bool = True) -> Iterator[None]:
        """Around a call into the environment: what a host lends it, and what no component has."""
        before = services.serve(self._services)
        # A rollout asks only those; while it is made, it has not said yet.
        self._services.roles = self.info.roles if late else None
        limit = self._call_timeout if late else max(self._call_timeout, LOAD_TIMEOUT)
        try:
            with self._watch.on(late) if self._watch else contextlib.nullcontext(), deadline(limit, self._watch):
                yield
        finally:
            services.serve(before)

    @property
    def module(self) -> ModuleType:
        """The environment's module."""
        return self._given

    @property
    def info(self) -> Info:
        """What it says about itself."""
        return self.engine.describe()

    @property
    def log(self) -> list[tuple[str, str]]:
        """Levels and texts of what it logged."""
        return self._services.lines

    def task(self, split: str = "train", index: int = 0, seed: int = 0) -> Task:
        """A task, as a host would hand it on."""
        with self._calling():
            task = self.engine.get_task(split, index, seed)
        self._check_messages(task.prompt)
        self._check_tools(task.tools)
        if not task.key:
            raise Refused("a task needs a key")
        return replace(task, answer=_same(task.answer), payload=_same(task.payload))

    def open(self, task: Task, context: Context | None = None) -> Rollout:
        """A rollout, to be driven by hand."""
        with self._calling():
            return self.engine.open(task, context or Context(seed=1))

    def play(self, task: Task, model: Model, context: Context | None = None, max_turns: int | None = None) -> Played:
        """Plays `task` with `model`, to its score."""
        rollout = self.open(task, context)
        most = min(filter(None, (max_turns, task.max_turns, MAX_TURNS)))
        played = Played(list(task.prompt))
        with self._calling():
            turn = rollout.start()
        self._check_turn(turn, None)
        taken = 0
        while True:
            played.messages.extend(turn.messages)
            played.reward += turn.reward or 0.0
            played.turns.append(turn)
            if turn.stop is not None:
                played.stop = turn.stop.reason
                played.truncated = turn.stop.reason if turn.stop.truncated else None
                break
            if taken == most:
                played.truncated = "max_turns"
                break
            said = model(list(played.messages))
            said = assistant(said) if isinstance(said, str) else as_message(said)
            played.messages.append(said)
            taken += 1
            reason = "tool-calls" if said.tool_calls else "stop"
            with self._calling():
                turn = rollout.step(Completion(said, reason, 1, None, most - taken))
            self._check_turn(turn, said)
        with self._calling():
            played.score = rollout.score(played.truncated)
        self._check_score(played.score)
        played.reward += self._weighted(played.score)
        return played

    def answer(self, task: Task, said: Any, context: Context | None = None) -> Played:
        """Plays `task` with the same message in every turn."""
        return self.play(task, lambda _: said, context)

    def script(self, task: Task, turns: Iterable[Any], context: Context | None = None) -> Played:
        """Plays `task` with these turns, the last of them again where it wants more."""
        left = list(turns)
        return self.play(task, lambda _: left.pop(0) if len(left) > 1 else left[0] if left else "", context)

    def group(self, task: Task, members: list[Played]) -> list[tuple[Score, float]]:
        """Scores members of a group together: their scores and total rewards."""
        if not self.info.group_scoring:
            return [(member.score, member.reward) for member in members]
        contexts = [Context(f"0.{at}", at, at, len(members)) for at in range(len(members))]
        with self._calling():
            finished = [member.finished(context) for member, context in zip(members, contexts)]
            scores = self.engine.score_group(task, finished)
        worth = []
        for score, member in zip(scores, members, strict=True):
            self._check_score(score)
            turns = sum(turn.reward or 0.0 for turn in member.turns)
            worth.append((score, turns + self._weighted(score)))
        return worth

    def conforms(self, tasks: int = 5) -> int:
        """Looks at all rows of lists, and plays the first tasks of each split with a few answers, right and hostile ones, twice in two instances:
        everything must pass the checks and, where the environment claims to be deterministic, come out the same.
        Gives the number of rollouts."""
        with self._calling(late=False):
            copy = project.again(self._given)
        other = Harness(copy, self._args, self._services, self._call_timeout)
        count = 0
        for split, rows in self.engine.environment.splits.items():
            for index in range((rows.size or 0) if rows.listed else 0):
                self.task(split, index, 1)
        for split in self.info.splits:
            for index in range(tasks if split.size is None else min(tasks, split.size)):
                task = self.task(split.name, index, 1)
                other.task(split.name, index + 1 if split.size is None else (index + 1) % split.size, 2)
                if asdict(task) != asdict(other.task(split.name, index, 1)):
                    raise Refused(f"task {index} of `{split.name}` differs between two instances")
                for said in hostile(task):
                    left, right = self.answer(task, said), other.answer(task, said)
                    count += 1
                    if self.info.deterministic and asdict(left) != asdict(right):
                        raise Refused(f"task `{task.key}`: two instances play it differently with {said!r}")
                group = [self.answer(task, said) for said in hostile(task)[:3]]
                if self.info.deterministic and _groups(self, task, group) != _groups(other, task, group):
                    raise Refused(f"task `{task.key}`: two instances score a group differently")
        if self._watch is not None and self._watch.found:
            raise Refused(self._watch.found[0])
        return count

    def _weighted(self, score: Score) -> float:
        weights = {line.name: line.weight for line in self.info.components}
        return sum(value * weights[name] for name, value in score.components.items())

    def _check_info(self, info: Info) -> None:
        _same(info.args_schema)
        for what, names in (
            ("split", [split.name for split in info.splits]),
            ("reward", [line.name for line in info.components]),
            ("metric", info.metrics),
            ("role", info.roles),
        ):
            if len(set(names)) < len(names) or not all(names):
                raise Refused(f"the {what} names {names} are empty or not different")
        if info.name in ("", None) or not info.version:
            raise Refused("it needs a name and a version")

    def _check_tools(self, tools: list[ToolDef]) -> None:
        if tools and not self.info.tools:
            raise Refused("it offers tools, which its description does not say")
        for tool in tools:
            _same(tool.parameters)

    def _check_messages(self, messages: list[Message]) -> None:
        if messages != as_messages(_same(messages)):
            raise Refused("a message is not JSON")

    def _check_values(self, what: str, values: Mapping[str, float], declared: Iterable[str]) -> None:
        for name, value in values.items():
            if name not in declared:
                raise Refused(f"{what} `{name}` is not in its description")
            if not math.isfinite(value) or abs(value) > MAX_VALUE:
                raise Refused(f"{what} `{name}` is {value}")

    def _check_turn(self, turn: Turn, said: Message | None) -> None:
        self._check_messages(turn.messages)
        if turn.reward is not None:
            self._check_values("the reward of", {"turn": turn.reward}, ["turn"])
        if turn.stop is not None:
            reason = turn.stop.reason
            if not 1 <= len(reason) <= 64 or not set(reason) <= _REASON:
                raise Refused(f"the stop reason {reason!r} is not 1 to 64 of the characters a-z A-Z 0-9 _ - .")
        elif said is not None:
            if not self.info.multi_turn:
                raise Refused("it goes on after a turn, but is not a multi-turn environment")
            if not turn.messages:
                raise Refused("a turn that goes on needs at least one message")
        calls = {call["id"] for call in (said and said.tool_calls) or []}
        for message in turn.messages:
            if message["role"] == "tool" and message.tool_call_id not in calls:
                raise Refused(f"a tool result answers {message.tool_call_id!r}, which the turn did not call")
        self._check_tools(turn.tools or [])
        _same(turn.sampling)
        if set(turn.sampling or {}) - {"max_tokens", "stop"}:
            raise Refused("hints for sampling are `max_tokens` and `stop`")
        self._check_values("metric", turn.metrics, self.info.metrics)

    def _check_score(self, score: Score) -> None:
        self._check_values("reward", score.components, [line.name for line in self.info.components])
        self._check_values("metric", score.metrics, self.info.metrics)
        _same(score.info)


def _groups(harness: Harness, task: Task, members: list[Played]) -> list[Any]:
    return [(asdict(score), reward) for score, reward in harness.group(task, members)]


def hostile(task: Task) -> list[Message]:
    """Assistant messages that an environment must bear: the reference answer, nothing, junk, tool calls whole and
    broken."""
    name = task.tools[0].name if task.tools else "no_such_tool"
    right = task.answer if isinstance(task.answer, str) else json.dumps(task.answer)
    texts = (right, "", "\ufffd<<<\0</answer><answer>[", "<think>" * 50 + "\\boxed{" * 50)
    calls = ("{}", '{"cut": "of', '{"a": 1, "a": 2}', "[" * 5000, '{"a": "\\ud800"}', "NaN", "9" * 5000)
    return [*(assistant(text) for text in texts), *(calling(name, call) for call in calls)]
