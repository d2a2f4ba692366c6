"""The outermost middleware: each request's id, its time, its counters and its line in the log."""

import logging
import re
import time
import uuid
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access.locations import shown_model_id
from api.http.middleware.admission import PROBES
from api.observe.metrics import Metrics, Serving
from api.observe.request_record import RequestRecord, taking_notes
from api.search.service import SearchService
from api.settings import RequestLimits

logger = logging.getLogger("api.requests")

REQUEST_ID: Final = "X-Request-ID"
_SANE_ID: Final = re.compile(r"[!-~]{1,128}")

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# nginx's status for a caller that left before the answer.
_LEFT: Final = 499


def install_telemetry(app: FastAPI, metrics: Metrics, *, send_request_ids: bool = True) -> None:
    """Count, time and log every request, give it an id, and answer GET /metrics.

    Added last, so that it sees a request first: requests that others refuse are counted too.
    """
    app.add_middleware(_Telemetry, metrics=metrics, send_request_ids=send_request_ids)

    @app.get(
        "/metrics",
        tags=["state"],
        summary="Counters and timings, for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text format, or OpenMetrics"}},
    )
    async def read_metrics(request: Request) -> Response:
        body, media_type = await metrics.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": media_type})


def follow(service: SearchService, metrics: Metrics, limits: RequestLimits) -> None:
    """Let `metrics` report the engine of `service`, and how its queries are embedded."""
    service.on_batch.append(metrics.batch)
    metrics.follow(lambda: _serving(service, limits.show_locations))


def _serving(service: SearchService, locations: bool) -> Serving:
    engine, live = service.engine, service.live
    return Serving(
        version=engine.version,
        model=shown_model_id(engine.model.model_id, locations),
        rows=engine.searcher.ntotal,
        built=engine.searcher.manifest.created_at,
        swaps=live.swaps,
        failed_swaps=live.failed_swaps,
        behind=live.failure is not None,
        waiting=engine.batcher.waiting,
        cache_hits=service.cache.hits,
        cache_misses=service.cache.misses,
    )


class _Telemetry:
    def __init__(self, app: ASGIApp, metrics: Metrics, send_request_ids: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._send_request_ids = send_request_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, outside, status = time.perf_counter(), scope.get("root_path", ""), None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._send_request_ids:
                    MutableHeaders(scope=message)[REQUEST_ID] = noted.request_id
            await send(message)

        with taking_notes(_request_id(scope)) as noted, self._metrics.in_flight():
            try:
                await self._app(scope, receive, watched)
            except Exception:
                status = status or 500
                raise
            finally:
                seconds = time.perf_counter() - started
                self._report(scope["method"], _route(scope, outside), status or _LEFT, seconds, noted)

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
                    "index": noted.index,
                    "problems": sorted(set(noted.problems)) or None,
                    "key": noted.key,
                }
            },
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
    return _would_be_route(scope)


def _would_be_route(scope: Scope) -> str | None:
    """The same for a request that was refused before it came to a route, and for routes of Starlette's own."""
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
