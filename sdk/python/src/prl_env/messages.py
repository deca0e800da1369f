"""Chat messages as plain dictionaries in OpenAI's shape, with attributes for those who prefer them. Owns how an
author's shorthand (a text, one message, a list) becomes messages; must not know how they cross into the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

ROLES = ("system", "user", "assistant", "tool")


class _Attributes(dict):
    """A dictionary whose keys are attributes too; a key that is not there is `None` as an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class ToolCall(_Attributes):
    """`id`, `name`, and `arguments`: exactly the text that the model wrote, which may be no JSON at all."""


class Message(_Attributes):
    """`role` and `content` (a text, or OpenAI content parts); perhaps `reasoning`, `tool_calls`, `tool_call_id`,
    `name`."""

    @property
    def text(self) -> str:
        """All text of the content."""
        return text_of(self)


def text_of(message: Mapping[str, Any]) -> str:
    """All text of a message's content."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def system(content: Any) -> Message:
    """A system message."""
    return Message(role="system", content=content)


def user(content: Any) -> Message:
    """A user message."""
    return Message(role="user", content=content)


def assistant(content: Any = "", tool_calls: Iterable[Mapping[str, Any]] = ()) -> Message:
    """An assistant message, as examples in a prompt or as a model's turn in a test."""
    return as_message({"role": "assistant", "content": content, "tool_calls": list(tool_calls)})


def calling(name: str, arguments: str, id: str = "call_0") -> Message:
    """An assistant message that calls one tool."""
    return assistant("", [{"id": id, "name": name, "arguments": arguments}])


def tool_result(call: ToolCall, content: str) -> Message:
    """The result of a tool call."""
    return Message(role="tool", content=content, tool_call_id=call.id, name=call.name)


def as_tool_call(given: Mapping[str, Any]) -> ToolCall:
    """A tool call from ours, or from OpenAI's nested form."""
    function = given.get("function") or given
    return ToolCall(
        id=given.get("id") or "", name=function.get("name") or "", arguments=function.get("arguments") or ""
    )


def as_message(given: Mapping[str, Any]) -> Message:
    """A message from any mapping of its shape. Raises `ValueError` for an unknown role or content."""
    role, content = given.get("role"), given.get("content")
    if role not in ROLES:
        raise ValueError(f"a message has the role {role!r}; there are {', '.join(ROLES)}")
    if content is None:
        content = ""
    if not isinstance(content, str):
        if not isinstance(content, (list, tuple)) or not all(isinstance(part, Mapping) for part in content):
            raise ValueError(f"the content of a message is {content!r}; give a text or a list of content parts")
        content = [dict(part) for part in content]
        if not all(isinstance(part.get("type"), str) for part in content):
            raise ValueError("a content part of a message has no `type`")
    message = Message(role=role, content=content)
    for key in ("reasoning", "tool_call_id", "name"):
        if given.get(key) is not None:
            message[key] = str(given[key])
    if given.get("tool_calls"):
        message["tool_calls"] = [as_tool_call(call) for call in given["tool_calls"]]
    return message


def as_messages(given: Any, role: str = "user") -> list[Message]:
    """Messages from a text (of `role`), one message, or a list of messages. Raises `ValueError` for anything else."""
    if given is None:
        return []
    if isinstance(given, str):
        return [Message(role=role, content=given)]
    if isinstance(given, Mapping):
        return [as_message(given)]
    if isinstance(given, (list, tuple)):
        odd = next((message for message in given if not isinstance(message, (str, Mapping))), None)
        if odd is not None or None in given:
            raise ValueError(f"a list of messages holds {odd!r}, which is neither a text nor a message")
        return [message for each in given for message in as_messages(each, role)]
    raise ValueError(f"messages are a text, a message or a list of messages, not {type(given).__name__}")
