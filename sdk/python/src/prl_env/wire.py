"""The contract's records as JSON, as an environment over HTTP speaks it. Owns both directions and what a request lacks;
must not know who asks. Not part of a component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import InvalidTask, Unsupported
from .messages import Message, as_message
from .records import Completion, Context, Finished, Info, Score, Task, ToolDef, Turn

_FEATURES = ("multi_turn", "tools", "group_scoring", "deterministic")


def reading(what: str, read: Callable[[], Any]) -> Any:
    """What `read` gives. Raises `Unsupported` where the request is not of the protocol."""
    try:
        return read()
    except KeyError as error:
        raise Unsupported(f"{what} lacks `{error.args[0]}`") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise Unsupported(f"{what} is not of the protocol: {error}") from None


def whole(value: Any, name: str) -> int:
    """A whole number that is not negative. Raises `TypeError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"`{name}` is {value!r}, no whole number")
    return value


def task_asked(given: Any) -> tuple[Any, str, int, int]:
    """Configuration, split, index and seed."""
    numbers = lambda: (whole(given["index"], "index"), whole(given["seed"], "seed"))
    return reading("the request", lambda: (given["configuration"], str(given["split"]), *numbers()))


def open_asked(given: Any) -> tuple[Any, Task, Context]:
    """Configuration, task and context."""
    return reading(
        "the request", lambda: (given["configuration"], task_in(given["task"]), context_in(given["context"]))
    )


def group_asked(given: Any) -> tuple[Any, Task, list[Finished]]:
    """Configuration, task and members."""
    members = lambda: [finished_in(member) for member in given["members"]]
    return reading("the request", lambda: (given["configuration"], task_in(given["task"]), members()))


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


def task_in(given: Any) -> Task:
    try:
        return Task(
            split=given["split"],
            index=whole(given["index"], "index"),
            seed=whole(given["seed"], "seed"),
            key=given["key"],
            prompt=[as_message(message) for message in given["prompt"]],
            tools=[
                ToolDef(tool["name"], tool["description"], tool["parameters"], tool["strict"])
                for tool in given["tools"]
            ],
            answer=given.get("answer"),
            payload=given["payload"],
            max_turns=given.get("max_turns"),
            tags=list(given["tags"]),
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
        message=as_message(given["message"]),
        finish_reason=str(given["finish_reason"]).replace("_", "-"),
        completion_tokens=whole(given["completion_tokens"], "completion_tokens"),
        context_left=given.get("context_left"),
        turns_left=given.get("turns_left"),
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
        messages=[as_message(message) for message in given["messages"]],
        truncated=given.get("truncated"),
        score=Score(
            {line["name"]: float(line["value"]) for line in score["components"]},
            {line["name"]: float(line["value"]) for line in score["metrics"]},
            score.get("info"),
        ),
        reward=float(given["reward"]),
    )
