"""JSON Schema from type hints, and values checked against the same hints. Owns which types arguments and tools may
have; must not know what they are for."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union


class _Required:
    """Stands where a default would."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()


@dataclasses.dataclass(frozen=True)
class Arg:
    """Says more about an argument: `Annotated[int, Arg("How many.", min=1, max=9)]`. A plain text does for the
    description alone: `Annotated[int, "How many."]`."""

    description: str = ""
    min: float | None = None
    max: float | None = None


@dataclasses.dataclass
class Field:
    """One key of an object."""

    name: str
    hint: Any
    description: str = ""
    default: Any = REQUIRED


def _split(hint: Any) -> tuple[Any, str, float | None, float | None]:
    """The bare hint, its description and its bounds."""
    description, low, high = "", None, None
    while typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
        for note in notes:
            if isinstance(note, str):
                description = description or note
            elif isinstance(note, Arg):
                description = description or note.description
                low = note.min if low is None else low
                high = note.max if high is None else high
    return hint, description, low, high


def json_schema(hint: Any) -> dict[str, Any]:
    """The JSON Schema of a type. Raises `TypeError` for one that JSON cannot hold."""
    hint, description, low, high = _split(hint)
    schema = _bare(hint)
    if description:
        schema["description"] = description
    if low is not None:
        schema["minimum"] = low
    if high is not None:
        schema["maximum"] = high
    return schema


def _bare(hint: Any) -> dict[str, Any]:
    simple = {int: "integer", float: "number", bool: "boolean", str: "string", None: "null", type(None): "null"}
    if hint in (Any, object):
        return {}
    if isinstance(hint, type) and hint in simple or hint is None:
        return {"type": simple[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        schemas = [json_schema(member) for member in inner]
        kinds = [schema.get("type") for schema in schemas]
        if all(isinstance(kind, str) for kind in kinds) and sum(len(schema) for schema in schemas) == len(schemas):
            return {"type": kinds}
        return {"anyOf": schemas}
    if origin in (list, set, frozenset) or hint in (list, set, frozenset) or (origin is tuple and inner[1:] == (...,)):
        schema: dict[str, Any] = {"type": "array"}
        if inner:
            schema["items"] = json_schema(inner[0])
        return schema
    if origin in (dict, Mapping) or hint is dict:
        schema = {"type": "object"}
        if len(inner) == 2:
            schema["additionalProperties"] = json_schema(inner[1])
        return schema
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
        return object_schema(fields_of(hint))
    raise TypeError(f"JSON cannot hold a {getattr(hint, '__name__', hint)}")


def object_schema(fields: list[Field]) -> dict[str, Any]:
    """The JSON Schema of an object with these keys and no others."""
    properties = {}
    for field in fields:
        schema = json_schema(field.hint)
        if field.description:
            schema.setdefault("description", field.description)
        if field.default is not REQUIRED:
            schema["default"] = plain(field.default)
        properties[field.name] = schema
    required = [field.name for field in fields if field.default is REQUIRED]
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


def plain(value: Any) -> Any:
    """A default as JSON would have it."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def fields_of(kind: Any) -> list[Field]:
    """The keys of a dataclass or a `TypedDict`; what its docstring says of a key becomes the description."""
    hints = typing.get_type_hints(kind, include_extras=True)
    told = descriptions(kind.__doc__ or "")
    if typing.is_typeddict(kind):
        needed = kind.__required_keys__
        return [
            Field(name, hint, told.get(name, ""), REQUIRED if name in needed else None) for name, hint in hints.items()
        ]
    fields = []
    for field in dataclasses.fields(kind):
        default = REQUIRED if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        fields.append(Field(field.name, hints[field.name], told.get(field.name, ""), default))
    return fields


_LINE = re.compile(r"^\s*\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:\s*(\S.*)$")


def summary(doc: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())


def descriptions(doc: str) -> dict[str, str]:
    """What a docstring says of each name: lines `name: text` or `name (type): text`, as under `Args:`; deeper lines
    go on."""
    told: dict[str, str] = {}
    name, indent = "", 0
    for line in doc.expandtabs().splitlines():
        depth = len(line) - len(line.lstrip())
        match = _LINE.match(line)
        if match and (not name or depth <= indent):
            name, indent = match[1], depth
            told.setdefault(name, match[2].strip())
        elif name and line.strip() and depth > indent:
            told[name] += " " + line.strip()
        else:
            name = ""
    return told


class Mismatch(ValueError):
    """A value is not what its hint says."""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check(value: Any, hint: Any, where: str) -> Any:
    """`value`, which JSON gave, as `hint` has it. Raises `Mismatch`, which names `where`."""
    hint, _, low, high = _split(hint)
    value = _check(value, hint, where)
    if low is not None and _is_number(value) and value < low:
        raise Mismatch(f"{where} is {_short(value)}; it must be at least {low:g}")
    if high is not None and _is_number(value) and value > high:
        raise Mismatch(f"{where} is {_short(value)}; it must be at most {high:g}")
    return value


def _check(value: Any, hint: Any, where: str) -> Any:
    def wrong(what: str) -> Mismatch:
        return Mismatch(f"{where} is {_short(value)}; it must be {what}")

    if hint in (Any, object):
        return value
    if hint is int:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong("an integer")
        return value
    if hint is float:
        if not _is_number(value):
            raise wrong("a number")
        return float(value)
    if hint in (bool, str):
        if not isinstance(value, hint):
            raise wrong("true or false" if hint is bool else "a text")
        return value
    if hint in (None, type(None)):
        if value is not None:
            raise wrong("null")
        return None
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in inner):
            raise wrong("one of " + ", ".join(_short(choice) for choice in inner))
        return value
    if origin in (Union, types.UnionType):
        told = []
        for member in inner:
            try:
                return check(value, member, where)
            except Mismatch as mismatch:
                told.append(str(mismatch))
        # The last of them, since `None` and the like come last by habit only where they are not meant.
        raise Mismatch(next((text for text in told if "must be null" not in text), told[-1]))
    if origin in (list, set, frozenset, tuple) or hint in (list, set, frozenset, tuple):
        if not isinstance(value, list):
            raise wrong("a list")
        member = inner[0] if inner else Any
        made = [check(item, member, f"{where}[{at}]") for at, item in enumerate(value)]
        return made if (origin or hint) is list else (origin or hint)(made)
    if origin in (dict, Mapping) or hint is dict:
        if not isinstance(value, dict):
            raise wrong("an object")
        member = inner[1] if len(inner) == 2 else Any
        return {key: check(item, member, f"{where}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            if member.value == value:
                return member
        raise wrong("one of " + ", ".join(_short(member.value) for member in hint))
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
        if not isinstance(value, dict):
            raise wrong("an object")
        return hint(**check_object(value, fields_of(hint), where + ": "))
    raise TypeError(f"JSON cannot hold a {getattr(hint, '__name__', hint)}")


def check_object(given: Mapping[str, Any], fields: list[Field], where: str = "") -> dict[str, Any]:
    """The keys of an object as their hints have them; keys with a default may be missing. Raises `Mismatch`."""
    known = {field.name: field for field in fields}
    for name in given:
        if name not in known:
            names = "there are " + ", ".join(f"`{known_name}`" for known_name in known) if known else "there are none"
            raise Mismatch(f"{where}unknown argument `{name}`; {names}")
    made = {}
    for name, field in known.items():
        if name in given:
            made[name] = check(given[name], field.hint, f"{where}`{name}`")
        elif field.default is REQUIRED:
            raise Mismatch(f"{where}`{name}` is missing")
    return made
