"""How good, fast and frugal the index is: `python -m benchmarks.index [--rows 100000] [--data cone] [--quick]`.

On two sets of vectors, `clusters` in few dimensions and a `cone` with the shape of CLIP's, against usearch (f32) and
faiss's HNSW32,SQ8 and Flat, in the same run and on all cores:

- queries per second at a recall@10 of 0.99, in batches, and the latency of single queries;
- the time to build, the memory to build and to serve;
- what an update costs, and what it does to recall; recall and latency of filtered searches.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import faiss

from benchmarks.common.cone import Cone
from benchmarks.common.process import CORES, can_limit_memory, in_new_process
from benchmarks.common.report import Report
from benchmarks.index.findings import (
    report_build,
    report_choice,
    report_filters,
    report_kinds,
    report_serving,
    report_standings,
    report_updates,
)
from benchmarks.index.plot import draw
from benchmarks.index.race import Course, Standing
from benchmarks.index.recall import exact, intrinsic_dimension, local_dimension
from benchmarks.index.rivals import Contestant, Flat, Hnsw, Ours, Usearch
from benchmarks.index.upkeep import build, filtered, kinds_of_query, serving_memory, train_and_add, update_often
from index.collection import Collection
from index.collection.records import IndexSettings, VersionManifest
from index.queries import QueryKind
from index.search import Searcher
from index.versions.opening import open_segments
from jobs.demo.clustered import Clustered, Vectors, add_rows

_DATA: dict[str, Clustered] = {"clusters": Clustered(), "cone": Cone()}
_SHARES = (0.5, 0.1, 0.01, 0.001)
_TARGET = 0.99
_BEYOND = 1_350_000_000  # bytes for a build beside its index; libraries that are loaded already are not counted


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. `latency_ms`: a small set would be searched exactly with the default. `at_size`: with the
    bars that hold from 100,000 rows on.
    """

    rows: list[int]
    queries: int = 2_000
    rounds: int = 3
    singles: int = 500
    updates: int = 10
    latency_ms: float = 5.0
    at_size: bool = True


QUICK = Plan(rows=[20_000], queries=1_000, rounds=1, singles=200, updates=3, latency_ms=1.0, at_size=False)


def measure(data: Clustered, rows: int, plan: Plan, folder: Path, report: Report) -> list[Standing]:
    """Everything about a set of so many rows; updates for the first of the plan alone, limited memory for the last."""
    largest, collection = rows == plan.rows[-1], Collection.create_or_open(str(folder))
    add_rows(collection, data, range(rows))
    settings = IndexSettings(latency_ms=plan.latency_ms, target_recall=_TARGET)
    built = in_new_process(build, collection.location, settings, data)
    confined = None
    if largest and can_limit_memory():
        confined = in_new_process(build, collection.location, settings, data, built.manifest.memory + _BEYOND)
    vectors, queries = data.array(rows), data.queries(plan.queries)
    scores, truth = exact(queries, vectors, 10)
    report_choice(report, built.manifest, intrinsic_dimension(vectors[:20_000]), local_dimension(scores))

    course = Course(
        queries=queries, truth=truth, target=_TARGET, threads=CORES, rounds=plan.rounds, singles=plan.singles
    )
    standings, build_seconds, bytes_per_vector = race(collection, built.manifest, vectors, course)
    report_standings(report, standings, build_seconds, bytes_per_vector, plan.at_size)
    report_build(report, built, confined, build_seconds, plan.at_size and largest)
    report_serving(report, in_new_process(serving_memory, collection.location, queries))

    searcher = Searcher.open(collection)
    report_kinds(report, kinds_of_query(searcher, data, vectors))
    columns = {"bucket": data.buckets(rows), "cluster": data.clusters(rows)}
    asked_for: dict[QueryKind, Vectors] = {"image": queries, "text": data.kind("text", plan.queries)}
    filters = [
        filtered(searcher, vectors, column, values, asked, share, kind)
        for kind, asked in asked_for.items()
        for column, values in columns.items()
        for share in _SHARES
    ]
    report_filters(report, filters)
    if rows == plan.rows[0]:
        updates = update_often(collection, data, rows, times=plan.updates, queries=queries)
        report_updates(report, updates, built.seconds, plan.at_size)
    return standings


def race(
    collection: Collection, manifest: VersionManifest, vectors: Vectors, course: Course
) -> tuple[list[Standing], dict[str, float], dict[str, float]]:
    """The standings; seconds to build and bytes of a vector in memory, by index."""
    # Ours before and after the others, for the machine's speed drifts.
    ours_before = train_and_add(collection, manifest, CORES)
    usearch, hnsw = Usearch(vectors, CORES), Hnsw(vectors, CORES)
    ours_after = train_and_add(collection, manifest, CORES)
    with tempfile.TemporaryDirectory() as cache:
        ours = Ours(open_segments(collection, manifest, Path(cache)), manifest.memory)
    contestants: list[Contestant] = [ours, usearch, hnsw, Flat(vectors)]
    standings = course.run(contestants)
    faiss.omp_set_num_threads(CORES)  # the last of the course ran on one
    build_seconds = {
        ours.name: (ours_before + ours_after) / 2,
        usearch.name: usearch.build_seconds,
        hnsw.name: hnsw.build_seconds,
    }
    return standings, build_seconds, {each.name: each.bytes / len(vectors) for each in contestants}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="100000,1000000", help="sizes of the sets, smallest first")
    parser.add_argument("--quick", action="store_true", help="20,000 rows, and only the bars that fit such a size")
    parser.add_argument("--data", default=",".join(_DATA), help="the sets; the first of them is drawn")
    parser.add_argument("--plot", type=Path, help="draw queries/s against recall into this file")
    options = parser.parse_args()
    plan = QUICK if options.quick else Plan(rows=sorted(int(rows) for rows in options.rows.split(",")))
    report = Report("index")
    for number, name in enumerate(options.data.split(",")):
        standings = {}
        for rows in plan.rows:
            about = report.about(f"{rows:,} {name}")
            with tempfile.TemporaryDirectory() as folder:
                standings[rows] = measure(_DATA[name], rows, plan, Path(folder) / "collection", about)
            if options.plot and number == 0:
                draw(standings, options.plot)
    return report.conclude()


if __name__ == "__main__":
    sys.exit(main())
