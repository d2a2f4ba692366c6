"""The outermost middleware: each request's id, time, counters and line in the log."""

import logging
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.middleware.admission import PROBES
from api.http.problems import problem_response, unforeseen
from api.http.responses import shown_model_id
from api.observe.log import RequestRecord, taking_notes
from api.observe.metrics import Metrics
from api.search.collections import Collections
from api.settings import RequestLimits

logger = logging.getLogger("api.requests")
failures = logging.getLogger(__name__)

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


def follow(collections: Collections, metrics: Metrics, limits: RequestLimits) -> None:
    """Let `metrics` report the engines of open collections, and how queries are embedded."""
    collections.batchers.on_batch.append(metrics.batch)
    metrics.follow(_EngineMetrics(collections, limits.show_locations))


class _EngineMetrics(Collector):
    """What the engines in use, the queues and the cache are when the metrics are read.

    Only where there are several collections has a metric of one the label `collection`.
    """

    def __init__(self, collections: Collections, locations: bool) -> None:
        self._collections = collections
        self._locations = locations

    def collect(self) -> Iterator[Metric]:
        batchers = self._collections.batchers
        yield from self._of_indexes()
        yield GaugeMetricFamily("likeness_embedding_queue_queries", "Queries waiting to be embedded.", batchers.waiting)
        lookups = CounterMetricFamily(
            "likeness_embedding_cache_lookups", "Lookups of queries' embeddings.", labels=("result",)
        )
        lookups.add_metric(("hit",), batchers.cache.hits)
        lookups.add_metric(("miss",), batchers.cache.misses)
        yield lookups

    def _of_indexes(self) -> Sequence[Metric]:
        labels = () if self._collections.is_single else ("collection",)
        info = InfoMetricFamily("likeness_index", "The index version that answers, and its model.", labels=labels)
        rows, age, behind = (
            GaugeMetricFamily(f"likeness_{name}", help_text, labels=labels)
            for name, help_text in (
                ("index_rows", "Images in the index version that answers."),
                ("index_age_seconds", "Since the index version that answers was built."),
                ("index_behind", "1 while the live version cannot be served, and another answers."),
            )
        )
        swaps = CounterMetricFamily(
            "likeness_index_swaps", "Changes to another index version: ok or failed.", labels=(*labels, "result")
        )
        for name, service in self._collections.open_services.items():
            own, live, searcher = (name,) if labels else (), service.live, service.engine.searcher
            model = shown_model_id(service.engine.embedder.identity.model_id, self._locations)
            info.add_metric(own, {"version": searcher.version, "model": model})
            rows.add_metric(own, searcher.ntotal)
            age.add_metric(own, time.time() - searcher.manifest.created_at.timestamp())
            behind.add_metric(own, live.failure is not None)
            swaps.add_metric((*own, "ok"), live.swaps)
            swaps.add_metric((*own, "failed"), live.failed_swaps)
        return info, rows, age, behind, swaps


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
