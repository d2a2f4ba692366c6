"""How good, fast and frugal the index is: `python -m benchmarks.index [--rows 100000] [--data cone] [--quick]`.

On two sets of vectors, `clusters` in few dimensions and a `cone` with the shape of CLIP's, against faiss's HNSW32,SQ8
and, where they are installed, usearch (f32), Intel's SVS and ScaNN, in the same run:

- the CPU time of a query at a recall@10 of 0.99, the latency of single ones, the rate of batches on all cores; the same
  for texts at 0.98;
- recall by kind of query at these dials;
- the time and CPU time to build, the memory to build and to serve;
- what an update costs, and what it does to recall; recall and latency of filtered searches.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import faiss

from benchmarks.common.cone import Cone
from benchmarks.common.process import CORES, can_limit_memory, in_new_process
from benchmarks.common.report import Report
from benchmarks.index.findings import (
    Costs,
    report_build,
    report_choice,
    report_filters,
    report_kinds,
    report_serving,
    report_standings,
    report_texts,
    report_updates,
)
from benchmarks.index.plot import draw
from benchmarks.index.race import Course, Standing
from benchmarks.index.recall import exact, intrinsic_dimension, local_dimension, recall
from benchmarks.index.rivals import RIVALS, Contestant, Ours, Svs, missing
from benchmarks.index.upkeep import Built, build, filtered, kinds_of_query, serving_memory, train_and_add, update_often
from index.collection import Collection
from index.collection.records import IndexSettings
from index.queries import KINDS, QueryKind
from index.search import Searcher
from index.versions.opening import open_segments
from jobs.demo.clustered import Clustered, Vectors, add_rows

_DATA: dict[str, Clustered] = {"clusters": Clustered(), "cone": Cone()}
_DIMS = {"clusters": 64, "cone": 128}  # principal dimensions that rivals search
_SHARES = (0.5, 0.1, 0.01, 0.001)
_TARGET, _TEXT_TARGET = 0.99, 0.98
_BEYOND = 1_350_000_000  # bytes for a build beside its index; libraries that are loaded already are not counted


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. `latency_ms`: a small set would be searched exactly with the default. `at_size`: with the
    bars that hold from 100,000 rows on.
    """

    rows: list[int]
    queries: int = 1_000
    rounds: int = 3
    singles: int = 500
    updates: int = 10
    latency_ms: float = 5.0
    at_size: bool = True


QUICK = Plan(rows=[20_000], rounds=1, singles=200, updates=3, latency_ms=1.0, at_size=False)


def measure(name: str, rows: int, plan: Plan, folder: Path, report: Report) -> list[Standing]:
    """Everything about a set of so many rows; updates for the first of the plan alone, limited memory for the last."""
    data = _DATA[name]
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

    contestants, costs = enter(collection, built, vectors, _DIMS[name])
    course = Course(queries=queries, truth=truth, target=_TARGET, rounds=plan.rounds, singles=plan.singles)
    as_built, swept, for_texts, *rivals = contestants
    standings = course.run([as_built, swept, *rivals])
    report_standings(report, standings, costs, plan.at_size)
    texts = data.kind("text", plan.queries)
    course = replace(course, queries=texts, truth=exact(texts, vectors, 10)[1], target=_TEXT_TARGET)
    with_texts = [for_texts, swept, *(each for each in rivals if isinstance(each, Svs))]
    report_texts(report, course.run(with_texts), plan.at_size)

    searcher = Searcher.open(collection)
    faiss.omp_set_num_threads(1)
    report_kinds(report, kinds_of_query(searcher, data, vectors), by_kind(rivals, standings[2:], data, vectors))
    faiss.omp_set_num_threads(CORES)
    report_build(report, built, confined, costs[Ours.name].build_s, plan.at_size and largest)
    report_serving(report, in_new_process(serving_memory, collection.location, queries))

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


def enter(
    collection: Collection, built: Built, vectors: Vectors, dims: int
) -> tuple[list[Contestant], dict[str, Costs]]:
    """Ours as built, to be swept, and as built for texts, then the rivals that are installed; what each takes."""
    # Ours before and after the others, for the machine's speed drifts.
    seconds = train_and_add(collection, built.manifest, CORES)
    rivals, costs = [], {}
    for module, kind in RIVALS.items():
        if module in missing():
            continue
        started, cpu = time.perf_counter(), time.process_time()
        rival = kind(vectors, dims)
        rivals.append(rival)
        costs[rival.name] = Costs(
            build_s=time.perf_counter() - started,
            build_cpu_s=time.process_time() - cpu,
            bytes_per_vector=rival.bytes / len(vectors),
        )
    seconds = (seconds + train_and_add(collection, built.manifest, CORES)) / 2
    memory = built.manifest.memory
    mine = Costs(build_s=seconds, build_cpu_s=built.cpu_seconds, bytes_per_vector=memory / len(vectors))
    with tempfile.TemporaryDirectory() as cache:
        segments = open_segments(collection, built.manifest, Path(cache))
    width = built.manifest.kinds["text"].width
    ours = [Ours(segments, memory), Ours(segments, memory, sweep=True), Ours(segments, memory, width=width)]
    return [*ours, *rivals], {Ours.name: mine, **costs}


def by_kind(
    rivals: Sequence[Contestant], standings: Sequence[Standing], data: Clustered, vectors: Vectors
) -> dict[str, dict[str, float]]:
    """Recall@10 of rivals for fresh queries of each kind, at its dials for images."""
    asked = {kind: data.kind(kind, 1_000) for kind in KINDS}
    truth = {kind: exact(queries, vectors, 10)[1] for kind, queries in asked.items()}
    found: dict[str, dict[str, float]] = {}
    for rival, standing in zip(rivals, standings, strict=True):
        rival.set(standing.point.dials)
        found[rival.name] = {
            kind: recall(rival.search(queries, 10, CORES), truth[kind]) for kind, queries in asked.items()
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="100000,1000000", help="sizes of the sets, smallest first")
    parser.add_argument("--quick", action="store_true", help="20,000 rows, and only the bars that fit such a size")
    parser.add_argument("--data", default=",".join(_DATA), help="the sets")
    parser.add_argument("--plot", type=Path, help="draw CPU time against recall into this file")
    options = parser.parse_args()
    plan = QUICK if options.quick else Plan(rows=sorted(int(rows) for rows in options.rows.split(",")))
    report = Report("index")
    if missing():
        print(f"Without {', '.join(missing())}, which are not installed: pip install -c constraints.txt -e '.[rivals]'")
    standings = {}
    for name in options.data.split(","):
        for rows in plan.rows:
            subject = f"{rows:,} {name}"
            with tempfile.TemporaryDirectory() as folder:
                standings[subject] = measure(name, rows, plan, Path(folder) / "collection", report.about(subject))
    if options.plot:
        draw(standings, options.plot)
    return report.conclude()


if __name__ == "__main__":
    sys.exit(main())
