"""The outermost middleware: the collection that a path names, and for every request its id, its headers, its counters
and its line in the log.
"""

import logging
import re
import time
import uuid
from typing import Final

from fastapi.routing import iter_route_contexts
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import Problem, abbreviate
from api.http.middleware.admission import PROBES, route_path
from api.http.problems import problem_response, unforeseen
from api.observe.log import RequestRecord, taking_notes
from api.observe.metrics import Metrics

logger = logging.getLogger("api.requests")
failures = logging.getLogger(__name__)

COLLECTION: Final = "likeness.collection"
NAMED: Final = "likeness.collection_named"
"""In the scope: the collection of a request, and whether its path names it."""
_PREFIX: Final = "/collections/"

API_VERSION: Final = "API-Version"
VERSION: Final = "1"
REQUEST_ID: Final = "X-Request-ID"
_SANE_ID: Final = re.compile(r"[!-~]{1,128}")
# Unless an answer has its own.
_FOR_BROWSERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Answers are data, not pages; the web pages have a policy of their own.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# nginx's status for a caller that left before the answer.
_LEFT: Final = 499


class EveryRequestMiddleware:
    """Counts, times and logs every request, and refuses those for another version of the interface.

    It goes outside all others, whose refusals are counted too, and need its headers. HEAD is answered as GET without a
    body. A request that names a collection is treated as if the app were mounted at `/collections/NAME`; others are for
    the `first` one.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, first: str, send_request_ids: bool = True) -> None:
        self._app = CatchAll(app)
        self._metrics = metrics
        self._first = first
        self._send_request_ids = send_request_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _name_collection(scope, self._first)
        started, outside, status = time.perf_counter(), scope.get("root_path", ""), None
        is_head = scope["method"] == "HEAD"

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(MutableHeaders(scope=message), noted.request_id)
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        with taking_notes(_request_id(scope)) as noted, self._metrics.in_flight():
            try:
                app = _version_refusal(scope) or self._app
                await app({**scope, "method": "GET"} if is_head else scope, receive, sending)
            finally:
                seconds = time.perf_counter() - started
                self._report(scope["method"], _route(scope, outside), status or _LEFT, seconds, noted)

    def _add_headers(self, headers: MutableHeaders, request_id: str) -> None:
        headers[API_VERSION] = VERSION
        if self._send_request_ids:
            headers[REQUEST_ID] = request_id
        for name, value in _FOR_BROWSERS.items():
            headers.setdefault(name, value)

    def _report(self, method: str, route: str | None, status: int, seconds: float, noted: RequestRecord) -> None:
        method = method if method in _METHODS else "other"
        self._metrics.answered(method, route or "none", status, seconds)
        self._metrics.noted(noted)
        quiet = route in PROBES and status == 200  # whose successes would bury everything else
        logger.log(
            logging.DEBUG if quiet else logging.INFO,
            "answered",
            extra={
                "fields": {
                    "method": method,
                    "route": route,
                    "status": status,
                    "milliseconds": round(seconds * 1e3, 3),
                    "stages_ms": _milliseconds(noted.stages) or None,
                    "collection": noted.collection,
                    "index": noted.index,
                    "problems": sorted(set(noted.problems)) or None,
                    "key": noted.key,
                }
            },
        )


class CatchAll:
    """Answers exceptions of what it wraps with 500 and logs them, without details for the caller."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            failures.info("%s %s: the caller left", scope["method"], scope["path"])
        except Exception:
            if started:
                raise
            failures.exception("%s %s failed", scope["method"], scope["path"])
            await problem_response(unforeseen())(scope, receive, send)


def _name_collection(scope: Scope, first: str) -> None:
    """Puts the collection's name into the scope, and the prefix of the path into `root_path`."""
    scope[COLLECTION], scope[NAMED] = first, False
    path = route_path(scope)
    if path.startswith(_PREFIX):
        name, slash, _ = path.removeprefix(_PREFIX).partition("/")
        if name and slash:
            scope[COLLECTION], scope[NAMED] = name, True
            scope["root_path"] = f"{scope.get('root_path', '')}{_PREFIX}{name}"


def _version_refusal(scope: Scope) -> ASGIApp | None:
    version = Headers(scope=scope).get(API_VERSION, VERSION)
    if version.strip() == VERSION:
        return None
    return problem_response(
        Problem("unknown-api-version", f"expected {API_VERSION}: {VERSION}, got {abbreviate(version)}")
    )


def _request_id(scope: Scope) -> str:
    """The caller's request id, if it is fit for a header and a log line, else a new one."""
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex


def _route(scope: Scope, outside: str) -> str | None:
    """The route template that the path matched. Paths contain ids: as labels they would make endless series."""
    if (template := getattr(scope.get("route"), "path_format", None)) is not None:
        return str(template)
    if (mounted := scope.get("root_path", "").removeprefix(outside)) != "":
        return f"{mounted}/{{path}}"
    # A request that was refused before it came to a route, and routes of Starlette's own.
    for context in iter_route_contexts(scope["app"].routes):
        match, _ = context.original_route.matches(scope)
        if match is not Match.NONE:
            return context.path_format
    return None


def _milliseconds(stages: list[tuple[str, float]]) -> dict[str, float]:
    """Milliseconds by stage, summed over the searches of a batch."""
    added: dict[str, float] = {}
    for name, seconds in stages:
        added[name] = added.get(name, 0.0) + seconds * 1e3
    return {name: round(ms, 3) for name, ms in added.items()}
