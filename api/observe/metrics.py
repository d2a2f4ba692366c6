"""The server's metrics for Prometheus."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from api.errors import PROBLEMS
from api.observe.request_record import RequestRecord
from embedder.errors import folded

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES: Final = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The engine in use, how often it has changed, how many items wait to be embedded, and the counts of the cache.

    `behind`: the live version cannot be served, and another one answers.
    """

    version: str
    model: str
    rows: int
    built: datetime
    swaps: int
    failed_swaps: int
    behind: bool
    waiting: int
    cache_hits: int
    cache_misses: int


Gather = Callable[[], Awaitable[Sequence[Metric]]]
"""The metrics of a server that consists of several processes."""


class Metrics:
    """The counters of one process, in a registry of its own. Thread-safe; costs microseconds if nobody reads it.

    If the process is one of several, `gather` gets the metrics of all of them.
    """

    def __init__(self, gather: Gather | None = None) -> None:
        self._gather = gather
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._of_requests()
        self._of_queries()

    def _of_requests(self) -> None:
        self._requests = Histogram(
            "likeness_request_duration_seconds",
            "Requests, from their first byte in to the last byte out.",
            ("method", "route", "status"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._in_flight = Gauge("likeness_requests_in_flight", "Requests being answered.", registry=self._registry)
        self._problems = Counter(
            "likeness_problems",
            "Problems answered with, those of the searches in a batch too.",
            ("type",),
            registry=self._registry,
        )
        # Series start at 0: one that began with its first failure would not show this as an increase.
        for slug in PROBLEMS:
            self._problems.labels(slug)

    def _of_queries(self) -> None:
        registry = self._registry
        self._stages = Histogram(
            "likeness_stage_duration_seconds",
            "Stages of queries, waiting for their turn included.",
            ("stage",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._fetches = Counter(
            "likeness_fetches", "Fetches of queries' URLs: ok, or why not.", ("outcome",), registry=registry
        )
        self._rejected = Counter(
            "likeness_rejected_pictures", "Query pictures of no use, by reason.", ("reason",), registry=registry
        )
        self._lost_shards = Counter(
            "likeness_lost_shards", "Times that a shard of the index did not answer.", ("shard",), registry=registry
        )
        self._batches = Histogram(
            "likeness_embedding_batch_queries",
            "Queries embedded, or sent to embedders, together.",
            buckets=_QUERIES,
            registry=registry,
        )

    def in_flight(self) -> AbstractContextManager[None]:
        """Counts a request while the block lasts."""
        return self._in_flight.track_inprogress()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request to `route`, which is a template and not a path."""
        self._requests.labels(method, route, status).observe(seconds)

    def noted(self, noted: RequestRecord) -> None:
        """Count what was noted about a request."""
        for slug in noted.problems:
            self._problems.labels(slug).inc()
        for shard in noted.lost_shards:
            self._lost_shards.labels(shard).inc()
        for stage, seconds in noted.stages:
            self._stages.labels(stage).observe(seconds)
        for stage, outcome in noted.outcomes:
            if stage == "fetch":
                self._fetches.labels(folded(outcome)).inc()
            elif outcome != "ok":
                self._rejected.labels(outcome).inc()

    def batch(self, queries: int) -> None:
        """Count a batch of queries that were embedded together."""
        self._batches.observe(queries)

    def follow(self, serving: Callable[[], Serving]) -> None:
        """Call `serving` whenever the metrics are read."""
        self._registry.register(_Following(serving))

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
        gathered = CollectorRegistry()
        gathered.register(_Gathered(await self._gather()))
        return encode(gathered), media_type


@dataclass(frozen=True, eq=False)
class _Gathered(Collector):
    metrics: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.metrics


class _Following(Collector):
    def __init__(self, serving: Callable[[], Serving]) -> None:
        self._serving = serving

    def collect(self) -> Iterator[Metric]:
        now = self._serving()
        info = InfoMetricFamily("likeness_index", "The index version that answers, and its model.")
        info.add_metric((), {"version": now.version, "model": now.model})
        yield info
        for name, help_text, value in (
            ("index_rows", "Images in the index version that answers.", now.rows),
            (
                "index_age_seconds",
                "Since the index version that answers was built.",
                time.time() - now.built.timestamp(),
            ),
            ("index_behind", "1 while the live version cannot be served, and another answers.", now.behind),
            ("embedding_queue_queries", "Queries waiting to be embedded.", now.waiting),
        ):
            yield GaugeMetricFamily(f"likeness_{name}", help_text, value)
        yield _counted(
            "index_swaps", "Changes to another index version: ok or failed.", ok=now.swaps, failed=now.failed_swaps
        )
        yield _counted(
            "embedding_cache_lookups", "Lookups of queries' embeddings.", hit=now.cache_hits, miss=now.cache_misses
        )


def _counted(name: str, documentation: str, **counts: int) -> Metric:
    family = CounterMetricFamily(f"likeness_{name}", documentation, labels=("result",))
    for result, count in counts.items():
        family.add_metric((result,), count)
    return family
