"""From a module to an environment: finds `load_environment` or the module's `Environment`, and what arguments it takes.
Must not know where the module came from."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from . import schema
from .calls import place
from .environment import Environment
from .errors import EnvError, InvalidConfig, kind_of


class Definition:
    """How to make an environment from a run's arguments."""

    def __init__(self, fields: list[schema.Field], make: Callable[[dict[str, Any]], Environment], place: str = "") -> None:
        """`place` is where the arguments are written."""
        self.fields = fields
        self._make = make
        lacking = next((field.name for field in fields if field.default is schema.REQUIRED), None)
        if lacking:
            raise EnvError(
                f"the argument `{lacking}` has no default; an environment is shown with its defaults, so each needs "
                f"one{place}"
            )
        self.args_schema = schema.object_schema(fields)
        json.dumps(self.args_schema, allow_nan=False)

    def make(self, args: Any) -> Environment:
        """Checks the arguments, a JSON object, and makes the environment. Raises `InvalidConfig`."""
        if not isinstance(args, Mapping):
            raise InvalidConfig("the arguments are not a JSON object")
        try:
            return self._make(schema.check_object(args, self.fields))
        except EnvError:
            raise
        except ValueError as error:
            raise InvalidConfig(str(error)) from error


def _from_function(load: Callable[..., Any]) -> tuple[list[schema.Field], Callable[[dict[str, Any]], Any]]:
    hints = typing.get_type_hints(load, include_extras=True)
    told = schema.descriptions(inspect.getdoc(load) or "")
    parameters = [
        p for p in inspect.signature(load).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if len(parameters) == 1:
        kind: Any = hints.get(parameters[0].name)
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return schema.fields_of(kind), lambda given: load(kind(**given))
    fields = []
    for parameter in parameters:
        default = schema.REQUIRED if parameter.default is parameter.empty else parameter.default
        guess = Any if default is schema.REQUIRED or default is None else type(default)
        hint = hints.get(parameter.name, guess)
        fields.append(schema.Field(parameter.name, hint, told.get(parameter.name, ""), default))
    return fields, lambda given: load(**given)


def find(module: ModuleType) -> Definition:
    """The environment of a module. Raises `EnvError` where there is none, or more than one."""
    version = str(getattr(module, "__version__", "0.1.0"))

    def named(environment: Any) -> Environment:
        if not isinstance(environment, Environment):
            raise EnvError(f"`load_environment` gave {kind_of(environment)}, no Environment{place(load)}")
        return environment.named(module.__name__, module.__doc__, version)

    load = getattr(module, "load_environment", None)
    if callable(load):
        fields, make = _from_function(load)
        return Definition(fields, lambda given: named(make(given)), place(load))
    found = {id(value): value for value in vars(module).values() if isinstance(value, Environment)}
    if len(found) != 1:
        count = "no" if not found else str(len(found))
        at = getattr(module, "__file__", None)
        at = f" ({at.removeprefix('/0/')}:1)" if at and not found else "".join(e.place for e in [*found.values()][1:2])
        raise EnvError(f"`{module.__name__}` holds {count} Environment and no `load_environment`; it needs one of them{at}")
    (environment,) = found.values()
    kind = environment.args_type
    fields = [] if kind is None else schema.fields_of(kind)

    def bound(given: dict[str, Any]) -> Environment:
        return named(environment).bound(None if kind is None else kind(**given))

    return Definition(fields, bound, environment.place)
