"""The server's metrics for Prometheus."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from api.errors import PROBLEMS
from api.observe.log import RequestRecord
from embedder.errors import reason_label

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES: Final = (1, 2, 4, 8, 16, 32, 64)


Gather = Callable[[], Awaitable[Sequence[Metric]]]
"""The metrics of a server that consists of several processes."""


class Metrics:
    """The counters of one process, in a registry of its own. Thread-safe; costs microseconds if nobody reads it.

    If the process is one of several, `gather` gets the metrics of all of them.
    """

    def __init__(self, gather: Gather | None = None) -> None:
        self._gather = gather
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        histogram, counter = partial(Histogram, registry=registry), partial(Counter, registry=registry)
        what = "Requests, from their first byte in to the last byte out."
        labels = ("method", "route", "status")
        self._requests = histogram("likeness_request_duration_seconds", what, labels, buckets=_SECONDS)
        self._in_flight = Gauge("likeness_requests_in_flight", "Requests being answered.", registry=registry)
        what = "Problems answered with, those of the searches in a batch too."
        self._problems = counter("likeness_problems", what, ("type",))
        # Series start at 0: one that began with its first failure would not show this as an increase.
        for slug in PROBLEMS:
            self._problems.labels(slug)
        what = "Stages of queries, waiting for their turn included."
        self._stages = histogram("likeness_stage_duration_seconds", what, ("stage",), buckets=_SECONDS)
        self._fetches = counter("likeness_fetches", "Fetches of queries' URLs: ok, or why not.", ("outcome",))
        self._rejected = counter("likeness_rejected_pictures", "Query pictures of no use, by reason.", ("reason",))
        what = "Times that a shard of the index did not answer."
        self._lost_shards = counter("likeness_lost_shards", what, ("shard",))
        what = "Queries embedded, or sent to embedders, together."
        self._batches = histogram("likeness_embedding_batch_queries", what, buckets=_QUERIES)

    def in_flight(self) -> AbstractContextManager[None]:
        return self._in_flight.track_inprogress()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request to `route`, which is a template and not a path."""
        self._requests.labels(method, route, status).observe(seconds)

    def noted(self, noted: RequestRecord) -> None:
        for slug in noted.problems:
            self._problems.labels(slug).inc()
        for shard in noted.lost_shards:
            self._lost_shards.labels(shard).inc()
        for stage, seconds in noted.stages:
            self._stages.labels(stage).observe(seconds)
        for stage, outcome in noted.outcomes:
            if stage == "fetch":
                self._fetches.labels(reason_label(outcome)).inc()
            elif outcome != "ok":
                self._rejected.labels(outcome).inc()

    def batch(self, queries: int) -> None:
        self._batches.observe(queries)

    def follow(self, collector: Collector) -> None:
        """Add what `collector` collects whenever the metrics are read."""
        self._registry.register(collector)

    def collect(self) -> list[Metric]:
        """This process's metrics; can be pickled."""
        return list(self._registry.collect())

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics of the server in the format of an Accept header, and its media type."""
        try:
            encode, media_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that it cannot compare
            encode, media_type = choose_encoder("")
        if self._gather is None:
            return encode(self._registry), media_type
        return encode(_Gathered(await self._gather())), media_type


@dataclass(frozen=True, eq=False)
class _Gathered(Collector):
    metrics: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.metrics


def merged(by_replica: Mapping[str, Iterable[Metric]]) -> list[Metric]:
    """The metrics of several replicas as one answer, since a scrape through Ray Serve's proxy reaches any one of them.

    A label `replica` tells their samples apart, so that sums are right no matter which replica answers.
    """
    families: dict[str, Metric] = {}
    for replica, metrics in by_replica.items():
        for metric in metrics:
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            family.samples += [
                sample._replace(labels={**sample.labels, "replica": replica}) for sample in metric.samples
            ]
    scraped = GaugeMetricFamily("likeness_scraped_replicas", "Replicas whose metrics these are.", len(by_replica))
    return [*families.values(), scraped]
