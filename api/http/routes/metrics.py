"""The route of the metrics, and those of the indexes and the model's queue, which are read when they are asked for."""

import time
from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from api.http.responses import shown_model_id
from api.observe.metrics import Metrics
from api.search.collections import Collections
from api.settings import RequestLimits


def metrics_routes(metrics: Metrics) -> APIRouter:
    """`GET /metrics`."""
    router = APIRouter(tags=["state"])

    @router.get(
        "/metrics",
        summary="Counters and timings, for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus's text format, or OpenMetrics"}},
    )
    async def read_metrics(request: Request) -> Response:
        body, media_type = await metrics.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": media_type})

    return router


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
