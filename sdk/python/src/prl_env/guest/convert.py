"""Between the bindings' records and ours. Owns both directions; texts that leave hold no half surrogates, which UTF-8
has not."""

from __future__ import annotations

import json
from typing import Any

from wit_world.exports import environment as wit
from wit_world.imports import types as wit_types

from ..errors import EnvError, InvalidTask, error
from ..messages import Message, ToolCall
from ..records import Completion, Context, Finished, Info, Score, Task, ToolDef, Turn

_ROLES = {"system": wit_types.Role.SYSTEM, "user": wit_types.Role.USER, "assistant": wit_types.Role.ASSISTANT,
          "tool": wit_types.Role.TOOL}  # fmt: skip
_ROLE_NAMES = {role: name for name, role in _ROLES.items()}
_FINISH = {wit.FinishReason.STOP: "stop", wit.FinishReason.LENGTH: "length", wit.FinishReason.TOOL_CALLS: "tool-calls",
           wit.FinishReason.CONTENT_FILTER: "content-filter"}  # fmt: skip


def text(value: Any) -> str:
    """A text that UTF-8 can hold."""
    value = str(value)
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def json_out(value: Any) -> str:
    """JSON text. Raises `EnvError` for what it cannot hold."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise EnvError(f"a value handed to the host is no JSON: {problem}") from None


def _json_in(value: str, what: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as problem:
        raise InvalidTask(f"{what} is no JSON: {problem}") from None


def error_out(problem: EnvError) -> wit_types.Error:
    code = wit_types.ErrorCode[problem.code.replace("-", "_").upper()]
    return wit_types.Error(code, text(problem.message)[:20_000], bool(problem.retryable))


def error_in(problem: wit_types.Error) -> EnvError:
    return error(problem.code.name.lower().replace("_", "-"), problem.message, problem.retryable)


def _part_out(part: dict[str, Any]) -> Any:
    kind = part["type"]
    if kind == "text":
        return wit_types.ContentPart_Text(text(part["text"]))
    if kind == "image_url":
        url = part["image_url"]
        url = url if isinstance(url, str) else url["url"]
        mime = url[5:].partition(";")[0] if url.startswith("data:") else "image/*"
        return wit_types.ContentPart_Image(wit_types.Media(mime, wit_types.MediaSource_Url(text(url))))
    return wit_types.ContentPart_Other(json_out(part))


def _part_in(part: Any) -> dict[str, Any]:
    if isinstance(part, wit_types.ContentPart_Text):
        return {"type": "text", "text": part.value}
    if isinstance(part, wit_types.ContentPart_Other):
        return json.loads(part.value)
    kind = type(part).__name__.rpartition("_")[2].lower()
    source = part.value.source
    return {"type": kind, "mime": part.value.mime, type(source).__name__.rpartition("_")[2].lower(): source.value}


def message_out(message: Message) -> wit_types.Message:
    content = message["content"]
    if isinstance(content, str):
        parts = [wit_types.ContentPart_Text(text(content))] if content else []
    else:
        parts = [_part_out(part) for part in content]
    calls = message.get("tool_calls") or []
    optional = {
        key: None if message.get(key) is None else text(message[key]) for key in ("reasoning", "tool_call_id", "name")
    }
    return wit_types.Message(
        role=_ROLES[message["role"]],
        content=parts,
        tool_calls=[wit_types.ToolCall(text(c["id"]), text(c["name"]), text(c["arguments"])) for c in calls],
        **optional,
    )


def message_in(message: wit_types.Message) -> Message:
    parts = message.content
    if all(isinstance(part, wit_types.ContentPart_Text) for part in parts):
        content: Any = "".join([part.value for part in parts])
    else:
        content = [_part_in(part) for part in parts]
    made = Message(role=_ROLE_NAMES[message.role], content=content)
    if message.reasoning is not None:
        made["reasoning"] = message.reasoning
    if message.tool_calls:
        made["tool_calls"] = [ToolCall(id=c.id, name=c.name, arguments=c.arguments) for c in message.tool_calls]
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        made["name"] = message.name
    return made


def tool_out(tool: ToolDef) -> wit_types.ToolDef:
    return wit_types.ToolDef(text(tool.name), text(tool.description), json_out(tool.parameters), tool.strict)


def tool_in(tool: wit_types.ToolDef) -> ToolDef:
    return ToolDef(tool.name, tool.description, _json_in(tool.parameters, "a tool's schema"), tool.strict)


def _values(values: dict[str, float]) -> list[wit_types.NamedValue]:
    return [wit_types.NamedValue(name, float(value)) for name, value in values.items()]


def info_out(info: Info) -> wit.Info:
    features = wit.Features(0)
    for flag, on in (
        (wit.Features.MULTI_TURN, info.multi_turn),
        (wit.Features.TOOLS, info.tools),
        (wit.Features.GROUP_SCORING, info.group_scoring),
        (wit.Features.DETERMINISTIC, info.deterministic),
    ):
        features |= flag if on else wit.Features(0)
    return wit.Info(
        name=text(info.name),
        version=text(info.version),
        description=text(info.description),
        args_schema=json_out(info.args_schema),
        splits=[wit.Split(split.name, split.size) for split in info.splits],
        features=features,
        components=[wit.Component(line.name, line.weight, text(line.description)) for line in info.components],
        metrics=info.metrics,
        roles=info.roles,
        tags=[text(tag) for tag in info.tags],
    )


def task_out(task: Task) -> wit.Task:
    return wit.Task(
        split=task.split,
        index=task.index,
        seed=task.seed,
        key=text(task.key),
        prompt=[message_out(message) for message in task.prompt],
        tools=[tool_out(tool) for tool in task.tools],
        answer=None if task.answer is None else json_out(task.answer),
        payload=json_out(task.payload),
        max_turns=task.max_turns,
        tags=[text(tag) for tag in task.tags],
    )


def task_in(task: wit.Task) -> Task:
    return Task(
        split=task.split,
        index=task.index,
        seed=task.seed,
        key=task.key,
        prompt=[message_in(message) for message in task.prompt],
        tools=[tool_in(tool) for tool in task.tools],
        answer=None if task.answer is None else _json_in(task.answer, "the task's answer"),
        payload=_json_in(task.payload, "the task's payload"),
        max_turns=task.max_turns,
        tags=task.tags,
    )


def context_in(context: wit.RolloutContext) -> Context:
    return Context(context.id, context.seed, context.member, context.group_size, context.step, context.eval)


def completion_in(given: wit.Completion) -> Completion:
    return Completion(
        message_in(given.message),
        _FINISH[given.finish_reason],
        given.completion_tokens,
        given.context_left,
        given.turns_left,
    )


def turn_out(turn: Turn) -> wit.Turn:
    stop = None
    if turn.stop is not None:
        kind = wit.StopKind.TRUNCATED if turn.stop.truncated else wit.StopKind.TERMINATED
        stop = wit.Stop(kind, text(turn.stop.reason))
    return wit.Turn(
        messages=[message_out(message) for message in turn.messages],
        reward=turn.reward,
        stop=stop,
        tools=None if turn.tools is None else [tool_out(tool) for tool in turn.tools],
        metrics=_values(turn.metrics),
        sampling=None if not turn.sampling else json_out(turn.sampling),
    )


def score_out(score: Score) -> wit_types.Score:
    return wit_types.Score(
        _values(score.components), _values(score.metrics), None if score.info is None else json_out(score.info)
    )


def finished_in(member: wit.Finished) -> Finished:
    score = Score(
        {value.name: value.value for value in member.score.components},
        {value.name: value.value for value in member.score.metrics},
        None if member.score.info is None else _json_in(member.score.info, "a score's info"),
    )
    messages = [message_in(message) for message in member.messages]
    return Finished(context_in(member.context), messages, member.truncated, score, member.reward)
