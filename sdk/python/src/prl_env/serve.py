"""`python -m prl_env.serve ENV [--host 127.0.0.1] [--port 8765]`: serves an environment over HTTP, outside the sandbox.
Owns requests and answers; what runs where is `hosting`'s. Exit codes: 0 when it is told to end, 2 with one line saying
what is wrong. Not part of a component."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import ipaddress
import json
import logging
import re
import select
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

from . import project, wire
from .console import Words, failing
from .definition import find
from .errors import Denied, EnvError, Limit, Unsupported
from .hosting import Hosted, UnknownConfiguration, install, problem, raise_files, room
from .project import BadProject
from .records import Turn
from .wire import BadRequest

PREFIX = "/v0.1/"
"""The protocol's version, in front of every path."""
MAX_BODY = 64 << 20
"""Longest request, bytes."""
IDLE = 120.0
"""Seconds that a connection may be silent."""
REQUEST = 60.0
"""Seconds that a request, once begun, has to come in, and an answer to go out."""
GRACE = 5.0
"""Seconds that rollouts have to end when the server does."""
PAUSE = 0.01
"""Seconds without new connections where there is no room for one."""
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_STATUS = {"invalid-config": 400, "invalid-task": 400, "denied": 403, "not-found": 404, "unsupported": 404,
           "invalid-state": 409, "limit": 413, "upstream": 503}  # fmt: skip


class Stopped(BaseException):
    """The process was told to end."""


class Connections:
    """Those that there are, and since when each is idle or on the way: `None` where it waits for the environment."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._since: dict[socket.socket, tuple[bool, float] | None] = {}

    def mark(self, connection: socket.socket, idle: bool | None) -> None:
        """It is idle from now on, or in the middle of a request or answer, or neither."""
        with self._lock:
            self._since[connection] = None if idle is None else (idle, time.monotonic())

    def remove(self, connection: socket.socket) -> None:
        """It is closed."""
        with self._lock:
            self._since.pop(connection, None)

    def has_room(self) -> bool:
        """Whether there may be one more."""
        with self._lock:
            return len(self._since) < self._most

    def end_idle(self) -> None:
        """Ends the one that has been idle for longest, if there is one."""
        with self._lock:
            idle = [(since[1], each) for each, since in self._since.items() if since is not None and since[0]]
            if idle:
                self._end(min(idle, key=lambda one: one[0])[1])

    def end_slow(self) -> None:
        """Ends those that have been in the middle of a request or an answer for too long."""
        until = time.monotonic() - REQUEST
        with self._lock:
            begun = [(each, since[1]) for each, since in self._since.items() if since is not None and not since[0]]
            for connection in [each for each, since in begun if since < until]:
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        # Its thread finds it at its end, and closes it.
        self._since[connection] = None
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    """Takes connections, each on a thread; no more than there is room for."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], hosted: Hosted, connections: int) -> None:
        self.hosted = hosted
        self.connections = Connections(connections)
        super().__init__(address, Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            if not self.connections.has_room():
                raise OSError(errno.EMFILE, "too many connections")
            connection, address = super().get_request()
        except OSError as error:
            # Who is waiting stays where the system keeps them. What is idle makes room.
            if error.errno in _FULL:
                self.connections.end_idle()
                time.sleep(PAUSE)
            raise
        self.connections.mark(connection, True)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

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

    def handle_one_request(self) -> None:
        connections = self.server.connections
        connections.mark(self.connection, True)
        try:
            # Waits until something comes.
            begun = self.rfile.peek(1)
        except OSError:
            begun = b""
        if not begun:
            self.close_connection = True
            return
        connections.mark(self.connection, False)
        super().handle_one_request()

    def _is_there(self) -> bool:
        """Whether who asked still waits for the answer."""
        poll = select.poll()
        try:
            poll.register(self.connection, select.POLLIN)
            return not poll.poll(0) or self.connection.recv(1, socket.MSG_PEEK) != b""
        except (OSError, ValueError):
            return False

    def _answer(self) -> None:
        self._rollout: str | None = None
        try:
            self._check_host()
            given = self._body()
            self.server.connections.mark(self.connection, None)
            status, said = 200, self._call(given)
        except BaseException as error:  # Whatever an environment raises is an answer.
            told = problem(error)
            status = _status(told)
            code = told.code.replace("-", "_")
            message = str(told.message)[:20_000]
            said = _text({"error": {"code": code, "message": message, "retryable": bool(told.retryable)}})
        self.server.connections.mark(self.connection, False)
        if self._rollout is not None and not self._is_there():
            # Nobody will ask for it again: what it was told is lost.
            self.server.hosted.drop(self._rollout)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(said)

    def _check_host(self) -> None:
        """Only this machine's own names reach a server that listens on loopback: a page in a browser here that was
        loaded from a name which now leads to 127.0.0.1 (DNS rebinding) asks by that name."""
        if not _is_loopback(self.server.server_address[0]):
            return
        host = self.headers.get("Host", "").strip()
        name = host.partition(":")[0]
        if name != "localhost" and not _is_loopback(name):
            self.close_connection = True
            raise Denied(f"a request to `{host}` is not for this server, which listens on loopback; see --host")

    def _body(self) -> Any:
        lengths = self.headers.get_all("Content-Length", [])
        length = lengths[0] if len(lengths) == 1 else ""
        if self.command != "POST" and not lengths and "Transfer-Encoding" not in self.headers:
            return None
        # What is not read here would be taken for the next request.
        if not re.fullmatch("[0-9]{1,18}", length) or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise BadRequest("a request needs one `Content-Length`, and no `Transfer-Encoding`")
        if int(length) > MAX_BODY:
            self.close_connection = True
            raise Limit(f"a request holds at most {MAX_BODY} bytes")
        try:
            text = self.rfile.read(int(length))
        except OSError:
            text = b""
        if len(text) < int(length):
            self.close_connection = True
            raise BadRequest("the request ends before its `Content-Length`")
        if self.command != "POST":
            return None
        # A page in a browser on this machine cannot send this without asking first.
        if self.headers.get_content_type() != "application/json":
            raise BadRequest("a request is of the type `application/json`")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the request is no JSON: {error}") from None

    def _call(self, given: Any) -> bytes:
        hosted, path = self.server.hosted, self.path.partition("?")[0]
        match (self.command, *path.removeprefix(PREFIX).split("/")) if path.startswith(PREFIX) else ():
            case ("GET", "info"):
                return _text(wire.info_out(hosted.describe()))
            case ("POST", "configure"):
                name, info = hosted.configure(wire.given_args(given))
                return _text({"configuration": name, "info": wire.info_out(info)})
            case ("POST", "task"):
                return _text(wire.task_out(hosted.task(*wire.task_asked(given))))
            case ("POST", "rollouts"):
                return _text({"id": hosted.open(*wire.open_asked(given))})
            case ("POST", "rollouts", name, "start"):
                self._rollout = name
                return hosted.start(name, _turn)
            case ("POST", "rollouts", name, "step"):
                completion = wire.given_turn(given)
                self._rollout = name
                return hosted.step(name, completion, _turn)
            case ("POST", "rollouts", name, "score"):
                return _text(wire.score_out(hosted.score(name, wire.given_truncated(given))))
            case ("DELETE", "rollouts", name):
                hosted.drop(name)
                return _text({})
            case ("POST", "score_group"):
                scores = hosted.score_group(*wire.group_asked(given))
                return _text({"scores": [wire.score_out(score) for score in scores]})
        raise Unsupported(f"there is no `{self.command} {path}` in the protocol")


def _text(value: Any) -> bytes:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvError(f"a value handed to the host is no JSON: {error}") from None
    return text.encode("utf-8", "replace")


def _turn(turn: Turn) -> bytes:
    return _text(wire.turn_out(turn))


def _status(error: EnvError) -> int:
    if isinstance(error, BadRequest):
        return 400
    # The host tells the arguments once more where it sees this, and only there.
    return 410 if isinstance(error, UnknownConfiguration) else _STATUS.get(error.code, 500)


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
        while not ended.wait(min(1.0, expire / 4)):
            server.hosted.sweep()
            server.connections.end_slow()

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
            places = room(raise_files())
            logging.basicConfig(level=logging.INFO)
            # What an environment prints is for its log.
            with contextlib.redirect_stdout(sys.stderr):
                hosted = Hosted(find(_load(given.env)), given.expire, places.rollouts)
                try:
                    server = Server((given.host, given.port), hosted, places.connections)
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
