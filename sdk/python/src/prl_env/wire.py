"""The contract's records as JSON, as an environment over HTTP speaks it. Owns both directions and what a request lacks;
must not know who asks. Not part of a component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import InvalidTask, Unsupported
from .messages import Message, as_message
from .records import Completion, Context, Finished, Info, Score, Task, ToolDef, Turn

_FEATURES = ("multi_turn", "tools", "group_scoring", "deterministic")


class BadRequest(Unsupported):
    """The request is not of the protocol."""


def reading(what: str, read: Callable[[], Any]) -> Any:
    """What `read` gives. Raises `BadRequest` where the request is not of the protocol."""
    try:
        return read()
    except KeyError as error:
        raise BadRequest(f"{what} lacks `{error.args[0]}`") from None
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadRequest(f"{what} is not of the protocol: {error}") from None


def text(value: Any, name: str) -> str:
    """A text. Raises `TypeError`."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` is {value!r:.80}, no text")
    return value


def texts(value: Any, name: str) -> list[str]:
    """A list of texts. Raises `TypeError`."""
    return [text(each, name) for each in listed(value, name)]


def listed(value: Any, name: str) -> list[Any]:
    """A list. Raises `TypeError`."""
    if not isinstance(value, list):
        raise TypeError(f"`{name}` is {value!r:.80}, no list")
    return value


def object_of(value: Any, name: str, keys: frozenset[str]) -> dict[str, Any]:
    """An object with none but these keys. Raises `TypeError`."""
    if not isinstance(value, dict):
        raise TypeError(f"`{name}` is {value!r:.80}, no object")
    unknown = next((key for key in value if key not in keys), None)
    if unknown is not None:
        raise TypeError(f"`{name}` has a key {unknown!r:.80}, which there is not")
    return value


def whole(value: Any, name: str) -> int:
    """A whole number that is not negative. Raises `TypeError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"`{name}` is {value!r:.80}, no whole number")
    if value >= 2**64:
        raise TypeError(f"`{name}` is {value!r:.80}, above 2^64 - 1")
    return value


def optional(value: Any, name: str, read: Callable[[Any, str], Any]) -> Any:
    """What `read` makes of it, or nothing of nothing."""
    return None if value is None else read(value, name)


def given_args(given: Any) -> Any:
    """The arguments."""
    return reading("the request", lambda: given["args"])


def given_truncated(given: Any) -> str | None:
    """Why a rollout was cut off."""
    return reading("the request", lambda: optional(given["truncated"], "truncated", text))


def given_turn(given: Any) -> Completion:
    """A turn."""
    return reading("the turn", lambda: completion_in(given))


def _configuration(given: Any) -> str:
    return text(given["configuration"], "configuration")


def task_asked(given: Any) -> tuple[Any, str, int, int]:
    """Configuration, split, index and seed."""
    numbers = lambda: (whole(given["index"], "index"), whole(given["seed"], "seed"))
    return reading("the request", lambda: (_configuration(given), text(given["split"], "split"), *numbers()))


def open_asked(given: Any) -> tuple[Any, Task, Context]:
    """Configuration, task and context."""
    return reading(
        "the request", lambda: (_configuration(given), task_in(given["task"]), context_in(given["context"]))
    )


def group_asked(given: Any) -> tuple[Any, Task, list[Finished]]:
    """Configuration, task and members."""
    members = lambda: [finished_in(member) for member in listed(given["members"], "members")]
    return reading("the request", lambda: (_configuration(given), task_in(given["task"]), members()))


def info_out(info: Info) -> dict[str, Any]:
    return {
        "name": info.name,
        "version": info.version,
        "description": info.description,
        "args_schema": info.args_schema,
        "splits": [{"name": split.name, "size": split.size} for split in info.splits],
        "features": [name for name in _FEATURES if getattr(info, name)],
        "components": [
            {"name": line.name, "weight": line.weight, "description": line.description} for line in info.components
        ],
        "metrics": list(info.metrics),
        "tags": [str(tag) for tag in info.tags],
    }


def _message_out(message: Message) -> dict[str, Any]:
    made = {"role": message["role"], "content": message["content"]}
    for key in ("reasoning", "tool_call_id", "name"):
        if message.get(key) is not None:
            made[key] = str(message[key])
    calls = message.get("tool_calls") or []
    if calls:
        made["tool_calls"] = [
            {"id": str(call["id"]), "name": str(call["name"]), "arguments": str(call["arguments"])} for call in calls
        ]
    return made


def _tool_out(tool: ToolDef) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def task_out(task: Task) -> dict[str, Any]:
    return {
        "split": task.split,
        "index": task.index,
        "seed": task.seed,
        "key": task.key,
        "prompt": [_message_out(message) for message in task.prompt],
        "tools": [_tool_out(tool) for tool in task.tools],
        "answer": task.answer,
        "payload": task.payload,
        "max_turns": task.max_turns,
        "tags": list(task.tags),
    }


_TASK = frozenset(("split", "index", "seed", "key", "prompt", "tools", "answer", "payload", "max_turns", "tags"))


def message_in(given: Any) -> Message:
    """A message, whose texts are texts."""
    if not isinstance(given, dict):
        raise TypeError(f"a message is {given!r:.80}, no object")
    message = as_message(given)
    if not isinstance(message["content"], str):
        for part in message["content"]:
            if part["type"] == "text":
                text(part.get("text"), "text")
    return message


def task_in(given: Any) -> Task:
    try:
        given = object_of(given, "task", _TASK)
        return Task(
            split=text(given["split"], "split"),
            index=whole(given["index"], "index"),
            seed=whole(given["seed"], "seed"),
            key=text(given["key"], "key"),
            prompt=[message_in(message) for message in listed(given["prompt"], "prompt")],
            tools=[
                ToolDef(tool["name"], tool["description"], tool["parameters"], tool["strict"])
                for tool in listed(given["tools"], "tools")
            ],
            answer=given.get("answer"),
            payload=given["payload"],
            max_turns=optional(given.get("max_turns"), "max_turns", whole),
            tags=texts(given["tags"], "tags"),
        )
    except KeyError as error:
        raise InvalidTask(f"the task lacks `{error.args[0]}`") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidTask(f"the task is not of the protocol: {error}") from None


def context_in(given: Any) -> Context:
    return Context(
        id=str(given["id"]),
        seed=whole(given["seed"], "seed"),
        member=whole(given["member"], "member"),
        group_size=whole(given["group_size"], "group_size"),
        step=whole(given["step"], "step"),
        eval=bool(given["eval"]),
    )


def completion_in(given: Any) -> Completion:
    return Completion(
        message=message_in(given["message"]),
        finish_reason=text(given["finish_reason"], "finish_reason").replace("_", "-"),
        completion_tokens=whole(given["completion_tokens"], "completion_tokens"),
        context_left=optional(given.get("context_left"), "context_left", whole),
        turns_left=optional(given.get("turns_left"), "turns_left", whole),
    )


def _values_out(values: dict[str, float]) -> list[dict[str, Any]]:
    return [{"name": name, "value": float(value)} for name, value in values.items()]


def turn_out(turn: Turn) -> dict[str, Any]:
    stop = None
    if turn.stop is not None:
        stop = {"kind": "truncated" if turn.stop.truncated else "terminated", "reason": str(turn.stop.reason)}
    return {
        "messages": [_message_out(message) for message in turn.messages],
        "reward": turn.reward,
        "stop": stop,
        "tools": None if turn.tools is None else [_tool_out(tool) for tool in turn.tools],
        "metrics": _values_out(turn.metrics),
        "sampling": turn.sampling or None,
    }


def score_out(score: Score) -> dict[str, Any]:
    return {
        "components": _values_out(score.components),
        "metrics": _values_out(score.metrics),
        "info": score.info,
    }


def finished_in(given: Any) -> Finished:
    score = given["score"]
    return Finished(
        context=context_in(given["context"]),
        messages=[message_in(message) for message in listed(given["messages"], "messages")],
        truncated=optional(given.get("truncated"), "truncated", text),
        score=Score(
            {line["name"]: float(line["value"]) for line in score["components"]},
            {line["name"]: float(line["value"]) for line in score["metrics"]},
            score.get("info"),
        ),
        reward=float(given["reward"]),
    )
