"""A web server on loopback whose paths answer as a test says, honestly or not."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from embedder.errors import FetchError
from embedder.fetch import Fetcher

PICTURE = bytes(range(256)) * 8
Route = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A server on 127.0.0.1 whose paths, with or without their queries, are functions of the request's handler."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.routes: dict[str, Route] = {"/picture": lambda handler: answer(handler, PICTURE)}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.connections: set[tuple[str, int]] = set()
        self.connected: list[tuple[str, int]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append((self.path, dict(self.headers)))
                outer.connections.add(self.client_address)
                try:
                    outer.routes.get(self.path, outer.routes.get(self.path.partition("?")[0], missing))(self)
                except OSError:
                    self.close_connection = True  # the client has seen enough

            do_HEAD = do_GET  # noqa: N815  (a name that http.server looks for)

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        self._httpd = Quiet(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._httpd.socket = tls.wrap_socket(self._httpd.socket, server_side=True)
        self.port: int = self._httpd.server_address[1]
        threading.Thread(target=self._httpd.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def stop(self) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()  # twice does no harm


def answer(handler: BaseHTTPRequestHandler, body: bytes, *, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    names = {"Content-Type": "image/png", "Content-Length": str(len(body))}
    for name, value in (names | {key.replace("_", "-"): value for key, value in headers.items()}).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def missing(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, b"", status=404)


def redirect(location: str, status: int = 302) -> Route:
    return lambda handler: answer(handler, b"moved", status=status, Location=location)


def raw(*parts: bytes, endless: bytes = b"", pause: float = 0.0) -> Route:
    """Sends bytes as they are, then `endless` again and again; `pause` seconds after each. Closes at the end."""

    def route(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"".join(parts))
        time.sleep(pause)
        while endless:
            handler.wfile.write(endless)
            handler.wfile.flush()
            time.sleep(pause)

    return route


@contextmanager
def end_of_all_connections() -> Iterator[Server]:
    """A server that the fetcher is connected to wherever it wanted to go, once it has checked the address.

    `connected` are the addresses that it wanted to go to.
    """
    server, really = Server(), socket.create_connection

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        server.connected.append(address)
        return really(("127.0.0.1", server.port), timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedder.fetch.addresses.socket.create_connection", connect)
        yield server
    server.stop()


def failure(fetcher: Fetcher, uri: str) -> FetchError:
    """The error of a fetch that has to fail."""
    with pytest.raises(FetchError) as caught:
        fetcher.fetch(uri)
    assert caught.value.stage == "fetch"
    return caught.value
