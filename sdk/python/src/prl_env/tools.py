"""Tools from plain functions. Owns the schema made of a function's hints and docstring, and the replies to calls that
cannot be run: whatever a model writes becomes a message to it, the same each time, and never a failure of the
environment."""

from __future__ import annotations

import inspect
import json
import logging
import typing
from collections.abc import Callable, Mapping
from typing import Any

from . import schema
from .calls import finish, place
from .errors import EnvError, kind_of
from .messages import Message, ToolCall, tool_result
from .records import Context, ToolDef
from .state import State

_log = logging.getLogger(__name__)


class ToolError(Exception):
    """Raised by a tool: its text is what the model is told."""


class Tool:
    """A function that the model may call. Its parameters need type hints; one annotated as `State` or `Context` is
    handed the rollout's and does not show in the schema. The docstring's first paragraph describes the tool, its
    `Args:` the parameters."""

    def __init__(self, func: Callable[..., Any], name: str | None = None) -> None:
        self.func = func
        self.name = name or func.__name__
        hints = typing.get_type_hints(func, include_extras=True)
        doc = inspect.getdoc(func) or ""
        told = schema.descriptions(doc)
        self._handed: dict[str, type] = {}
        self.fields: list[schema.Field] = []
        for parameter in inspect.signature(func).parameters.values():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                raise TypeError(f"tool `{self.name}` takes `*{parameter.name}`; each parameter must be named")
            hint = hints.get(parameter.name, Any)
            if hint in (State, Context):
                self._handed[parameter.name] = hint
                continue
            default = schema.REQUIRED if parameter.default is parameter.empty else parameter.default
            self.fields.append(schema.Field(parameter.name, hint, told.get(parameter.name, ""), default))
        self.definition = ToolDef(self.name, schema.summary(doc), schema.object_schema(self.fields))

    def run(self, arguments: Mapping[str, Any], state: State) -> str:
        """Runs it. Raises `ToolError` with what to tell the model."""
        try:
            given = schema.check_object(arguments, self.fields)
        except schema.Mismatch as mismatch:
            raise ToolError(str(mismatch)) from None
        for name, kind in self._handed.items():
            given[name] = state if kind is State else state["ctx"]
        result = finish(self.func(**given))
        try:
            return as_text(result)
        except (TypeError, ValueError) as error:
            raise EnvError(
                f"tool `{self.name}` gave {kind_of(result)}, which is no text and no JSON ({error}); return one{place(self.func)}"
            ) from None


def as_text(result: Any) -> str:
    """A tool's result as the model sees it: a text as it is, anything else as JSON. Raises `TypeError` or `ValueError`
    for what is neither."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ToolError(f"the key {json.dumps(key)} is there twice")
        made[key] = value
    return made


def _no_constant(name: str) -> Any:
    raise ToolError(f"{name} is no JSON")


# Far above what a tool takes, far below what the interpreter's own stack would bear.
_MAX_DEPTH = 64


def _depth(text: str) -> int:
    depth = deepest = 0
    inside, escaped = False, False
    for char in text:
        if inside:
            inside, escaped = escaped or char != '"', char == "\\" and not escaped
        elif char == '"':
            inside = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def parse_arguments(name: str, text: str) -> dict[str, Any]:
    """The arguments of a call. Raises `ToolError` for what is no JSON object, is cut off, has a key twice, a number
    that JSON does not have, or too deep a nesting. Nothing at all counts as `{}`, as models write calls without
    arguments."""
    if not text.strip():
        return {}
    if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(text) > _MAX_DEPTH:
        raise ToolError(f"the arguments of `{name}` are nested more than {_MAX_DEPTH} deep")
    try:
        given = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ToolError as error:
        raise ToolError(f"the arguments of `{name}` are not valid: {error}") from None
    except json.JSONDecodeError as error:
        # The decoder's words change between versions of Python, its position does not.
        at = f"line {error.lineno}, column {error.colno}"
        raise ToolError(f"the arguments of `{name}` are not valid JSON at {at} of {len(text)} characters") from None
    except (ValueError, RecursionError):
        raise ToolError(f"the arguments of `{name}` hold a number that is too long") from None
    if not isinstance(given, dict):
        raise ToolError(f"the arguments of `{name}` are not a JSON object")
    return given


def answer(call: ToolCall, tools: Mapping[str, Tool], state: State) -> Message:
    """The message that answers a call. Exceptions of the tool become text too; an `EnvError` ends the rollout."""
    try:
        if call.name not in tools:
            names = "there are " + ", ".join(f"`{name}`" for name in tools) if tools else "there are none"
            raise ToolError(f"no tool `{call.name}`; {names}")
        return tool_result(call, tools[call.name].run(parse_arguments(call.name, call.arguments), state))
    except EnvError:
        raise
    except ToolError as error:
        return tool_result(call, f"error: {error}")
    except Exception as error:
        _log.warning("tool `%s` raised %s: %s", call.name, type(error).__name__, error)
        return tool_result(call, f"error: {error}" if str(error) else f"error: {type(error).__name__}")
