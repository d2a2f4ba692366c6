"""Pooled http(s) connections that connect through a given function and stop reading at a deadline.

Only the method of urllib3 that connects is replaced, so host, certificate and Host header are not affected.
requests-hardened, which pins addresses too, allows fec0::/10, ::127.0.0.1 and Azure's 168.63.129.16.
"""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

Connect = Callable[[str, int, float], socket.socket]
"""Host, port, seconds → a connected socket."""


class WireLimitError(Exception):
    """A server sent more bytes than allowed, including headers and framing."""


class PinnedPools(urllib3.PoolManager):
    """Connection pools by scheme, host and port. No proxies, no cookies, no .netrc; thread-safe."""

    def __init__(self, connect: Connect, *, wire_limit: int) -> None:
        super().__init__(num_pools=64, maxsize=16)
        self._connection_kinds: dict[str, Any] = {
            "http": partial(_Connection, connect=connect, wire_limit=wire_limit),
            "https": partial(_SecureConnection, connect=connect, wire_limit=wire_limit),
        }

    def _new_pool(
        self, scheme: str, host: str, port: int, request_context: dict[str, Any] | None = None
    ) -> HTTPConnectionPool:
        if scheme == "https":
            request_context = {**(request_context or self.connection_pool_kw), "ssl_context": self._tls}
        pool = super()._new_pool(scheme, host, port, request_context)
        pool.ConnectionCls = self._connection_kinds[scheme]
        return pool

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # Made when first needed: reading the system's certificates takes longer than a fetch.
        return ssl.create_default_context()


class _Connection(HTTPConnection):
    def __init__(self, *args: Any, connect: Connect, wire_limit: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connect_to = connect
        self.response_class: Any = partial(_BoundedResponse, wire_limit=wire_limit)

    def _new_conn(self) -> socket.socket:
        seconds = float(self.timeout or 0)
        try:
            return self._connect_to(self._dns_host, self.port, seconds)
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise ConnectTimeoutError(self, f"no connection within {seconds:.3g} s") from error
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class _BoundedResponse(http.client.HTTPResponse):
    # At this point the socket's timeout is the time left for the whole transfer. A plain socket would restart it for
    # each read, and a server that sends a byte a second would never exceed it.
    def __init__(self, sock: socket.socket, *args: Any, wire_limit: int, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        deadline = time.monotonic() + (sock.gettimeout() or 0.0)
        self.fp = io.BufferedReader(_BoundedReader(self.fp.detach(), sock, deadline, wire_limit))

    def begin(self) -> None:
        super().begin()
        # urllib3 refuses this too, but leaves the socket open.
        lengths = ",".join(self.headers.get_all("Content-Length", [])).split(",")
        if len({length.strip() for length in lengths}) > 1:
            raise http.client.HTTPException(f"contradictory lengths {lengths}")

    def _safe_read(self, amt: int) -> bytes:
        # urllib3 parses a chunk's size with int(), which accepts a sign.
        if amt < 0:
            raise http.client.HTTPException(f"a chunk of {amt} bytes")
        return super()._safe_read(amt)  # type: ignore[misc,no-any-return]


class _BoundedReader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: socket.socket, deadline: float, limit: int) -> None:
        self._raw = raw
        self._sock = sock
        self._deadline = deadline
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the deadline of the transfer has passed")
        self._sock.settimeout(seconds)
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise WireLimitError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
