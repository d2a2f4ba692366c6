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

from api.observe.log import RequestRecord
from api.problems import PROBLEMS
from embedder.errors import reason_label

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES: Final = (1, 2, 4, 8, 16, 32, 64)


Gather = Callable[[], Awaitable[Sequence[Metric]]]
"""Collects the metrics of all processes of a server."""


class Metrics:
    """The counters of one process, in a separate registry. Thread-safe; costs microseconds if nobody reads it.

    If the process is one of several, `gather` collects the metrics of all.
    """

    def __init__(self, gather: Gather | None = None) -> None:
        self._gather = gather
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        histogram, counter = partial(Histogram, registry=registry), partial(Counter, registry=registry)
        help_text = "Requests, from the first byte received to the last byte sent."
        labels = ("method", "route", "status")
        self._requests = histogram("likeness_request_duration_seconds", help_text, labels, buckets=_SECONDS)
        self._in_flight = Gauge("likeness_requests_in_flight", "Requests being answered.", registry=registry)
        help_text = "Problems in answers, including those of a batch's searches."
        self._problems = counter("likeness_problems", help_text, ("type",))
        # Series start at 0; otherwise the first failure would not be an increase.
        for slug in PROBLEMS:
            self._problems.labels(slug)
        help_text = "Duration of the stages of queries, including waiting."
        self._stages = histogram("likeness_stage_duration_seconds", help_text, ("stage",), buckets=_SECONDS)
        self._fetches = counter("likeness_fetches", "Fetches of query URLs: ok, or why they failed.", ("outcome",))
        self._rejected = counter("likeness_rejected_pictures", "Unusable query pictures, by reason.", ("reason",))
        help_text = "Times that a shard of the index did not answer."
        self._lost_shards = counter("likeness_lost_shards", help_text, ("shard",))
        help_text = "Queries per forward pass, or per call of an embedder."
        self._batches = histogram("likeness_embedding_batch_queries", help_text, buckets=_QUERIES)

    def in_flight(self) -> AbstractContextManager[None]:
        return self._in_flight.track_inprogress()

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request to `route`, which is a template, not a path."""
        self._requests.labels(method, route, status).observe(seconds)

    def count_record(self, record: RequestRecord) -> None:
        for slug in record.problems:
            self._problems.labels(slug).inc()
        for shard in record.lost_shards:
            self._lost_shards.labels(shard).inc()
        for stage, seconds in record.stages:
            self._stages.labels(stage).observe(seconds)
        for stage, outcome in record.outcomes:
            if stage == "fetch":
                self._fetches.labels(reason_label(outcome)).inc()
            elif outcome != "ok":
                self._rejected.labels(outcome).inc()

    def count_batch(self, queries: int) -> None:
        self._batches.observe(queries)

    def register(self, collector: Collector) -> None:
        """Add the metrics of `collector`, which is called whenever the metrics are read."""
        self._registry.register(collector)

    def collect(self) -> list[Metric]:
        """This process's metrics, picklable."""
        return list(self._registry.collect())

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The server's metrics in the format that an Accept header asks for, and its media type."""
        try:
            encode, media_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that it cannot parse
            encode, media_type = choose_encoder("")
        source = self._registry if self._gather is None else _Snapshot(await self._gather())
        return encode(source), media_type


@dataclass(frozen=True, eq=False)
class _Snapshot(Collector):
    metrics: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.metrics


def merge_replicas(by_replica: Mapping[str, Iterable[Metric]]) -> list[Metric]:
    """The metrics of several replicas as one answer, because a scrape through Ray Serve's proxy reaches only one.

    A label `replica` distinguishes their samples, so that sums are right whichever replica answers.
    """
    families: dict[str, Metric] = {}
    for replica, metrics in by_replica.items():
        for metric in metrics:
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            family.samples += [
                sample._replace(labels={**sample.labels, "replica": replica}) for sample in metric.samples
            ]
    scraped = GaugeMetricFamily("likeness_scraped_replicas", "Replicas whose metrics are included.", len(by_replica))
    return [*families.values(), scraped]
