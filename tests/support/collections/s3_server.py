"""An S3 server on loopback (moto's, over real sockets), and one that injects faults by a seed."""

from __future__ import annotations

import io
import random
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch
from urllib.parse import parse_qsl, urlencode

import boto3  # type: ignore[import-untyped]
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

from tests.support.scripted_server import in_thread

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
}
"""Environment variables that a test needs; the server accepts any credentials."""

FAULTS = ("500", "503", "refused", "unheard", "cut", "slow")
"""Answers of 500 and 503; a connection closed before or after the request is carried out; a body that ends half way;
one whose second half trickles in over `pause_s`. There is also "silent": nothing arrives for `pause_s`, then the
connection is closed.
"""

_TRICKLES = 8

_CODES = {"400": "InvalidRequest", "500": "InternalError", "503": "SlowDown"}
_MOTO: WSGIApplication = DomainDispatcherApplication(create_backend_app)
_ERROR = "<Error><Code>{code}</Code><Message>try again</Message><RequestId>1</RequestId></Error>"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server during the block; yields host:port. All servers of a process share their content."""
    with patch.object(S3Response, "put_object", _put_object), _serving(_MOTO) as host:
        yield host


def _serving(app: WSGIApplication) -> AbstractContextManager[str]:
    return in_thread(make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler))


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
class FaultyServer:
    """Makes a share of the requests fail in the ways in `faults`, each as often; listings have pages of `page` keys.

    No request (method and target) fails more than twice in a row, so three attempts suffice, unless it gets a 400.
    """

    share: float = 0.0
    seed: int = 0
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

    def listening(self) -> AbstractContextManager[str]:
        """Run the server during the block; yields host:port. It has the content of `s3_server`."""
        return _serving(self._answer)

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        body = get_input_stream(environ).read()
        fault = self.draw(f"{environ['REQUEST_METHOD']} {environ['REQUEST_URI']}")
        if fault in _CODES:
            start_response(f"{fault} {_CODES[fault]}", [("Content-Type", "application/xml")])
            return [_ERROR.format(code=_CODES[fault]).encode()]
        if fault == "silent":
            time.sleep(self.pause_s)
        if fault in ("refused", "silent"):
            _hang_up(environ)
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        if query.get("list-type") == "2":
            environ["QUERY_STRING"] = urlencode({**query, "max-keys": self.page})
        data = b"".join(_MOTO({**environ, "wsgi.input": io.BytesIO(body)}, start_response))
        if fault == "unheard":
            _hang_up(environ)
        return self._parts(data, fault, environ)

    def _parts(self, data: bytes, fault: str | None, environ: WSGIEnvironment) -> Iterator[bytes]:
        half = len(data) // 2
        yield data[:half]
        if fault == "cut" and data:
            _hang_up(environ)
        if fault != "slow":
            yield data[half:]
            return
        size = max(1, -(-(len(data) - half) // _TRICKLES))
        for start in range(half, len(data), size):
            time.sleep(self.pause_s / _TRICKLES)
            yield data[start : start + size]


def _hang_up(environ: WSGIEnvironment) -> NoReturn:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError
