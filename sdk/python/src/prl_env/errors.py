"""What a call may end with. Owns the error codes of the contract; must not know who raises them."""

from __future__ import annotations

import os

from .absent import advice


class EnvError(Exception):
    """Ends the call, and with it the rollout: it is counted as an error and never trained on as a reward of 0.

    `code` is one of the contract's error codes, `retryable` advises the host to try again. Any other exception that
    leaves an environment counts as `internal`.
    """

    code = "internal"
    retryable = False

    def __init__(self, message: str, *, code: str | None = None, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if retryable is not None:
            self.retryable = retryable


class InvalidConfig(EnvError):
    """The arguments do not match their schema, or cannot work."""

    code = "invalid-config"


class InvalidTask(EnvError):
    """No such split or index, or a task that this environment did not make."""

    code = "invalid-task"


class Unsupported(EnvError):
    """The call is not offered."""

    code = "unsupported"


class InvalidState(EnvError):
    """Called out of order, such as a step after the end."""

    code = "invalid-state"


class Denied(EnvError):
    """From a service: the run's configuration does not allow it."""

    code = "denied"


class NotFound(EnvError):
    """From a service: no such asset."""

    code = "not-found"


class Limit(EnvError):
    """From a service: more than the host hands out or keeps."""

    code = "limit"


class Upstream(EnvError):
    """Something outside failed in a way worth another try."""

    code = "upstream"
    retryable = True


CODES: dict[str, type[EnvError]] = {
    kind.code: kind
    for kind in (EnvError, InvalidConfig, InvalidTask, Unsupported, InvalidState, Denied, NotFound, Limit, Upstream)
}


def kind_of(value: object) -> str:
    """The type of a value in a message: `an int`, `a list`, `None`."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def error(code: str, message: str, retryable: bool) -> EnvError:
    """The exception for an error that came with this code."""
    return CODES.get(code, EnvError)(message, retryable=retryable)


def fix(problem: BaseException | None) -> str:
    """How to mend what a component does not have, as `; ...`; nothing where that is not the reason."""
    if isinstance(problem, ModuleNotFoundError) and problem.name:
        told = advice(problem.name)
        if told:
            return f"; {told}"
        return (
            f"; `{problem.name}` is not in the component: import it at the top of a module, and name its package in "
            "`packages` of [tool.prl-env] in pyproject.toml if it is not Python's own (compiled ones cannot be had)"
        )
    if isinstance(problem, FileNotFoundError) and problem.filename is not None:
        name = os.fsdecode(problem.filename) if isinstance(problem.filename, (str, bytes)) else str(problem.filename)
        if not os.path.isabs(name):
            return f'; write `Path(__file__).parent / "{name}"`, a relative path leads nowhere in a component'
        return "; only the files of the environment's folder go into a component, and none can be written"
    return ""
