"""What the host may lend: a log, models by role, files, a scratch map, HTTP. Owns how an author calls them; what stands
behind them is put in place by the component, or by a test."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .errors import EnvError, Unsupported
from .messages import Message, as_messages


@dataclass
class Request:
    """A call of a model. `options` are those of OpenAI's: `top_p`, `stop`, `seed`, `response_format`, `tool_choice`."""

    role: str
    messages: list[Message]
    max_tokens: int | None = None
    temperature: float | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class HttpResponse:
    """Any status is a response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def json(self) -> Any:
        """The body as JSON. Raises `EnvError` where it is none."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise EnvError(f"the response is no JSON: {error}") from None


class Backend(Protocol):
    """What stands behind the services."""

    def log(self, level: str, message: str, fields: list[tuple[str, str]]) -> None: ...

    def generate(self, requests: list[Request]) -> list[Message | EnvError]: ...

    def assets(self) -> dict[str, int]: ...

    def read(self, name: str, offset: int, length: int) -> bytes: ...

    def get(self, key: str) -> bytes | None: ...

    def set(self, key: str, value: bytes | None) -> None: ...

    def fetch(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None, timeout_ms: int
    ) -> HttpResponse: ...


class Nothing:
    """Where nothing is lent: the log goes nowhere, everything else is refused."""

    def log(self, level: str, message: str, fields: list[tuple[str, str]]) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        def refused(*_: Any) -> Any:
            service = {"generate": "llm", "fetch": "http", "get": "kv", "set": "kv"}.get(name, "assets")
            raise Unsupported(f"there is no `{service}` here")

        return refused


_backend: Any = Nothing()


def serve(backend: Any) -> Any:
    """Puts `backend` behind the services; gives what was there."""
    global _backend
    before, _backend = _backend, backend
    return before


def log(message: str, level: str = "info", **fields: Any) -> None:
    """Writes a line to the run's log. `level` is `trace`, `debug`, `info`, `warn` or `error`."""
    _backend.log(level, str(message), [(name, str(value)) for name, value in fields.items()])


class LogHandler(logging.Handler):
    """Python's `logging` into the run's log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warn" if record.levelno >= logging.WARNING else "info"
        level = "debug" if record.levelno < logging.INFO else level
        _backend.log(level, self.format(record), [("logger", record.name)])


class llm:
    """Models by role; which model it is says the run's configuration. Grant: `llm`."""

    @staticmethod
    def generate(
        role: str,
        messages: Any,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        **options: Any,
    ) -> Message:
        """The model's message. `messages` is a text or a list of messages. Raises `EnvError`."""
        request = Request(role, as_messages(messages), max_tokens, temperature, options)
        return llm._taken(_backend.generate([request])[0])

    @staticmethod
    def generate_many(requests: Iterable[Request | Mapping[str, Any]]) -> list[Message]:
        """The models' messages, in the order of the requests; the host runs them side by side. Raises the first
        error."""
        made = [
            request
            if isinstance(request, Request)
            else Request(**{**request, "messages": as_messages(request["messages"])})
            for request in requests
        ]
        return [llm._taken(message) for message in _backend.generate(made)] if made else []

    @staticmethod
    def _taken(message: Message | EnvError) -> Message:
        if isinstance(message, EnvError):
            raise message
        return message


class assets:
    """Read-only files published beside the component. Grant: `assets`."""

    @staticmethod
    def list() -> dict[str, int]:
        """Sizes by name."""
        return _backend.assets()

    @staticmethod
    def read(name: str) -> bytes:
        """A whole file. Raises `NotFound`."""
        parts, at, step = [], 0, 1 << 20
        while True:
            part = _backend.read(name, at, step)
            parts.append(part)
            at += len(part)
            if len(part) < step:
                return b"".join(parts)

    @staticmethod
    def read_text(name: str) -> str:
        """A whole file as UTF-8 text."""
        return assets.read(name).decode()


class kv:
    """A scratch map that outlives instances, lost with the process. Grant: `kv`."""

    @staticmethod
    def get(key: str) -> bytes | None:
        """The value, if there is one."""
        return _backend.get(key)

    @staticmethod
    def set(key: str, value: bytes | None) -> None:
        """Keeps a value; `None` removes it. Raises `Limit`."""
        _backend.set(key, value)


class http:
    """HTTP to the addresses that the run's configuration lists. Grant: `http`."""

    @staticmethod
    def fetch(
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | str | None = None,
        timeout: float = 30.0,
    ) -> HttpResponse:
        """The response, whatever its status; redirects are not followed. `timeout` in seconds. Raises `EnvError`."""
        body = body.encode() if isinstance(body, str) else body
        return _backend.fetch(method, url, list((headers or {}).items()), body, max(1, int(timeout * 1000)))
