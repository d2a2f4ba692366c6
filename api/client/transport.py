"""Requests to a Likeness server, with retries and a time limit."""

import io
import json
import time
from collections.abc import Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import urllib3
from requests.auth import AuthBase
from urllib3.exceptions import InvalidHeader, ProtocolError
from urllib3.util import Retry

from api.client.query import Body
from api.errors import ClientError, ProblemAnswered, RequestRefused, ServerUnavailable, ServerUnreachable

_TRANSIENT: Final = frozenset({429, 502, 503, 504})  # not 500, a defect that a retry would meet again
_CONNECT_S: Final = 5.0
_READ_S: Final = 30.0  # without a byte
_NO_RETRIES: Final = Retry(0)
_MIN_TIMEOUT_S: Final = 1e-3  # 0 would make a socket non-blocking
_BLOCK_BYTES: Final = 2**16


class Transport:
    """HTTP to one server. Thread-safe.

    `send` may take `timeout` seconds, including waits and retries. This is checked whenever bytes are sent or arrive,
    so it can take longer by at most `_READ_S`.

    Idempotent requests are retried, at most `retries` times, after a connection that failed or broke and after 429,
    502, 503 and 504, unless the problem document says that a retry is useless. Retry-After is honoured.
    """

    # Not the retries of requests' adapter, which have no time limit for the whole call, and do not retry an answer that
    # breaks off in its body.
    def __init__(self, base_url: str, *, api_key: str | None, timeout: float, retries: int) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"expected a base_url such as http://127.0.0.1:8000, got {base_url!r}")
        if not isinstance(timeout, int | float) or not timeout > 0:  # type: ignore[redundant-expr]  # unchecked callers
            raise ValueError(f"expected a timeout in seconds for a whole call, such as 60, got {timeout!r}")
        self.base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._retry = Retry(retries, backoff_factor=0.1, backoff_max=5.0, backoff_jitter=0.1)
        self._session = requests.Session()
        self._session.headers.update({"Accept": "application/json", "API-Version": "1"})
        # Without cookies a session does not change between requests, so threads can share it.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=64)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)
        if api_key is not None:
            self._session.auth = _BearerAuth(api_key)

    def close(self) -> None:
        self._session.close()

    def json(self, method: str, path: str, *, body: Body | None = None, repeatable: bool = True) -> dict[str, Any]:
        """The JSON object in the answer. Raises like `send`, and ClientError if it is not a JSON object."""
        data = self.send(method, path, body=body, repeatable=repeatable)
        document = _json_object(data)
        if document is None:
            raise ClientError(
                f"expected a JSON object from {self.base_url}{path}, got {data[:40]!r}: is this a Likeness server?"
            )
        return document

    def send(self, method: str, path: str, *, body: Body | None = None, repeatable: bool = True) -> bytes:
        """The body of the answer. Raises RequestRefused, ServerUnavailable, ServerUnreachable."""
        deadline = time.monotonic() + self._timeout
        retry = self._retry if repeatable else _NO_RETRIES
        while True:
            try:
                return self._attempt(method, path, body, deadline)
            except ClientError as error:
                if not retry.total or not _is_transient(error):
                    raise
                retry = retry.increment(method, path)
                requested_wait = error.retry_after if isinstance(error, ServerUnavailable) else None
                wait = retry.get_backoff_time() if requested_wait is None else requested_wait
                # If the wait would exceed the time limit, the caller gets the error now.
                if time.monotonic() + wait >= deadline:
                    raise
            time.sleep(wait)

    def _attempt(self, method: str, path: str, body: Body | None, deadline: float) -> bytes:
        remaining = max(deadline - time.monotonic(), _MIN_TIMEOUT_S)
        try:
            with self._session.request(
                method,
                self.base_url + path,
                data=_Upload(body.data, deadline) if body else None,
                headers={"Content-Type": body.media_type} if body else None,
                timeout=(min(_CONNECT_S, remaining), min(_READ_S, remaining)),
                allow_redirects=False,  # a key must not be sent to another host
                stream=True,
            ) as response:
                data = self._read(response, deadline)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise ServerUnreachable(f"{method} {self.base_url}{path}: {self._reason(error)}") from error
        if response.status_code // 100 == 2:
            return data
        raise refusal(_problem(response, data), self._retry_after(response))

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        blocks = []
        # Not `iter_content`, which waits for whole blocks, however slowly they fill.
        while block := response.raw.read1(_BLOCK_BYTES, decode_content=True):
            blocks.append(block)
            if time.monotonic() > deadline:
                raise ServerUnreachable(f"{response.url}: the answer took longer than {self._timeout:g} s")
        return b"".join(blocks)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, requests.ConnectTimeout):
            return f"no connection within {min(_CONNECT_S, self._timeout):g} s"
        if isinstance(error, requests.ReadTimeout | urllib3.exceptions.ReadTimeoutError):
            return f"no answer within {min(_READ_S, self._timeout):g} s"
        wrapped = error.args[0] if error.args else error
        return str(getattr(wrapped, "reason", wrapped))

    def _retry_after(self, response: requests.Response) -> float | None:
        value = response.headers.get("Retry-After")
        try:
            return None if value is None else self._retry.parse_retry_after(value)
        except InvalidHeader:
            return None


class _Upload(io.BytesIO):
    """A body that is sent block by block, because urllib3 gives each block the time to connect."""

    def __init__(self, data: bytes, deadline: float) -> None:
        super().__init__(data)
        self._deadline = deadline

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self._deadline:
            raise TimeoutError("not sent in time")
        return super().read(size)


class _BearerAuth(AuthBase):
    # Not a header of the session, because a .netrc would override that.
    def __init__(self, key: str) -> None:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            advice = "does it end with a line break?" if key else "it is empty: is its variable set?"
            raise ValueError(f"api_key: expected printable ASCII without spaces; {advice}")
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._key}"
        return request


def refusal(problem: Mapping[str, Any], retry_after: float | None = None) -> ProblemAnswered:
    """The error of a problem document; `retry_after` in seconds, if the answer has that header."""
    if retry_after is None:
        retry_after = problem.get("retry_after_s")
    may_pass = problem.get("status") in _TRANSIENT and problem.get("retryable") is not False
    return (ServerUnavailable if may_pass else RequestRefused)(problem, retry_after)


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _is_transient(error: ClientError) -> bool:
    """Whether a retry of the same request may succeed."""
    # A read timeout is not retried: a slow server must not get more work.
    is_broken = isinstance(error.__cause__, requests.ConnectionError | ProtocolError)
    is_broken = is_broken and not isinstance(error.__cause__, requests.exceptions.SSLError)
    return is_broken or isinstance(error, ServerUnavailable)


def _problem(response: requests.Response, data: bytes) -> dict[str, Any]:
    """The problem document, or a substitute if the answer has none, for example from a proxy."""
    status = response.status_code
    document = _json_object(data)
    if document is not None and "type" in document:
        return {**document, "status": status}
    detail = f"{response.url} answers {status} {response.reason} without a problem document"
    if response.is_redirect:
        detail = f"{response.url} redirects to {response.headers['Location']}: use that as the base_url"
    return {"type": "about:blank", "title": response.reason, "status": status, "detail": detail}
