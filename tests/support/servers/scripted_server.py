"""An HTTP server that plays given answers, bad ones among them, and keeps what it was asked."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


class ScriptedServer(ThreadingHTTPServer):
    """Plays `replies` in turn, and the last of them from then on."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *replies: Reply) -> None:
        super().__init__(("127.0.0.1", 0), _Player)
        self.replies = list(replies)
        self.asked: list[Asked] = []
        self.connections = 0
        self.open_connections = 0
        self.ongoing = 0
        self.most_ongoing = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def scripted(*replies: Reply) -> Iterator[ScriptedServer]:
    """A server in a thread, while the block lasts."""
    server = ScriptedServer(*replies)
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


class _Player(BaseHTTPRequestHandler):
    server: ScriptedServer
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
        with self.server.lock:
            self.server.asked.append(asked)
            self.server.ongoing += 1
            self.server.most_ongoing = max(self.server.most_ongoing, self.server.ongoing)
            replies = self.server.replies
            reply = replies.pop(0) if len(replies) > 1 else replies[0]
        try:
            self._play(reply)
        except OSError:
            self.close_connection = True  # the caller has left

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815  (names that http.server looks for)

    def _play(self, reply: Reply) -> None:
        time.sleep(reply.silent_s)
        with self.server.lock:
            self.server.ongoing -= 1
        if reply.hang_up:
            self.close_connection = True
            return
        data = json.dumps(reply.document).encode() if reply.data is None else reply.data
        self.send_response(reply.status)
        kind = "application/json" if reply.status < 400 else "application/problem+json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if reply.drip_s:
            for number in range(len(data)):
                self.wfile.write(data[number : number + 1])
                time.sleep(reply.drip_s)
        else:
            self.wfile.write(data[: len(data) - reply.missing])
        self.close_connection = self.close_connection or bool(reply.missing)

    def log_message(self, format: str, *args: Any) -> None:
        pass
