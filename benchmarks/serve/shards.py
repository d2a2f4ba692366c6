"""What shards cost the front, on Ray Serve: `python -m benchmarks.serve.shards [--quick]`.

This process is the front: it searches 1, 2 and 4 shards of the same index by vectors, one query after another, and 16
at once. The table has the CPU time of this process for a query. All processes share this machine's cores, so the
latency grows with the shards even if the front's does not.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve

from api.deployment.searcher import SearcherReplica, open_sharded
from api.settings import ServeSettings
from benchmarks.common.clustered import MODEL, Clustered, Vectors, index_rows
from benchmarks.common.report import Report, run
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.search import VersionSearcher

_SHARDS = (1, 2, 4)
_DIM, _ROWS, _K = 64, 8_000, 10
_QUERIES, _QUICK_QUERIES, _ROUNDS, _THREADS = 300, 100, 3, 16
_TIMEOUT_S = 60.0


def main(report: Report, folder: Path, options: Any) -> None:
    location, settings = str(folder / "collection"), IndexSettings(segment_rows=_ROWS // max(_SHARDS))
    index_rows(location, range(_ROWS), settings=settings, model=MODEL.model_copy(update={"dim": _DIM}))
    collection = Collection.open(location)
    queries = Clustered().queries(_QUICK_QUERIES if options.quick else _QUERIES)[:, :_DIM]
    with ray.init(num_cpus=sum(_SHARDS), include_dashboard=False, log_to_driver=False):
        try:
            serve.start(proxy_location="Disabled")
            judge(report, compare({count: sharded(collection, count) for count in _SHARDS}, queries))
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]


def sharded(collection: Collection, count: int) -> VersionSearcher:
    settings = ServeSettings(collection=collection.location, shards=count)
    handles = []
    for number in range(count):
        name = f"shard-{number}-of-{count}"
        deployment = serve.deployment(name=name, ray_actor_options={"num_cpus": 0.5}, max_ongoing_requests=64)
        application = deployment(SearcherReplica).bind(settings, number)
        handle = serve.run(application, name=name, route_prefix=None)
        handles.append(handle.options(_by_reference=False))  # as `IngressReplica` does
    return open_sharded(handles, _TIMEOUT_S, collection)


def compare(searchers: dict[int, VersionSearcher], queries: Vectors) -> list[dict[str, float]]:
    """A row for each number of shards; they take turns."""
    alone, together = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    latencies = defaultdict[int, list[float]](list)
    with ThreadPoolExecutor(_THREADS) as pool:
        for number in range(_ROUNDS + 1):
            for count, searcher in searchers.items():
                cpu = time.process_time()
                seconds = [timed(searcher, query) for query in queries]
                between = time.process_time()
                list(pool.map(timed, [searcher] * len(queries), queries))
                if number:  # the first round fills caches
                    alone[count].append((between - cpu) / len(queries))
                    together[count].append((time.process_time() - between) / len(queries))
                    latencies[count] += seconds
    return [
        {
            "shards": count,
            "CPU ms of a query": 1e3 * float(np.median(alone[count])),
            f"CPU ms, {_THREADS} at once": 1e3 * float(np.median(together[count])),
            "p50 ms": 1e3 * float(np.median(latencies[count])),
        }
        for count in searchers
    ]


def timed(searcher: VersionSearcher, query: Vectors) -> float:
    started = time.perf_counter()
    searcher.search(query[np.newaxis], _K)
    return time.perf_counter() - started


def judge(report: Report, rows: Sequence[dict[str, float]]) -> None:
    report.table(f"the front, {_ROWS:,} × {_DIM}", rows)
    few, many = rows[0], rows[-1]
    more = many["shards"] - few["shards"]
    report.at_most("CPU ms of each further shard", (many["CPU ms of a query"] - few["CPU ms of a query"]) / more, 1)
    report.at_most(f"p50 with {many['shards']} shards ÷ that with one", many["p50 ms"] / few["p50 ms"], 1.3)


if __name__ == "__main__":
    run("shards", __doc__, main, f"{_QUICK_QUERIES} queries a round")
