"""The outermost middleware: strips the collection's name from paths, and sees to every request's id, headers, metrics
and log line.
"""

import logging
import re
import time
import uuid
from typing import Final

from fastapi.routing import iter_route_contexts
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.middleware.admission import PROBE_PATHS, route_path
from api.http.problem_responses import problem_response
from api.observe.log import RequestRecord, record_request
from api.observe.metrics import Metrics
from api.problems import UnknownApiVersion, abbreviate

logger = logging.getLogger("api.requests")

COLLECTION: Final = "likeness.collection"
HAS_PREFIX: Final = "likeness.has_collection_prefix"
"""In the scope: the collection of a request, and whether its path names the collection."""
_PREFIX: Final = "/collections/"

API_VERSION: Final = "API-Version"
VERSION: Final = "1"
REQUEST_ID: Final = "X-Request-ID"
_VALID_ID: Final = re.compile(r"[!-~]{1,128}")
# Defaults, which a route may override.
_SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Answers are data, not pages; the web pages have their own policy.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# nginx's status for a caller who left before the answer.
_CLIENT_LEFT: Final = 499


class EveryRequestMiddleware:
    """Counts, times and logs every request, and refuses those for another version of the API.

    It wraps all other middleware, because their refusals are counted too, and get its headers. HEAD is answered as GET
    without a body. A request that names a collection is treated as if the app were mounted at `/collections/NAME`;
    other requests are for the `first` collection.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, first: str, send_request_ids: bool = True) -> None:
        self._app = app
        self._metrics = metrics
        self._first = first
        self._send_request_ids = send_request_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _set_collection(scope, self._first)
        started, outer_path, status = time.perf_counter(), scope.get("root_path", ""), None
        is_head = scope["method"] == "HEAD"

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(MutableHeaders(scope=message), record.request_id)
            elif is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        with record_request(_request_id(scope)) as record, self._metrics.in_flight():
            try:
                app = _version_refusal(scope) or self._app
                await app({**scope, "method": "GET"} if is_head else scope, receive, send_with_headers)
            finally:
                seconds = time.perf_counter() - started
                self._report(scope["method"], _route(scope, outer_path), status or _CLIENT_LEFT, seconds, record)

    def _add_headers(self, headers: MutableHeaders, request_id: str) -> None:
        headers[API_VERSION] = VERSION
        if self._send_request_ids:
            headers[REQUEST_ID] = request_id
        for name, value in _SECURITY_HEADERS.items():
            headers.setdefault(name, value)

    def _report(self, method: str, route: str | None, status: int, seconds: float, record: RequestRecord) -> None:
        method = method if method in _METHODS else "other"
        self._metrics.count_request(method, route or "none", status, seconds)
        self._metrics.count_record(record)
        is_healthy_probe = route in PROBE_PATHS and status == 200  # these would bury everything else
        logger.log(
            logging.DEBUG if is_healthy_probe else logging.INFO,
            "answered",
            extra={
                "fields": {
                    "method": method,
                    "route": route,
                    "status": status,
                    "milliseconds": round(seconds * 1e3, 3),
                    **record.log_fields(),
                }
            },
        )


def _set_collection(scope: Scope, first: str) -> None:
    """Put the collection's name into the scope, and the prefix of the path into `root_path`."""
    scope[COLLECTION], scope[HAS_PREFIX] = first, False
    path = route_path(scope)
    if path.startswith(_PREFIX):
        name, slash, _ = path.removeprefix(_PREFIX).partition("/")
        if name and slash:
            scope[COLLECTION], scope[HAS_PREFIX] = name, True
            scope["root_path"] = f"{scope.get('root_path', '')}{_PREFIX}{name}"


def _version_refusal(scope: Scope) -> ASGIApp | None:
    version = Headers(scope=scope).get(API_VERSION, VERSION)
    if version.strip() == VERSION:
        return None
    return problem_response(UnknownApiVersion(f"expected {API_VERSION}: {VERSION}, got {abbreviate(version)}"))


def _request_id(scope: Scope) -> str:
    """The caller's request id if it is safe in a header and a log line, else a new one."""
    sent = Headers(scope=scope).get(REQUEST_ID, "")
    return sent if _VALID_ID.fullmatch(sent) else uuid.uuid4().hex


def _route(scope: Scope, outer_path: str) -> str | None:
    """The template of the matched route. Paths contain ids, which as labels would create unlimited series."""
    if (template := getattr(scope.get("route"), "path_format", None)) is not None:
        return str(template)
    if (mounted := scope.get("root_path", "").removeprefix(outer_path)) != "":
        return f"{mounted}/{{path}}"
    # For a request that was refused before routing, and for Starlette's own routes.
    for context in iter_route_contexts(scope["app"].routes):
        match, _ = context.original_route.matches(scope)
        if match is not Match.NONE:
            return context.path_format
    return None
