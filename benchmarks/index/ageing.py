"""How an index ages: many nights of few changes, each compared with a fresh build of the same rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import faiss
import numpy as np

from benchmarks.common.clustered import GROUPS, MODEL, Clustered, add_rows
from benchmarks.common.process import CORES
from benchmarks.common.report import Report
from benchmarks.index.recall import exact, recall
from benchmarks.index.upkeep import rows_found
from index.builder.build_index import build_index, run_here
from index.builder.segment import SegmentJob
from index.collection import Collection
from index.collection.records import IndexSettings, SegmentRecord
from index.queries import KINDS
from index.search import Searcher

_K, _SHARE = 10, 0.1
_SINGLES = 200  # each night, ours and the fresh build's in turn
_FRESH_KINDS = 1_000  # queries of each kind
_BAR = 1.5


@dataclass(kw_only=True)
class Work:
    """CPU seconds of updates: of writing and indexing segments, and of everything, with checking and measuring."""

    segments: float = 0.0
    everything: float = 0.0
    slowest: float = 0.0
    rebuilds: int = 0

    def update(self, collection: Collection) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        manifest = build_index(collection, run_jobs=self._timed)
        self.everything += time.process_time() - cpu
        self.slowest = max(self.slowest, time.perf_counter() - started)
        self.rebuilds += manifest.base is None

    def _timed(self, jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
        cpu = time.process_time()
        records = run_here(jobs)
        self.segments += time.process_time() - cpu
        return records


@dataclass(frozen=True, kw_only=True)
class Night:
    """Cost of a single query ÷ that of a fresh build: median latency and CPU time, and CPU time in a batch."""

    night: int
    segments: int
    p50: float
    cpu: float
    batch_cpu: float
    p50_ms: float


@dataclass(frozen=True, kw_only=True)
class Aged:
    """What `Ageing` has measured. `builds` are the CPU seconds of builds from all rows, the first one's first."""

    nights: list[Night]
    recalls: list[dict[str, float | int]]
    builds: list[float]
    work: Work
    growth: float


@dataclass(kw_only=True)
class Ageing:
    """A set of vectors to which each night adds `added` rows, and deletes `deleted` at random."""

    data: Clustered
    rows: int
    nights: int
    settings: IndexSettings
    folder: Path
    added: int = 100
    deleted: int = 20
    work: Work = field(default_factory=Work)

    def run(self) -> Aged:
        """Prints a line for each night."""
        self._vectors = self.data.array(self.rows + self.nights * self.added)
        self._live = np.arange(len(self._vectors)) < self.rows
        aged = Collection.create_or_open(str(self.folder / "aged"))
        add_rows(aged, self.data, range(self.rows))
        cpu = time.process_time()
        build_index(aged, self.settings, texts=self._texts)
        builds = [time.process_time() - cpu]
        every, nights, recalls = max(1, self.nights // 6), list[Night](), list[dict[str, float | int]]()
        fresh = Searcher.open(aged)
        for night in range(1, self.nights + 1):
            self._change(aged, night)
            self.work.update(aged)
            searcher = Searcher.open(aged)
            if night % every == 0:
                fresh, seconds = self._fresh(night)
                builds.append(seconds)
                recalls.append({"night": night, **self._recalls(searcher)})
            nights.append(self._compare(night, searcher, fresh))
            print(self._line(nights, recalls, builds), flush=True)
        growth = float(self._live.sum() / self.rows)
        return Aged(nights=nights, recalls=recalls, builds=builds, work=self.work, growth=growth)

    def _line(self, nights: list[Night], recalls: list[dict[str, float | int]], builds: list[float]) -> str:
        """Figures so far, for a run that is stopped early."""
        last, build = nights[-1], float(np.median(builds))
        worst = {name: max(_ratio(name, each) for each in nights) for name in ("p50", "cpu")}
        lowest = {kind: min(float(each[kind]) for each in recalls) for kind in KINDS} if recalls else {}
        return (
            f"night {last.night}, {last.segments} segments: p50 {last.p50:.2f}, cpu {last.cpu:.2f} (worst "
            f"{worst['p50']:.2f}, {worst['cpu']:.2f}); a build {build:.1f} s of CPU, all updates "
            f"{self.work.everything / build:.2f} builds, their segments {self.work.segments / build:.2f} builds"
            + "".join(f"; {kind} {value:.3f}" for kind, value in lowest.items())
        )

    def _texts(self) -> np.ndarray:
        return self.data.kind("text", 400, 4_000)

    def _change(self, collection: Collection, night: int) -> None:
        gone = np.random.default_rng([self.data.seed, night]).choice(
            np.flatnonzero(self._live), self.deleted, replace=False
        )
        new = range(self.rows + (night - 1) * self.added, self.rows + night * self.added)
        self._live[gone], self._live[new.start : new.stop] = False, True
        add_rows(collection, self.data, new, deletes=gone.tolist())

    def _fresh(self, night: int) -> tuple[Searcher, float]:
        """A build of the rows that are live now, and its CPU seconds."""
        collection = Collection.create_or_open(str(self.folder / f"fresh-{night}"))
        tables = (
            self.data.table(first, min(first + 10_000, len(self._live))).filter(self._live[first : first + 10_000])
            for first in range(0, len(self._live), 10_000)
        )
        collection.add_run("memory:", MODEL, tables)
        cpu = time.process_time()
        build_index(collection, self.settings, texts=self._texts)
        return Searcher.open(collection), time.process_time() - cpu

    def _compare(self, night: int, aged: Searcher, fresh: Searcher) -> Night:
        """Single queries on one thread, in turn, so that changes of the machine's speed affect both alike."""
        faiss.omp_set_num_threads(1)
        queries = self.data.queries(5_000)[night % 10 :: 10][:_SINGLES]
        both = (aged, fresh)
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
        return Night(
            night=night,
            segments=len(aged.segments.parts),
            p50=float(p50[0] / p50[1]),
            cpu=float(typical[0] / typical[1]),
            batch_cpu=batches[0] / batches[1],
            p50_ms=float(p50[0] * 1e3),
        )

    def _recalls(self, searcher: Searcher) -> dict[str, float]:
        """Recall@10 of fresh queries of each kind, and of images among a tenth of the rows."""
        live = np.flatnonzero(self._live)
        vectors, result = self._vectors[live], {}
        for kind in KINDS:
            queries = self.data.kind(kind, _FRESH_KINDS)
            truth = live[exact(queries, vectors, _K)[1]]
            result[str(kind)] = recall(rows_found(searcher, queries, None, kind), truth)
        width = round(_SHARE * GROUPS)
        passes = live[self.data.buckets(len(self._live))[live] < width]
        queries = self.data.queries(_FRESH_KINDS)
        truth = passes[exact(queries, self._vectors[passes], _K)[1]]
        result["filtered"] = recall(rows_found(searcher, queries, {"bucket": {"$lt": width}}), truth)
        return result


def report_ageing(report: Report, ageing: Ageing, aged: Aged) -> None:
    nights, recalls, work = aged.nights, aged.recalls, aged.work
    report.table(
        "nights: cost of a query ÷ a fresh build's", [vars(each) for each in nights[:: max(1, len(nights) // 15)]]
    )
    report.table("recall@10 of fresh queries", recalls)
    build, doublings = float(np.median(aged.builds)), max(1.0, math.log2(aged.growth))
    report.values(
        f"{ageing.nights} nights of {ageing.added} added and {ageing.deleted} deleted",
        {
            "rows grew by a factor of": aged.growth,
            "CPU seconds of a build": build,
            "CPU seconds of all updates: writing and indexing segments": work.segments,
            "checking files, and measuring": work.everything - work.segments,
            "updates that became builds from all rows": work.rebuilds,
            "seconds of the slowest update": work.slowest,
        },
    )
    for name in ("p50", "cpu"):
        worst = max(nights, key=partial(_ratio, name))
        report.at_most(f"{name} of a query ÷ a fresh build's, worst night ({worst.night})", _ratio(name, worst), _BAR)
    for kind in KINDS:
        target = ageing.settings.target_of(kind)
        report.at_least(f"recall@10 of {kind}, lowest", min(float(each[kind]) for each in recalls), target)
    report.at_least("recall@10 filtered, lowest", min(float(each["filtered"]) for each in recalls), 0.98)
    for part, seconds in (("segments'", work.segments), ("all", work.everything)):
        report.at_most(f"{part} work of all updates ÷ a build, for each doubling", seconds / build / doublings, _BAR)


def _ratio(name: str, night: Night) -> float:
    return float(getattr(night, name))


def _batch_cpu(searcher: Searcher, queries: np.ndarray) -> float:
    used = time.thread_time()
    searcher.segments.search(queries, _K)
    return time.thread_time() - used
