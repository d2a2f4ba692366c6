"""The tables and bars of `benchmarks.index` about queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import faiss
import numpy as np

from benchmarks.common.clustered import GROUPS, Clustered, Vectors
from benchmarks.common.process import CORES, spent
from benchmarks.common.report import Figure, Report
from benchmarks.index.race import Standing
from benchmarks.index.recall import exact, recall
from benchmarks.index.rivals import Hnsw, Ours, Svs, Usearch
from benchmarks.index.upkeep import rows_found
from index.queries import QueryKind
from index.search import Searcher

_K, _FRESH = 10, 1_000
_SHARES = (0.5, 0.1, 0.01, 0.001)

Costs = Mapping[str, float]
"""Of an index: `build_s`, `build_cpu_s` and `bytes_per_vector`."""


def report_standings(report: Report, standings: Sequence[Standing], costs: Mapping[str, Costs], at_size: bool) -> None:
    """Results with images, and the costs of each index."""
    report.table(
        "images: recall@10 ≥ 0.99; CPU of a batch and latency of single queries on one thread, queries/s on all cores",
        [_standing(each) for each in standings],
    )
    report.table(
        "seconds to train and add on all cores, CPU seconds (ours: of the whole build), bytes of a vector in memory",
        costs,
    )
    by_name = {each.name: each for each in standings}
    ours, mine = by_name[Ours.name], costs[Ours.name]
    report.at_least("recall@10 as tuned by the build", ours.point.recall, 0.99)
    if not at_size:
        return
    for kind, bar in ((Usearch, 3), (Hnsw, 1.5)):
        if rival := by_name.get(kind.name):
            speedup = ours.queries_per_second / rival.queries_per_second
            report.at_least(f"queries/s ÷ {rival.name}'s", speedup, bar)
            report.at_least(f"{rival.name}'s build ÷ ours", costs[rival.name]["build_s"] / mine["build_s"], 10)
    report.at_most(f"p50 ÷ {Hnsw.name}'s", ours.p50_ms / by_name[Hnsw.name].p50_ms, 1)
    report.at_most("bytes per vector in memory", mine["bytes_per_vector"], 640)
    if svs := _report_cpu(report, "images", standings, 1.1):
        report.at_most(f"p50 ÷ {svs.name}'s", ours.p50_ms / svs.p50_ms, 1.5)
        share = mine["build_cpu_s"] / costs[svs.name]["build_cpu_s"]
        report.at_most(f"CPU of the whole build ÷ {svs.name}'s", share, 0.6)


def report_texts(report: Report, standings: Sequence[Standing], at_size: bool) -> None:
    """Results with words."""
    report.table("words: recall@10 ≥ 0.98", [_standing(each) for each in standings])
    if at_size:
        _report_cpu(report, "words", standings, 1)


def report_kinds(
    report: Report,
    searcher: Searcher,
    rivals: Sequence[Standing],
    data: Clustered,
    vectors: Vectors,
) -> None:
    """Recall of fresh queries by kind, which tuning has not seen: ours with the manifest's widths, rivals with their
    parameters for images.
    """
    segments, table, recalls = searcher.segments, list[dict[str, Figure]](), defaultdict[str, dict[str, Figure]](dict)
    for kind, record in searcher.manifest.kinds.items():
        queries, target = data.kind(kind, _FRESH), searcher.manifest.settings.target_of(kind)
        truth = exact(queries, vectors, _K)[1]
        faiss.omp_set_num_threads(1)
        search = partial(segments.search, queries, _K, width=record.width)
        search()
        hits, _, cpu = spent(search)
        faiss.omp_set_num_threads(CORES)
        reached = recall(segments.ids(hits.positions.ravel()).astype(np.int64).reshape(hits.positions.shape), truth)
        figures = {"recall": reached, "manifest": record.recall, "target": target, "width": record.width}
        table.append({"kind": kind, **figures, "cpu_us": cpu / _FRESH * 1e6})
        recalls[Ours.name][kind] = reached
        for each in rivals:
            each.contestant.set(each.point.parameters)
            recalls[each.name][kind] = recall(each.contestant.search(queries, _K, CORES), truth)
        report.at_least(f"recall@10 of fresh queries of kind {kind}", reached, target)
        report.at_most(f"manifest's error for {kind}", abs(reached - record.recall), 0.005)
    report.table("kinds of query, in batches on one thread", table)
    report.table("recall@10 by kind of query, rivals with their parameters for images", recalls)


def report_filters(
    report: Report, searcher: Searcher, data: Clustered, vectors: Vectors, queries: Mapping[QueryKind, Vectors]
) -> None:
    """Recall of searches among those rows whose value of a column, from 0 to 999, is small."""
    table = list[dict[str, Figure]]()
    columns = {"bucket": data.buckets(len(vectors)), "cluster": data.clusters(len(vectors))}
    for (kind, batch), (column, values), share in product(queries.items(), columns.items(), _SHARES):
        width = round(share * GROUPS)
        passes = np.flatnonzero(values < width)
        truth = passes[exact(batch, vectors[passes], _K)[1]]
        reached = recall(rows_found(searcher, batch, {column: {"$lt": width}}, kind), truth)
        table.append({"kind": kind, "column": column, "share": share, "rows": len(passes), "recall": reached})
        report.at_least(f"recall@10 for {kind} filtered to {share:.1%} by {column}", reached, 0.98)
    report.table("filtered at random (bucket) and by content (cluster)", table)


def _report_cpu(report: Report, what: str, standings: Sequence[Standing], bar: float) -> Standing | None:
    """Bars for our CPU time, as built and swept, ÷ the strongest rival's: 0 if the rival never reaches the recall.
    Returns the rival, if it takes part.
    """
    svs = next((each for each in standings if each.name.startswith(Svs.maker)), None)
    if svs is not None:
        for each in standings[:2]:
            share = each.point.cpu_us / svs.point.cpu_us if svs.reached else 0.0
            short = "" if svs.reached else f", which stays at {svs.point.recall:.3f}"
            report.at_most(f"CPU for {what}: {each.name} ÷ {svs.name}{short}", share, bar)
    return svs


def _standing(standing: Standing) -> dict[str, Figure]:
    return {
        "": standing.name,
        "parameters": ", ".join(f"{name} {value:g}" for name, value in standing.point.parameters.items()),
        "recall@10": standing.point.recall,
        "reaches it": "yes" if standing.reached else "never",
        "CPU µs": standing.point.cpu_us,
        "queries/s": standing.queries_per_second,
        "p50 ms": standing.p50_ms,
    }
