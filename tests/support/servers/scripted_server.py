"""An HTTP server that plays given answers, bad ones among them, and keeps what it was asked."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """`silent_s` before it begins, `drip_s` between its bytes, `missing` bytes at its end; `hang_up`: no answer."""

    status: int = 200
    document: Any = field(default_factory=dict)
    data: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    silent_s: float = 0.0
    drip_s: float = 0.0
    missing: int = 0
    hang_up: bool = False

    def __call__(self, player: "Player") -> None:
        time.sleep(self.silent_s)
        with player.server.lock:
            player.server.ongoing -= 1
        player.close_connection |= self.hang_up or bool(self.missing)
        if self.hang_up:
            return
        data = json.dumps(self.document).encode() if self.data is None else self.data
        player.send_response(self.status)
        kind = "application/json" if self.status < 400 else "application/problem+json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **self.headers}.items():
            player.send_header(name, value)
        player.end_headers()
        if player.command == "HEAD":
            return
        sent = data[: len(data) - self.missing]
        step = 1 if self.drip_s else len(sent) or 1
        for start in range(0, len(sent), step):
            player.wfile.write(sent[start : start + step])
            time.sleep(self.drip_s)


Route = Callable[["Player"], None]
"""Answers a request, as a `Reply` does."""


def raw(*parts: bytes, endless: bytes = b"", pause: float = 0.0) -> Route:
    """Sends bytes as they are, then `endless` again and again; `pause` seconds after each. Closes at the end."""

    def route(player: Player) -> None:
        player.close_connection = True
        player.wfile.write(b"".join(parts))
        time.sleep(pause)
        while endless:
            player.wfile.write(endless)
            time.sleep(pause)

    return route


@dataclass(frozen=True, kw_only=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class QuietServer(ThreadingHTTPServer):
    """Clients close connections as they like. In the end it closes those that they keep: their next is another's."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sockets: list[socket.socket] = []

    def finish_request(self, request: Any, client_address: Any) -> None:
        self._sockets.append(request)
        super().finish_request(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class ScriptedServer(QuietServer):
    """Answers a path, with or without its query, by `routes`; others by `replies` in turn, then the last of them."""

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Player)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.replies = list(replies)
        self.routes: dict[str, Route] = {}
        self.asked: list[Asked] = []
        self.connections = 0
        self.open_connections = 0
        self.ongoing = 0
        self.most_ongoing = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def scripted(*replies: Reply, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """A server in a thread, while the block lasts. It knows nothing (404) unless it is told something."""
    server = ScriptedServer(*(replies or [Reply(status=404)]), tls=tls)
    with in_thread(server):
        yield server


@contextmanager
def in_thread(server: ThreadingHTTPServer) -> Iterator[str]:
    """Serves while the block lasts; its host:port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Player(BaseHTTPRequestHandler):
    server: ScriptedServer
    asked: Asked
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1
            self.server.open_connections += 1

    def finish(self) -> None:
        super().finish()
        with self.server.lock:
            self.server.open_connections -= 1

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(method=self.command, path=self.path, headers=headers, body=body, at=time.monotonic())
        self.asked = asked
        with self.server.lock:
            self.server.asked.append(asked)
            self.server.ongoing += 1
            self.server.most_ongoing = max(self.server.most_ongoing, self.server.ongoing)
            known, replies = self.server.routes, self.server.replies
            route = known.get(self.path) or known.get(self.path.partition("?")[0])
            route = route or (replies.pop(0) if len(replies) > 1 else replies[0])
        try:
            route(self)
        except OSError:
            self.close_connection = True  # the caller has left

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815  (names that http.server looks for)

    def log_message(self, format: str, *args: Any) -> None:
        pass
