"""Quality, speed and size of the index: `python -m benchmarks.index [--rows 100000] [--data cone] [--quick]`.

Compares it with faiss's HNSW32,SQ8 and, if they are installed, usearch (f32), Intel's SVS and ScaNN in the same run, on
two sets of vectors, `clusters` in few dimensions and a `cone` with the shape of CLIP's:

- CPU time of a query at a recall@10 of 0.99, latency of single queries, rate of batches on all cores; the same for
  texts at 0.98;
- recall by kind of query with these parameters;
- time, CPU time and memory to build;
- time of an update and recall after updates; recall of filtered searches.

With `--nights 300` it measures ageing instead: nights of 100 added and 20 deleted rows, each compared with a fresh
build of the same rows. With `--near-equal 0.02`, the largest set has so many rows that are nearly alike.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss

from benchmarks.common.clustered import Clustered, Vectors, add_rows
from benchmarks.common.cone import Cone
from benchmarks.common.process import CORES, can_limit_memory, in_new_process
from benchmarks.common.report import Report, run
from benchmarks.index.ageing import Ageing, report_ageing
from benchmarks.index.findings import (
    Costs,
    report_build,
    report_choice,
    report_filters,
    report_kinds,
    report_standings,
    report_texts,
    report_updates,
)
from benchmarks.index.near_equal import measure_crowd
from benchmarks.index.plot import draw
from benchmarks.index.race import Race, Standing
from benchmarks.index.recall import exact, intrinsic_dimension, local_dimension, recall
from benchmarks.index.rivals import RIVALS, Contestant, Ours, Svs, missing
from benchmarks.index.upkeep import Built, build, filtered, kinds_of_query, train_and_add, update_often
from embedder.openmp import OPENMP_ENVIRONMENT
from index.collection import Collection
from index.collection.records import IndexSettings
from index.queries import KINDS, QueryKind
from index.search import Searcher
from index.versions.opening import open_segments

_DATA: dict[str, Clustered] = {"clusters": Clustered(), "cone": Cone()}
_DIMS = {"clusters": 64, "cone": 128}  # principal dimensions that rivals search
_SHARES = (0.5, 0.1, 0.01, 0.001)
_TARGET, _TEXT_TARGET = 0.99, 0.98
_QUICK_NIGHTS = 60
_BEYOND = 1_350_000_000  # bytes for a build in addition to its index, without libraries loaded before


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. `latency_ms`: with the default, a small set would be searched exactly. `at_size`: whether
    to add the bars for 100,000 rows or more.
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
    """Everything about a set of `rows` vectors; updates for the smallest set only, limited memory for the largest."""
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
    race = Race(queries=queries, truth=truth, target=_TARGET, rounds=plan.rounds, singles=plan.singles)
    as_built, swept, for_texts, *rivals = contestants
    standings = race.run([as_built, swept, *rivals])
    report_standings(report, standings, costs, plan.at_size)
    texts = data.kind("text", plan.queries)
    race = replace(race, queries=texts, truth=exact(texts, vectors, 10)[1], target=_TEXT_TARGET)
    with_texts = [for_texts, swept, *(each for each in rivals if isinstance(each, Svs))]
    report_texts(report, race.run(with_texts), plan.at_size)

    searcher = Searcher.open(collection)
    faiss.omp_set_num_threads(1)
    report_kinds(report, kinds_of_query(searcher, data, vectors), by_kind(rivals, standings[2:], data, vectors))
    faiss.omp_set_num_threads(CORES)
    report_build(report, built, confined, costs[Ours.name].build_s, plan.at_size and largest)

    columns = {"bucket": data.buckets(rows), "cluster": data.clusters(rows)}
    by_query_kind: dict[QueryKind, Vectors] = {"image": queries, "text": data.kind("text", plan.queries)}
    filters = [
        filtered(searcher, vectors, column, values, batch, share, kind)
        for kind, batch in by_query_kind.items()
        for column, values in columns.items()
        for share in _SHARES
    ]
    report_filters(report, filters)
    if rows == plan.rows[0]:
        updates = update_often(collection, data, rows, times=plan.updates, queries=queries)
        report_updates(report, updates, built, plan.at_size)
    return standings


def enter(
    collection: Collection, built: Built, vectors: Vectors, dims: int
) -> tuple[list[Contestant], dict[str, Costs]]:
    """Our index as built, swept, and as built for texts, then the installed rivals; and the costs of each."""
    # Ours is timed before and after the others, because the machine's speed drifts.
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
    """Recall@10 of rivals for fresh queries of each kind, with their parameters for images."""
    fresh = {kind: data.kind(kind, 1_000) for kind in KINDS}
    truth = {kind: exact(queries, vectors, 10)[1] for kind, queries in fresh.items()}
    recalls: dict[str, dict[str, float]] = {}
    for rival, standing in zip(rivals, standings, strict=True):
        rival.set(standing.point.parameters)
        recalls[rival.name] = {
            kind: recall(rival.search(queries, 10, CORES), truth[kind]) for kind, queries in fresh.items()
        }
    return recalls


def main(report: Report, folder: Path, options: Any) -> None:
    if options.nights:
        age(report, folder, options)
        return
    if options.near_equal:
        rows = QUICK.rows[0] if options.quick else int(options.rows.split(",")[-1])
        latency_ms = QUICK.latency_ms if options.quick else Plan.latency_ms
        settings = IndexSettings(latency_ms=latency_ms, target_recall=_TARGET)
        measure_crowd(rows, options.near_equal, settings, folder, report.about(f"{rows:,} clusters"))
        return
    plan = QUICK if options.quick else Plan(rows=sorted(int(rows) for rows in options.rows.split(",")))
    if missing():
        print(f"Not installed: {', '.join(missing())}; pip install -c constraints.txt -e '.[rivals]'")
    standings = {}
    for name in options.data.split(","):
        for rows in plan.rows:
            subject = f"{rows:,} {name}"
            with tempfile.TemporaryDirectory(dir=folder) as home:
                standings[subject] = measure(name, rows, plan, Path(home), report.about(subject))
    if options.plot:
        draw(standings, options.plot)


def age(report: Report, folder: Path, options: Any) -> None:
    for variable, value in OPENMP_ENVIRONMENT.items():  # as in a job
        os.environ.setdefault(variable, value)
    rows, nights = int(options.rows.split(",")[0]), options.nights
    latency_ms = Plan.latency_ms
    if options.quick:
        rows, nights, latency_ms = QUICK.rows[0], min(nights, _QUICK_NIGHTS), QUICK.latency_ms
    for name in options.data.split(","):
        settings = IndexSettings(latency_ms=latency_ms, target_recall=_TARGET)
        with tempfile.TemporaryDirectory(dir=folder) as home:
            ageing = Ageing(data=_DATA[name], rows=rows, nights=nights, settings=settings, folder=Path(home))
            report_ageing(report.about(f"{rows:,} {name}"), ageing, in_new_process(ageing.run))


OPTIONS: dict[str, dict[str, Any]] = {
    "--rows": {"default": "100000,1000000", "help": "sizes of the sets, smallest first"},
    "--data": {"default": ",".join(_DATA), "help": "the sets"},
    "--nights": {"type": int, "default": 0, "help": "measure ageing, over so many nights; 60 with --quick"},
    "--near-equal": {"type": float, "default": 0.0, "help": "measure a set with such a share of near-equal rows"},
    "--plot": {"type": Path, "help": "draw CPU time against recall into this file"},
}
if __name__ == "__main__":
    run("index", __doc__, main, "20,000 rows, and only the bars for such a size", OPTIONS)
