"""How an index ages: many nights of few changes, each compared with a fresh build of the same rows."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import faiss
import numpy as np

from benchmarks.common.clustered import BLOCK, GROUPS, MODEL, Clustered, Vectors, add_rows
from benchmarks.common.process import CORES, spent
from benchmarks.common.report import Report
from benchmarks.index.recall import exact, recall
from benchmarks.index.upkeep import rows_found
from index.builder.build_index import build_index, run_here
from index.builder.segment import SegmentJob
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import SegmentRecord
from index.queries import KINDS
from index.search import Searcher

_K, _SHARE = 10, 0.1
_SINGLES = 200  # each night, ours and the fresh build's in turn
_FRESH_KINDS = 1_000  # queries of each kind
_BAR = 1.5

Night = Mapping[str, float]
"""Cost of a single query ÷ that of a fresh build: median latency and CPU time, and CPU time in a batch."""


@dataclass(kw_only=True)
class Aged:
    """What `Ageing` has measured. `builds` are the CPU seconds of builds from all rows, the first one's first, which
    took `first_build` seconds. Of updates: CPU seconds of writing and indexing segments, and of everything, with
    checking and measuring; and the seconds of the slowest.
    """

    nights: list[Night] = field(default_factory=list)
    recalls: list[Mapping[str, float]] = field(default_factory=list)
    builds: list[float] = field(default_factory=list)
    first_build: float = 0.0
    segments: float = 0.0
    everything: float = 0.0
    slowest: float = 0.0
    rebuilds: int = 0
    growth: float = 1.0

    def update(self, collection: Collection) -> None:
        manifest, seconds, cpu = spent(partial(build_index, collection, run_jobs=self._timed))
        self.everything += cpu
        self.slowest = max(self.slowest, seconds)
        self.rebuilds += manifest.base is None

    def _timed(self, jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
        records, _, cpu = spent(partial(run_here, jobs))
        self.segments += cpu
        return records


@dataclass(kw_only=True)
class Ageing:
    """A set of vectors to which each night adds `added` rows, and deletes `deleted` at random. After each `every`
    nights, if given, the rows are also built anew; else six times.
    """

    data: Clustered
    rows: int
    nights: int
    settings: IndexSettings
    folder: Path
    added: int = 100
    deleted: int = 20
    every: int = 0

    def run(self) -> Aged:
        """Prints each night's figures."""
        self._vectors = self.data.array(self.rows + self.nights * self.added)
        self._live = np.arange(len(self._vectors)) < self.rows
        self._texts = partial(self.data.kind, "text", 400, 4_000)
        collection, aged = Collection.create_or_open(str(self.folder / "aged")), Aged()
        add_rows(collection, self.data, range(self.rows))
        _, aged.first_build, cpu = spent(partial(build_index, collection, self.settings, texts=self._texts))
        aged.builds.append(cpu)
        every, fresh = self.every or max(1, self.nights // 6), Searcher.open(collection)
        for night in range(1, self.nights + 1):
            self._change(collection, night)
            aged.update(collection)
            searcher = Searcher.open(collection)
            if night % every == 0:
                fresh, cpu = self._fresh(night)
                aged.builds.append(cpu)
                aged.recalls.append({"night": night, **self._recalls(searcher)})
            aged.nights.append({"night": night, **self._compare(night, searcher, fresh)})
            print(aged.nights[-1], flush=True)
        aged.growth = float(self._live.sum() / self.rows)
        return aged

    def _change(self, collection: Collection, night: int) -> None:
        random = np.random.default_rng([self.data.seed, night])
        gone = random.choice(np.flatnonzero(self._live), self.deleted, replace=False)
        new = range(self.rows + (night - 1) * self.added, self.rows + night * self.added)
        self._live[gone], self._live[new.start : new.stop] = False, True
        add_rows(collection, self.data, new, deletes=gone.tolist())

    def _fresh(self, night: int) -> tuple[Searcher, float]:
        """A build of the rows that are live now, and its CPU seconds."""
        collection = Collection.create_or_open(str(self.folder / f"fresh-{night}"))
        tables = (
            self.data.table(first, min(first + BLOCK, len(self._live))).filter(self._live[first : first + BLOCK])
            for first in range(0, len(self._live), BLOCK)
        )
        collection.add_run("memory:", MODEL, tables)
        _, _, cpu = spent(partial(build_index, collection, self.settings, texts=self._texts))
        return Searcher.open(collection), cpu

    def _compare(self, night: int, aged: Searcher, fresh: Searcher) -> Night:
        """Single queries on one thread, in turn, so that changes of the machine's speed affect both alike."""
        faiss.omp_set_num_threads(1)
        queries, both = self.data.queries(5_000)[night % 10 :: 10][:_SINGLES], (aged, fresh)
        wall, cpu = np.empty((2, len(queries))), np.empty((2, len(queries)))
        for searcher in both:
            searcher.search(queries, _K, kind="image")
        for number, query in enumerate(queries):
            for each in (number % 2, 1 - number % 2):
                started, used = time.perf_counter(), time.thread_time()
                both[each].search(query[np.newaxis], _K, kind="image")
                wall[each, number], cpu[each, number] = time.perf_counter() - started, time.thread_time() - used
        batches = [min(_batch_cpu(searcher, queries) for _ in range(3)) for searcher in both]
        faiss.omp_set_num_threads(CORES)
        p50, typical = np.median(wall, axis=1), np.median(cpu, axis=1)
        return {
            "segments": len(aged.segments.parts),
            "p50": float(p50[0] / p50[1]),
            "cpu": float(typical[0] / typical[1]),
            "batch_cpu": batches[0] / batches[1],
            "p50_ms": float(p50[0] * 1e3),
        }

    def _recalls(self, searcher: Searcher) -> dict[str, float]:
        """Recall@10 of fresh queries of each kind, and of images among a tenth of the rows."""
        live, width, result = np.flatnonzero(self._live), round(_SHARE * GROUPS), dict[str, float]()
        for kind in KINDS:
            queries = self.data.kind(kind, _FRESH_KINDS)
            truth = live[exact(queries, self._vectors[live], _K)[1]]
            result[kind] = recall(rows_found(searcher, queries, None, kind), truth)
        passes = live[self.data.buckets(len(self._live))[live] < width]
        queries = self.data.queries(_FRESH_KINDS)
        truth = passes[exact(queries, self._vectors[passes], _K)[1]]
        result["filtered"] = recall(rows_found(searcher, queries, {"bucket": {"$lt": width}}), truth)
        return result


def report_ageing(report: Report, ageing: Ageing, aged: Aged) -> None:
    step = max(1, len(aged.nights) // 15)
    report.table("nights: cost of a query ÷ a fresh build's", aged.nights[::step])
    report.table("recall@10 of fresh queries", aged.recalls)
    build, doublings = float(np.median(aged.builds)), max(1.0, math.log2(aged.growth))
    report.values(
        f"{ageing.nights} nights of {ageing.added} added and {ageing.deleted} deleted",
        {
            "rows grew by a factor of": aged.growth,
            "CPU seconds of a build": build,
            "CPU seconds of all updates: writing and indexing segments": aged.segments,
            "checking files, and measuring": aged.everything - aged.segments,
            "updates that became builds from all rows": aged.rebuilds,
            "seconds of the slowest update": aged.slowest,
        },
    )
    for name in ("p50", "cpu"):
        ratio, night = max((each[name], each["night"]) for each in aged.nights)
        report.at_most(f"{name} of a query ÷ a fresh build's, worst night ({night})", ratio, _BAR)
    for kind in KINDS:
        lowest = min(each[kind] for each in aged.recalls)
        report.at_least(f"recall@10 of {kind}, lowest", lowest, ageing.settings.target_of(kind))
    report.at_least("recall@10 filtered, lowest", min(each["filtered"] for each in aged.recalls), 0.98)
    for part, seconds in (("segments'", aged.segments), ("all", aged.everything)):
        report.at_most(f"{part} work of all updates ÷ a build, for each doubling", seconds / build / doublings, _BAR)


def _batch_cpu(searcher: Searcher, queries: Vectors) -> float:
    used = time.thread_time()
    searcher.segments.search(queries, _K)
    return time.thread_time() - used
