"""http(s) URLs → bytes, within a policy that also protects against hostile servers."""

import random
import socket
import ssl
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import BoundedSemaphore
from urllib.parse import urljoin

import urllib3.exceptions
from urllib3.response import BaseHTTPResponse
from urllib3.util import Retry, Timeout, Url, parse_url

from embedder.errors import FetchError
from embedder.fetch.connections import PinnedPools, WireLimitError
from embedder.fetch.policy import PORTS, FetchPolicy
from embedder.fetch.public_addresses import ForbiddenAddressError, Resolver, open_socket, resolve_host
from embedder.fetch.uris import fetch_error, printable_uri
from embedder.fetch.validators import UNKNOWN, Download, Validators

# "identity": an uncompressed body cannot be a bomb, and pictures hardly compress anyway.
_HEADERS = {"Accept": "image/*, */*;q=0.5", "Accept-Encoding": "identity", "User-Agent": "likeness"}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({408, 425, 429})  # besides 500 and above
# Many object stores serve pictures with these types; the decoder decides.
_UNTYPED = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_CHUNK_BYTES = 1 << 16
_MAX_FRAMING_BYTES = 1 << 20


class _BusyError(FetchError):
    """A temporary refusal, with the seconds for which the server asks to wait."""

    retry_after_s = 0.0


class HttpClient:
    """Fetches URLs, from each host at most `policy.per_host` at a time. Thread-safe; reuses connections to a host."""

    def __init__(
        self, policy: FetchPolicy, *, resolve: Resolver = resolve_host, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._policy = policy
        self._resolve = resolve
        self._sleep = sleep
        self._pools = PinnedPools(self._connect, wire_limit=policy.max_bytes + _MAX_FRAMING_BYTES)
        self._turns: dict[str, BoundedSemaphore] = {}
        self._timeouts = defaultdict[str, float](float)

    def get(self, url: str, known: Validators = UNKNOWN) -> Download:
        """The body, unless it is still the `known` one. Raises FetchError after the retries that the policy allows."""
        fetch = _Fetch(self._policy, self._pools, self._turns, self._timeouts, known)
        attempt = 0
        while True:
            try:
                download = fetch.follow(url)
                fetch.count_timeout(is_timeout=False)
                return download
            except FetchError as error:
                fetch.count_timeout(is_timeout=error.reason == "timeout")
                wait = self._policy.backoff_s * 2**attempt * random.uniform(0.5, 1.0)
                if isinstance(error, _BusyError):
                    wait = max(wait, error.retry_after_s)
                is_final = fetch.is_host_silent or not error.retryable
                if is_final or attempt >= self._policy.retries or wait >= fetch.left:
                    raise
            attempt += 1
            self._sleep(wait)

    def _connect(self, host: str, port: int, timeout: float) -> socket.socket:
        allow_private = self._policy.allows_host(host, port)
        return open_socket(host, port, timeout=timeout, resolve=self._resolve, allow_private=allow_private)


@dataclass
class _Fetch:
    """One fetch, which has to end at the `deadline` on the monotonic clock. `name` is its URL in messages.

    `timeouts` counts the attempts at a host that timed out; it is minus infinity once one ended otherwise.
    """

    policy: FetchPolicy
    pools: PinnedPools
    turns: dict[str, BoundedSemaphore]
    timeouts: dict[str, float]
    known: Validators
    name: str = ""
    host: str = ""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.policy.timeout_s

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def is_host_silent(self) -> bool:
        """Whether all of so many attempts timed out that the host is not asked again."""
        return self.policy.max_timeouts is not None and self.timeouts[self.host] >= self.policy.max_timeouts

    def follow(self, url: str) -> Download:
        # Each hop is checked like the first URL, and gets the same headers.
        current, self.name = url, printable_uri(url)
        for _ in range(self.policy.max_redirects + 1):
            target, self.host, port = self._target(current)
            with self._turn(self.host):
                response = self._request(target, self.host, port)
                try:
                    location = response.headers.get("Location")
                    if response.status in _REDIRECTS and location:
                        current = _join_url(current, location)
                        self.name = f"{printable_uri(url)} (redirected to {printable_uri(current)})"
                        continue
                    return self._download(response)
                except (urllib3.exceptions.HTTPError, WireLimitError) as error:
                    raise self._failure(error) from error
                finally:
                    # Returns the connection to its pool if the body was read to the end, else closes it.
                    response.close()
        redirects = f"more than {self.policy.max_redirects} redirects, the last to {printable_uri(current)}"
        raise fetch_error(url, "too_many_redirects", f"{redirects}; use the picture's own address")

    def count_timeout(self, *, is_timeout: bool) -> None:
        if self.policy.max_timeouts is not None:
            self.timeouts[self.host] += 1 if is_timeout else float("-inf")

    @contextmanager
    def _turn(self, host: str) -> Iterator[None]:
        """Wait until fewer than `policy.per_host` requests to the host are under way; the wait moves the deadline."""
        if self.policy.per_host is None:
            yield
            return
        asked = time.monotonic()
        with self.turns.setdefault(host, BoundedSemaphore(self.policy.per_host)):
            self.deadline += time.monotonic() - asked
            yield

    def _request(self, target: Url, host: str, port: int) -> BaseHTTPResponse:
        if self.is_host_silent:
            problem = f"the host answered none of {self.policy.max_timeouts} requests in time; try again later"
            raise self._error("timeout", problem, retryable=True)
        if (left := self.left) <= 0:
            raise self._failure(TimeoutError())
        try:
            return self.pools.connection_from_host(host, port, target.scheme).urlopen(
                "GET",
                target.request_uri,
                headers=_HEADERS | self.known.conditions,
                retries=False,
                redirect=False,
                preload_content=False,
                decode_content=False,
                timeout=Timeout(connect=min(left, self.policy.connect_timeout_s), total=left),
            )
        except (urllib3.exceptions.HTTPError, ForbiddenAddressError, WireLimitError) as error:
            raise self._failure(error) from error

    def _target(self, url: str) -> tuple[Url, str, int]:
        # Only this method parses a URL, so the connection goes to the checked host.
        try:
            target = parse_url(url)
        except (urllib3.exceptions.LocationValueError, ValueError) as error:
            raise self._error("bad_uri", "not a URL; check its spelling") from error
        if target.scheme not in PORTS or target.scheme not in self.policy.schemes:
            raise self._error("forbidden_scheme", "only http and https are followed")
        if not target.host:
            raise self._error("bad_uri", f"expected a host after {target.scheme}://")
        if target.auth is not None:
            raise self._error("forbidden_userinfo", "user names and passwords in URLs are not used; leave them out")
        port = target.port if target.port is not None else PORTS[target.scheme]
        if port not in PORTS.values() and not self.policy.allows_host(target.host, port):
            raise self._error("forbidden_port", f"port {port} is neither 80 nor 443, nor that of an allowed host")
        return target, target.host, port

    def _download(self, response: BaseHTTPResponse) -> Download:
        validators = Validators.of(response.headers)
        if response.status == 304 and self.known != UNKNOWN:
            self._body(response)  # an empty one, read to the end
            etag, modified = validators.etag or self.known.etag, validators.modified or self.known.modified
            return Download(data=None, validators=Validators(etag=etag, modified=modified))
        self._check(response)
        return Download(data=self._body(response), validators=validators)

    def _check(self, response: BaseHTTPResponse) -> None:
        status = response.status
        if status in _BUSY or status >= 500:
            error = _BusyError(f"http_{status}", f"{self.name}: the server answered {status}", retryable=True)
            error.retry_after_s = _retry_after_s(response.headers.get("Retry-After", ""))
            raise error
        if status != 200:
            raise self._error(f"http_{status}", f"the server answered {status}, expected 200")
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if self.policy.public_only and not kind.startswith("image/") and kind not in _UNTYPED:
            problem = f"expected a picture, but the server sent {kind}; link to the picture itself"
            raise self._error("not_an_image", problem)

    def _body(self, response: BaseHTTPResponse) -> bytes:
        limit = self.policy.max_bytes
        if (response.length_remaining or 0) > limit:
            raise self._too_large()
        body = bytearray()
        for chunk in response.stream(_CHUNK_BYTES, decode_content=False):
            body += chunk
            if len(body) > limit:
                raise self._too_large()
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        return bytes(body) if encoding in ("", "identity") else self._inflate(bytes(body), encoding)

    def _inflate(self, body: bytes, encoding: str) -> bytes:
        # Some servers compress even if the request forbids it.
        inflater = zlib.decompressobj(wbits=47)  # 32 + 15: a gzip or a zlib header
        try:
            if encoding not in ("gzip", "x-gzip", "deflate"):
                raise zlib.error("unknown encoding")
            data = inflater.decompress(body, self.policy.max_bytes + 1)
            if len(data) > self.policy.max_bytes:
                raise self._too_large()
            if not inflater.eof:
                raise zlib.error("ends early")
        except zlib.error as error:
            got = f"got Content-Encoding {encoding!r}, which cannot be decoded ({error})"
            raise self._error("bad_content_encoding", f"expected an uncompressed body, {got}") from error
        return data

    def _error(self, reason: str, message: str, *, retryable: bool = False) -> FetchError:
        return FetchError(reason, f"{self.name}: {message}", retryable=retryable)

    def _too_large(self) -> FetchError:
        return self._error("too_many_bytes", f"larger than the {self.policy.max_bytes:,} bytes allowed")

    def _failure(self, error: Exception) -> FetchError:
        match error:
            case ForbiddenAddressError():
                # Without the address, because strangers should not learn how names resolve internally.
                problem = "the host is neither on the public internet nor an allowed host"
                return self._error("forbidden_address", problem)
            case WireLimitError():
                return self._too_large()
            case urllib3.exceptions.NameResolutionError():
                temporary = getattr(error.__cause__, "errno", None) == socket.EAI_AGAIN
                return self._error("unknown_host", "the host's name has no address", retryable=temporary)
            case urllib3.exceptions.NewConnectionError():  # derives from a timeout error, but is not a timeout
                return self._error("connection_failed", str(error.__cause__), retryable=True)
            case urllib3.exceptions.TimeoutError() | TimeoutError():
                limits = f"{self.policy.connect_timeout_s:g} s to connect, {self.policy.timeout_s:g} s in all"
                return self._error("timeout", f"took too long ({limits})", retryable=True)
            case urllib3.exceptions.SSLError():
                permanent = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in error.args)
                return self._error("tls_failed", f"no secure connection: {error}", retryable=not permanent)
        return self._error("connection_failed", str(error), retryable=True)


def _join_url(base: str, location: str) -> str:
    with suppress(UnicodeError):  # headers are read as Latin-1, but those that are not ASCII usually are UTF-8
        location = location.encode("latin-1").decode()
    try:
        return urljoin(base, location)
    except ValueError:
        return location  # the next hop refuses it


def _retry_after_s(retry_after: str) -> float:
    """Seconds to wait, from a number or a date; 0 if it is neither."""
    with suppress(urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return float(Retry().parse_retry_after(retry_after))
    return 0.0
