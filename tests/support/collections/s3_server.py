"""An S3 server on loopback (moto's, over real sockets), and a proxy that injects faults by a seed."""

from __future__ import annotations

import http.client
import random
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl, urlencode, urlsplit

import boto3  # type: ignore[import-untyped]
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from tests.support.scripted_server import QuietServer, in_thread

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
}
"""Environment variables that a test needs; the server accepts any credentials."""

FAULTS = ("500", "503", "refused", "unheard", "cut", "slow")
"""Answers of 500 and 503; a connection closed before the request is forwarded, or after it was carried out; a body
that ends half way; one whose second half trickles in over `pause_s`. There is also "silent": nothing arrives for
`pause_s`, then the connection is closed.
"""

_TRICKLES = 8

_CODES = {"400": "InvalidRequest", "500": "InternalError", "503": "SlowDown"}
_ERROR = "<Error><Code>{code}</Code><Message>try again</Message><RequestId>1</RequestId></Error>"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server during the block; yields host:port. All servers of a process share their content."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    with patch.object(S3Response, "put_object", _put_object):
        server.start()
        try:
            host, port = server.get_host_and_port()
            yield f"{host}:{port}"
        finally:
            server.stop()


_PUT, _PUTTING = S3Response.put_object, threading.Lock()


def _put_object(self: Any) -> Any:
    """One at a time, because moto checks `If-Match` and writes in two steps."""
    with _PUTTING:
        return _PUT(self)


@dataclass(frozen=True)
class Bucket:
    """An empty bucket at `server` (host:port)."""

    name: str
    server: str

    @property
    def endpoint(self) -> str:
        """The value for AWS_ENDPOINT_URL."""
        return f"http://{self.server}"

    @cached_property
    def client(self) -> Any:
        """boto3's client."""
        options = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=self.endpoint, **options)

    def address(self, prefix: str, server: str | None = None, credentials: str = "") -> str:
        """An s3:// address that includes the server, so that the environment need not."""
        query = f"scheme=http&endpoint_override={server or self.server}&region=us-east-1"
        return f"s3://{credentials}{self.name}/{prefix}?{query}"

    def put(self, key: str, data: bytes) -> None:
        """Directly, as a request takes long."""
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(self.name, key, data)

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def unfinished_uploads(self) -> list[str]:
        """Keys of uploads in parts that were neither completed nor aborted."""
        found = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return [upload["Key"] for upload in found]


def new_bucket(server: str) -> Bucket:
    """Create a bucket with a unique name."""
    bucket = Bucket(f"b-{secrets.token_hex(6)}", server)
    bucket.client.create_bucket(Bucket=bucket.name)
    return bucket


def new_cache(folder: Path) -> Path:
    """Make an empty cache in a folder. Tests share converted models, because converting takes seconds."""
    models = Path("~/.cache/likeness/models").expanduser()
    models.mkdir(parents=True, exist_ok=True)
    (folder / "cache").mkdir()
    (folder / "cache" / "models").symlink_to(models)
    return folder / "cache"


@dataclass
class FaultyProxy:
    """Makes a share of the requests fail in the ways in `faults`, each as often; listings have pages of `page` keys.

    No request (method and target) fails more than twice in a row, so three attempts suffice, unless it gets a 400.
    """

    upstream: str
    share: float
    seed: int
    faults: Sequence[str] = FAULTS
    page: int = 1000
    pause_s: float = 0.2
    after: int = 0
    """Number of requests before the first fault."""
    count: Counter[str] = field(default_factory=Counter)
    """How often each fault happened, and `requests`."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._in_a_row: Counter[str] = Counter()
        self._round: list[str] = []
        self._lock = threading.Lock()

    def draw(self, request: str) -> str | None:
        """The fault for a request, or None."""
        with self._lock:
            self.count["requests"] += 1
            exempt = self.count["requests"] <= self.after or self._in_a_row[request] >= 2
            if self._random.random() >= self.share or exempt:
                self._in_a_row[request] = 0
                return None
            self._in_a_row[request] += 1
            fault = self._next_fault()
            self.count[fault] += 1
            return fault

    def _next_fault(self) -> str:
        """In rounds, in which each kind comes once: drawn alone, one of seven is now and then absent among twenty."""
        if not self._round:
            self._round = self._random.sample(list(self.faults), len(self.faults))
        return self._round.pop()

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Run the proxy during the block; yields host:port."""
        handler = type("Handler", (_Handler,), {"proxy": self})
        with in_thread(QuietServer(("127.0.0.1", 0), handler)) as host:
            yield host


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def handle_one_request(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle_one_request()
            return
        self.close_connection = True

    def do_GET(self) -> None:
        body = self._body()
        fault = self.proxy.draw(f"{self.command} {self.path}")
        if fault in _CODES:
            error = _ERROR.format(code=_CODES[fault]).encode()
            self._answer(int(fault), [("Content-Type", "application/xml")], error, None)
            return
        if fault == "silent":
            time.sleep(self.proxy.pause_s)
        if fault not in ("refused", "silent"):
            answer = self._forward(body)
            if fault != "unheard":
                self._answer(*answer, fault)
                return
        self._hang_up()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815  (names that http.server looks for)

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue" or "chunked" not in self.headers.get(
            "Transfer-Encoding", ""
        ):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        target = self.path
        if query.get("list-type") == "2":
            target = f"{url.path}?{urlencode({**query, 'max-keys': str(self.proxy.page)})}"
        skipped = {"connection", "transfer-encoding", "content-length", "expect"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
        host, port = self.proxy.upstream.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            empty = b"" if self.command in ("PUT", "POST") else None
            connection.request(self.command, target, body or empty, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, fault: str | None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), str(len(data)))
        if status != 204:
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        half = len(data) // 2
        self.wfile.write(data[:half])
        if fault == "cut" and data:
            self._hang_up()
            return
        if fault != "slow":
            self.wfile.write(data[half:])
            return
        size = max(1, -(-(len(data) - half) // _TRICKLES))
        for start in range(half, len(data), size):
            time.sleep(self.proxy.pause_s / _TRICKLES)
            self.wfile.write(data[start : start + size])

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
