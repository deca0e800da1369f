"""The host's services behind `prl_env.services`. Owns which of them this component was built with."""

from __future__ import annotations

from typing import Any, NoReturn

from componentize_py_types import Err
from wit_world.imports import log as wit_log

from .. import services
from ..errors import EnvError, Unsupported
from ..messages import Message
from . import convert

try:
    from wit_world.imports import llm as wit_llm
except ImportError:
    wit_llm = None
try:
    from wit_world.imports import assets as wit_assets
except ImportError:
    wit_assets = None
try:
    from wit_world.imports import kv as wit_kv
except ImportError:
    wit_kv = None
try:
    from wit_world.imports import http as wit_http
except ImportError:
    wit_http = None


def _raised(problem: Err) -> NoReturn:
    raise convert.error_in(problem.value) from None


def _need(service: Any, name: str) -> Any:
    if service is None:
        raise Unsupported(
            f"this component was built without `{name}`; add it to `imports` in [tool.prl-env] of pyproject.toml"
        )
    return service


class Host:
    """Calls the imports."""

    def log(self, level: str, message: str, fields: list[tuple[str, str]]) -> None:
        named = [(convert.text(name), convert.text(value)) for name, value in fields]
        wit_log.emit(wit_log.Level[level.upper()], convert.text(message), named)

    def generate(self, requests: list[services.Request]) -> list[Message | EnvError]:
        llm = _need(wit_llm, "llm")
        made = [
            llm.Request(
                role=request.role,
                messages=[convert.message_out(message) for message in request.messages],
                tools=[],
                max_tokens=request.max_tokens,
                temperature=None if request.temperature is None else float(request.temperature),
                options=convert.json_out(request.options) if request.options else None,
            )
            for request in requests
        ]
        if len(made) == 1:
            try:
                return [convert.message_in(llm.generate(made[0]).message)]
            except Err as problem:
                return [convert.error_in(problem.value)]
        answers: list[Message | EnvError] = []
        for result in llm.generate_many(made):
            failed = isinstance(result, Err)
            answers.append(convert.error_in(result.value) if failed else convert.message_in(result.value.message))
        return answers

    def assets(self) -> dict[str, int]:
        try:
            return {asset.name: asset.size for asset in _need(wit_assets, "assets").list()}
        except Err as problem:
            _raised(problem)

    def read(self, name: str, offset: int, length: int) -> bytes:
        try:
            return _need(wit_assets, "assets").read(name, offset, length)
        except Err as problem:
            _raised(problem)

    def get(self, key: str) -> bytes | None:
        try:
            return _need(wit_kv, "kv").get(key)
        except Err as problem:
            _raised(problem)

    def set(self, key: str, value: bytes | None) -> None:
        try:
            _need(wit_kv, "kv").set(key, value)
        except Err as problem:
            _raised(problem)

    def fetch(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None, timeout_ms: int
    ) -> services.HttpResponse:
        http = _need(wit_http, "http")
        try:
            response = http.fetch(http.Request(method, url, headers, body, timeout_ms))
        except Err as problem:
            _raised(problem)
        return services.HttpResponse(response.status, response.headers, response.body)
