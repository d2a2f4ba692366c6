"""An HTTP server that sends scripted answers, including bad ones, and records the requests."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: silent for `silent_s` first, `missing` bytes at the end. `hang_up`: none."""

    status: int = 200
    document: Any = field(default_factory=dict)
    data: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    silent_s: float = 0.0
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
        player.wfile.write(data[: len(data) - self.missing])


Route = Callable[["Player"], None]
"""Answers a request, as a `Reply` does."""


def raw(*parts: bytes, endless: bytes = b"", pause: float = 0.0) -> Route:
    """Sends raw bytes, then `endless` repeatedly, with `pause` seconds after each. Closes at the end."""

    def route(player: Player) -> None:
        player.close_connection = True
        player.wfile.write(b"".join(parts))
        time.sleep(pause)
        while endless:
            player.wfile.write(endless)
            time.sleep(pause)

    return route


@dataclass(frozen=True, kw_only=True)
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class ScriptedServer(ThreadingHTTPServer):
    """Answers paths, with or without their query, by `routes`, others by the route "*" if there is one, or else by
    `replies` in turn; the last one repeats. When it ends, it closes the connections that clients keep open.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), Player)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.replies = list(replies)
        self.routes: dict[str, Route] = {}
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.open_connections = 0
        self.ongoing = 0
        self.max_ongoing = 0
        self.lock = threading.Lock()
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
        """Nothing: clients close connections."""

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"


@contextmanager
def scripted(*replies: Reply, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[ScriptedServer]:
    """Run a server in a thread during the block. Without replies or routes it answers 404."""
    server = ScriptedServer(*(replies or [Reply(status=404)]), tls=tls, host=host)
    with in_thread(server):
        yield server


@contextmanager
def in_thread(server: HTTPServer) -> Iterator[str]:
    """Serve during the block; yields host:port."""
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
    received: ReceivedRequest
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
        self.received = ReceivedRequest(
            method=self.command, path=self.path, headers=headers, body=body, at=time.monotonic()
        )
        with self.server.lock:
            self.server.requests.append(self.received)
            self.server.ongoing += 1
            self.server.max_ongoing = max(self.server.max_ongoing, self.server.ongoing)
            routes, replies = self.server.routes, self.server.replies
            route = routes.get(self.path) or routes.get(self.path.partition("?")[0]) or routes.get("*")
            route = route or (replies.pop(0) if len(replies) > 1 else replies[0])
        try:
            route(self)
        except OSError:
            self.close_connection = True  # the client has gone

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815  (names that http.server looks for)

    def log_message(self, format: str, *args: Any) -> None:
        pass
