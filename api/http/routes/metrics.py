"""`GET /metrics`, and the metrics of open indexes and the model's queue, which are collected on each request."""

import time
from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from api.http.responses import visible_model_id
from api.observe.metrics import Metrics
from api.search.collections import Collections


def metrics_routes(metrics: Metrics) -> APIRouter:
    """`GET /metrics`."""
    router = APIRouter(tags=["state"])

    @router.get(
        "/metrics",
        summary="Counters and timings, for Prometheus",
        response_class=PlainTextResponse,
        response_description="Prometheus's text format, or OpenMetrics",
    )
    async def read_metrics(request: Request) -> Response:
        body, media_type = await metrics.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": media_type})

    return router


class EngineMetrics(Collector):
    """The state of engines, queues and the cache. Only a server of several collections has the label `collection`."""

    def __init__(self, collections: Collections, show_locations: bool) -> None:
        self._collections = collections
        self._show_locations = show_locations

    def collect(self) -> Iterator[Metric]:
        batchers = self._collections.batchers
        yield from self._index_metrics()
        yield GaugeMetricFamily("likeness_embedding_queue_queries", "Queries waiting to be embedded.", batchers.waiting)
        lookups = CounterMetricFamily(
            "likeness_embedding_cache_lookups", "Lookups of queries' embeddings.", labels=("result",)
        )
        lookups.add_metric(("hit",), batchers.cache.hits)
        lookups.add_metric(("miss",), batchers.cache.misses)
        yield lookups

    def _index_metrics(self) -> Sequence[Metric]:
        labels = () if self._collections.is_single else ("collection",)
        info = InfoMetricFamily("likeness_index", "The index version that answers, and its model.", labels=labels)
        rows, age, behind = (
            GaugeMetricFamily(f"likeness_{name}", help_text, labels=labels)
            for name, help_text in (
                ("index_rows", "Images in the index version that answers."),
                ("index_age_seconds", "Seconds since the index version that answers was built."),
                ("index_behind", "1 while the live version cannot be served, and another answers."),
            )
        )
        swaps = CounterMetricFamily(
            "likeness_index_swaps", "Changes to another index version: ok or failed.", labels=(*labels, "result")
        )
        for name, service in self._collections.open_services.items():
            values, live, searcher = (name,) if labels else (), service.live, service.engine.searcher
            model = visible_model_id(service.engine.embedder.identity.model_id, self._show_locations)
            info.add_metric(values, {"version": searcher.version, "model": model})
            rows.add_metric(values, searcher.ntotal)
            age.add_metric(values, time.time() - searcher.manifest.created_at.timestamp())
            behind.add_metric(values, live.failure is not None)
            swaps.add_metric((*values, "ok"), live.swaps)
            swaps.add_metric((*values, "failed"), live.failed_swaps)
        return info, rows, age, behind, swaps
