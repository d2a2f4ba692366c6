"""Runs the app in this process under uvicorn, without a cluster: for the demo, notebooks and single machines."""

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from fastapi import FastAPI

from api.build_service import build_collections
from api.connections import ACCEPTED_AT_ONCE, BoundedProtocol, BoundedServer
from api.errors import ListenError, StartError
from api.http.app import create_app
from api.observe.log import configure_logs
from api.search.engine import LoadModel
from api.settings import ServeSettings, server_url

# The longest id takes 12 KiB percent-encoded, and browsers add cookies.
MAX_HEAD_BYTES: Final = 2**16


def run_local(
    settings: ServeSettings,
    *,
    load_model: LoadModel | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve until interrupted. `on_listening` gets the server's URL once the model and the index are loaded.

    Raises ListenError and KeysError before anything is loaded, then what `build_collections` raises.
    """
    with listening(*settings.listen_address()) as listener:
        access = settings.access()
        configure_logs(settings.log_format)
        app = create_app(build_collections(settings, load_model=load_model), limits=settings.limits(), access=access)
        if on_listening is not None:
            on_listening(_url(listener))
        # As on Ray Serve: until then, each request has its answer.
        _server(app, stop_s=access.request_timeout_s).run(sockets=[listener])


@contextmanager
def running(app: FastAPI, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve `app` from a thread while the block lasts; yields the server's URL. Port 0 picks a free port."""
    with listening(host, port) as listener:
        server = _server(app, stop_s=5)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="likeness-http")
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise StartError("the HTTP server ended while it started; the log says why")
                time.sleep(0.01)
            yield _url(listener)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens on the address while the block lasts. Raises ListenError if another process does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            # Two processes may bind one port with SO_REUSEADDR; only one may listen on it.
            listener.listen(128)
        except OSError as error:
            raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from error
        yield listener


def _server(app: FastAPI, *, stop_s: float) -> uvicorn.Server:
    """`stop_s`: maximum seconds for the requests that are in progress when it stops; then they are cut off."""
    config = uvicorn.Config(
        app,
        # Not httptools, which keeps a request's head in memory however long it gets.
        http=BoundedProtocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        backlog=ACCEPTED_AT_ONCE,
        # uvicorn's messages go to our log; `api.http.middleware.every_request` logs the requests.
        log_config=None,
        access_log=False,
        log_level="warning",
        # X-Forwarded-For is trusted only from a proxy on this machine, over IPv4 or IPv6.
        forwarded_allow_ips=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1,::1,::ffff:127.0.0.1"),
        timeout_graceful_shutdown=math.ceil(stop_s),
    )
    return BoundedServer(config)


def _url(listener: socket.socket) -> str:
    return server_url(*listener.getsockname()[:2])
