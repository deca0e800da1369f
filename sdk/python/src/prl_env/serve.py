"""`python -m prl_env.serve ENV [--host 127.0.0.1] [--port 8765]`: serves an environment over HTTP, outside the sandbox.
Owns requests and answers; what runs where is `hosting`'s. Exit codes: 0 when it is told to end, 2 with one line saying
what is wrong. Not part of a component."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import ipaddress
import json
import logging
import re
import signal
import socketserver
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

from . import project, wire
from .console import Words, failing
from .definition import find
from .errors import Denied, EnvError, Limit, Unsupported
from .hosting import Hosted, install, problem
from .project import BadProject

PREFIX = "/v0.1/"
"""The protocol's version, in front of every path."""
MAX_BODY = 64 << 20
"""Longest request, bytes."""
IDLE = 120.0
"""Seconds that a connection may be silent."""
GRACE = 5.0
"""Seconds that rollouts have to end when the server does."""
_STATUS = {"invalid-config": 400, "invalid-task": 400, "denied": 403, "not-found": 404, "unsupported": 404,
           "invalid-state": 409, "limit": 413, "upstream": 503}  # fmt: skip


class Stopped(BaseException):
    """The process was told to end."""


class Server(ThreadingHTTPServer):
    """Takes connections, each on a thread."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], hosted: Hosted) -> None:
        self.hosted = hosted
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        # `HTTPServer` asks for the machine's name, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that went away in the middle is no news.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    timeout = IDLE
    server: Server

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        try:
            self._check_host()
            status, said = 200, self._text(self._call(self._body()))
        except BaseException as error:  # Whatever an environment raises is an answer.
            told = problem(error)
            status = _STATUS.get(told.code, 500)
            code = told.code.replace("-", "_")
            message = str(told.message)[:20_000]
            said = self._text({"error": {"code": code, "message": message, "retryable": bool(told.retryable)}})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    @staticmethod
    def _text(value: Any) -> bytes:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise EnvError(f"a value handed to the host is no JSON: {error}") from None
        return text.encode("utf-8", "replace")

    def _check_host(self) -> None:
        """Only this machine's own names reach a server that listens on loopback: a page in a browser here that was
        loaded from a name which now leads to 127.0.0.1 (DNS rebinding) asks by that name."""
        if not _is_loopback(self.server.server_address[0]):
            return
        host = self.headers.get("Host", "").strip()
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name != "localhost" and not _is_loopback(name):
            self.close_connection = True
            raise Denied(f"a request to `{host}` is not for this server, which listens on loopback; see --host")

    def _body(self) -> Any:
        if self.command != "POST":
            return None
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise Unsupported("a request needs a `Content-Length`")
        if int(length) > MAX_BODY:
            self.close_connection = True
            raise Limit(f"a request holds at most {MAX_BODY} bytes")
        text = self.rfile.read(int(length))
        # A page in a browser on this machine cannot send this without asking first.
        if self.headers.get_content_type() != "application/json":
            raise Unsupported("a request is of the type `application/json`")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unsupported(f"the request is no JSON: {error}") from None

    def _call(self, given: Any) -> Any:
        hosted, path = self.server.hosted, self.path.partition("?")[0]
        match (self.command, *path.removeprefix(PREFIX).split("/")) if path.startswith(PREFIX) else ():
            case ("GET", "info"):
                return wire.info_out(hosted.describe())
            case ("POST", "configure"):
                name, info = hosted.configure(wire.reading("the request", lambda: given["args"]))
                return {"configuration": name, "info": wire.info_out(info)}
            case ("POST", "task"):
                return wire.task_out(hosted.task(*wire.task_asked(given)))
            case ("POST", "rollouts"):
                return {"id": hosted.open(*wire.open_asked(given))}
            case ("POST", "rollouts", name, "start"):
                return wire.turn_out(hosted.start(name))
            case ("POST", "rollouts", name, "step"):
                return wire.turn_out(hosted.step(name, wire.reading("the turn", lambda: wire.completion_in(given))))
            case ("POST", "rollouts", name, "score"):
                return wire.score_out(hosted.score(name, wire.reading("the request", lambda: given["truncated"])))
            case ("DELETE", "rollouts", name):
                hosted.drop(name)
                return {}
            case ("POST", "score_group"):
                scores = hosted.score_group(*wire.group_asked(given))
                return {"scores": [wire.score_out(score) for score in scores]}
        raise Unsupported(f"there is no `{self.command} {path}` in the protocol")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _load(given: str) -> ModuleType:
    """The module in a folder or a file, or of that name. What it imports late is found too."""
    if Path(given).exists() or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", given):
        sys.path.insert(0, str(project.find(given).root))
        return project.load(given)
    try:
        found = importlib.util.find_spec(given)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise BadProject(f"{given}: there is no such file, folder or module")
    return importlib.import_module(given)


@contextlib.contextmanager
def serving(server: Server, expire: float) -> Iterator[None]:
    """Serves while the context lasts."""
    ended = threading.Event()

    def sweep() -> None:
        while not ended.wait(min(60.0, expire / 4)):
            server.hosted.sweep()

    threading.Thread(target=sweep, name="sweep", daemon=True).start()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        server.hosted.close(GRACE)


def _stop(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise Stopped


def main(argv: list[str] | None = None) -> int:
    """Runs the command; gives its exit code."""
    parser = Words(
        prog="python -m prl_env.serve", description="Serves an environment over HTTP, outside the sandbox."
    )
    parser.add_argument("env", help="its folder, its .py file, or the name of an installed module")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="port to listen on, 0 for a free one (default 8765)")
    parser.add_argument(
        "--expire", type=float, default=3600.0, metavar="S", help="end rollouts unasked for so long (default 3600)"
    )
    given = parser.parse_args(argv)
    out = sys.stdout
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
        with failing(BadProject, Exception, SystemExit):
            if not 0 <= given.port <= 65535:
                raise BadProject(f"--port: {given.port} is no port; there are 0 to 65535")
            if not given.expire > 0:
                raise BadProject(f"--expire: {given.expire} is not above 0")
            install()
            logging.basicConfig(level=logging.INFO)
            # What an environment prints is for its log.
            with contextlib.redirect_stdout(sys.stderr):
                hosted = Hosted(find(_load(given.env)), given.expire)
                try:
                    server = Server((given.host, given.port), hosted)
                except OSError as error:
                    where = f"{given.host}:{given.port}"
                    raise BadProject(f"cannot listen on {where}: {error.strerror}; see --host and --port") from None
                with serving(server, given.expire):
                    info, (host, port) = hosted.describe(), server.server_address[:2]
                    told = f"{info.name} {info.version} at http://{host}:{port}, outside the sandbox"
                    print(told, file=out, flush=True)
                    threading.Event().wait()
        return 2
    except Stopped:
        return 0


if __name__ == "__main__":
    sys.exit(main())
