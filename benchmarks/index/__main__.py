"""Quality, speed and size of the index: `python -m benchmarks.index [--rows 100000] [--data cone] [--quick]`.

Compares it with faiss's HNSW32,SQ8 and, if they are installed, usearch (f32), Intel's SVS and ScaNN in the same run, on
two sets of vectors, `clusters` in few dimensions and a `cone` with the shape of CLIP's:

- CPU time of a query at a recall@10 of 0.99, latency of single queries, rate of batches on all cores; the same for
  texts at 0.98;
- recall by kind of query with these parameters;
- time, CPU time and memory to build;
- updates of 1% added and 1% deleted rows, compared with a fresh build; recall of filtered searches.

With `--nights 300` it measures ageing instead: nights of 100 added and 20 deleted rows, each compared with a fresh
build of the same rows.
"""

import os
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.common.clustered import Clustered, Vectors, add_rows
from benchmarks.common.cone import Cone
from benchmarks.common.process import CORES, in_new_process, spent
from benchmarks.common.report import Report, run
from benchmarks.index.ageing import Aged, Ageing, report_ageing
from benchmarks.index.findings import Costs, report_filters, report_kinds, report_standings, report_texts
from benchmarks.index.race import Race
from benchmarks.index.recall import exact, intrinsic_dimension, local_dimension
from benchmarks.index.rivals import RIVALS, Contestant, Ours, Svs, missing
from benchmarks.index.upkeep import Built, build, report_build, train_and_add
from embedder.openmp import OPENMP_ENVIRONMENT
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from index.versions.opening import open_segments

_DATA: dict[str, Clustered] = {"clusters": Clustered(), "cone": Cone()}
_DIMS = {"clusters": 64, "cone": 128}  # principal dimensions that rivals search
_TARGET, _TEXT_TARGET = 0.99, 0.98
_QUICK_NIGHTS = 60


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

    @property
    def settings(self) -> IndexSettings:
        return IndexSettings(latency_ms=self.latency_ms, target_recall=_TARGET)


QUICK = Plan(rows=[20_000], rounds=1, singles=200, updates=3, latency_ms=1.0, at_size=False)


def measure(name: str, rows: int, plan: Plan, folder: Path, report: Report) -> None:
    """Everything about a set of `rows` vectors; updates for the smallest set only."""
    data = _DATA[name]
    largest, collection = rows == plan.rows[-1], Collection.create_or_open(str(folder / "collection"))
    add_rows(collection, data, range(rows))
    built = in_new_process(build, collection.location, plan.settings, data)
    manifest = built.manifest
    vectors, queries, texts = data.array(rows), data.queries(plan.queries), data.kind("text", plan.queries)
    scores, truth = exact(queries, vectors, 10)
    report.values(
        "vectors of 512 dimensions, and the index that Likeness chose",
        {
            "dimensions by the covariance": intrinsic_dimension(vectors[:20_000]),
            "around a vector": local_dimension(scores),
            "factory": manifest.segments[0].factory,
            "held-out recall@10": manifest.recall["10"],
        },
    )
    contestants, costs = enter(collection, built, vectors, _DIMS[name])
    race = Race(queries=queries, truth=truth, target=_TARGET, rounds=plan.rounds, singles=plan.singles)
    as_built, swept, for_texts, *rivals = contestants
    standings = race.run([as_built, swept, *rivals])
    report_standings(report, standings, costs, plan.at_size)
    race = replace(race, queries=texts, truth=exact(texts, vectors, 10)[1], target=_TEXT_TARGET)
    with_texts = [for_texts, swept, *(each for each in rivals if isinstance(each, Svs))]
    report_texts(report, race.run(with_texts), plan.at_size)
    searcher = Searcher.open(collection)
    report_kinds(report, searcher, standings[2:], data, vectors)
    report_build(report, built, costs[Ours.name]["build_s"], plan.at_size and largest)
    report_filters(report, searcher, data, vectors, {"image": queries, "text": texts})
    if rows == plan.rows[0]:
        update_often(report, data, rows, plan, folder)


def enter(
    collection: Collection, built: Built, vectors: Vectors, dims: int
) -> tuple[list[Contestant], dict[str, Costs]]:
    """Our index as built, swept, and as built for texts, then the installed rivals; and the costs of each."""
    manifest = built.manifest
    # Ours is timed before and after the others, because the machine's speed drifts.
    before, rivals, costs = train_and_add(collection, manifest, CORES), [], dict[str, Costs]()
    for kind in (kind for module, kind in RIVALS.items() if module not in missing()):
        rival, seconds, cpu = spent(partial(kind, vectors, dims))
        rivals.append(rival)
        costs[rival.name] = _costs(seconds, cpu, rival.bytes, vectors)
    seconds = (before + train_and_add(collection, manifest, CORES)) / 2
    mine = _costs(seconds, built.cpu_seconds, manifest.memory, vectors)
    with tempfile.TemporaryDirectory() as cache:
        segments = open_segments(collection, manifest, Path(cache))
    ours = partial(Ours, segments, manifest.memory)
    return [ours(), ours(sweep=True), ours(width=manifest.kinds["text"].width), *rivals], {Ours.name: mine, **costs}


def _costs(seconds: float, cpu: float, size: int, vectors: Vectors) -> Costs:
    return {"build_s": seconds, "build_cpu_s": cpu, "bytes_per_vector": size / len(vectors)}


def main(report: Report, folder: Path, options: Any) -> None:
    plan = QUICK if options.quick else Plan(rows=sorted(int(rows) for rows in options.rows.split(",")))
    if missing() and not options.nights:
        print(f"Not installed: {', '.join(missing())}; pip install -c constraints.txt -e '.[rivals]'")
    for name in options.data.split(","):
        for rows in plan.rows[: 1 if options.nights else None]:
            subject = f"{rows:,} {name}"
            with tempfile.TemporaryDirectory(dir=folder) as home:
                if options.nights:
                    nights = min(options.nights, _QUICK_NIGHTS) if options.quick else options.nights
                    changes = Ageing(
                        data=_DATA[name], rows=rows, nights=nights, settings=plan.settings, folder=Path(home)
                    )
                    age(report.about(subject), changes)
                else:
                    measure(name, rows, plan, Path(home), report.about(subject))


def update_often(report: Report, data: Clustered, rows: int, plan: Plan, folder: Path) -> None:
    """Add 1% and delete 1%, several times; compared with one fresh build after the last."""
    times, share = plan.updates, rows // 100
    size = {"rows": rows, "added": share, "deleted": share}
    aged = age(report, Ageing(data=data, nights=times, every=times, settings=plan.settings, folder=folder, **size))
    if plan.at_size:
        build = float(np.median(aged.builds))
        report.at_most("CPU of an update, on average ÷ a build", aged.everything / build / times, 0.04)
        report.at_most("slowest update ÷ the first build", aged.slowest / aged.first_build, 0.05)


def age(report: Report, ageing: Ageing) -> Aged:
    with patch.dict(os.environ, {**OPENMP_ENVIRONMENT, **os.environ}):  # as in a job
        aged = in_new_process(ageing.run)
    report_ageing(report, ageing, aged)
    return aged


OPTIONS: dict[str, dict[str, Any]] = {
    "--rows": {"default": "100000,1000000", "help": "sizes of the sets, smallest first"},
    "--data": {"default": ",".join(_DATA), "help": "the sets"},
    "--nights": {"type": int, "default": 0, "help": "measure ageing, over so many nights; 60 with --quick"},
}
if __name__ == "__main__":
    run("index", __doc__, main, "20,000 rows, and only the bars for such a size", OPTIONS)
