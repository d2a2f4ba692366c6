"""The tables and bars of `benchmarks.index`."""

from collections.abc import Mapping, Sequence

from benchmarks.common.report import Figure, Report
from benchmarks.index.race import Standing
from benchmarks.index.rivals import Hnsw, Ours, Usearch
from benchmarks.index.upkeep import Built, Filtered, KindFigures, Updates
from index.collection.records import VersionManifest

_MB, _GB = 1e6, 1e9


def report_choice(report: Report, manifest: VersionManifest, whole: float, around: float) -> None:
    """The set's dimensions, of all vectors and around one of them, and the index that Likeness chose for it."""
    report.table(
        "vectors of 512 dimensions, and the index that Likeness chose",
        [
            {
                "dimensions by the covariance": whole,
                "around a vector": around,
                "factory": manifest.segments[0].factory,
                "held-out recall@10": manifest.recall["10"],
            }
        ],
    )


def report_standings(
    report: Report,
    standings: Sequence[Standing],
    seconds: Mapping[str, float],
    bytes_per_vector: Mapping[str, float],
    at_size: bool,
) -> None:
    """How indexes stand; seconds to build and bytes in memory by index."""
    report.table(
        "recall@10 ≥ 0.99, batches on all cores; latency of single queries on one thread",
        [{**_standing(each), "B/vector": bytes_per_vector[each.name]} for each in standings],
    )
    curves = {
        each.name: [[point.recall, round(point.queries_per_second)] for point in each.curve] for each in standings
    }
    report.keep("recall@10 and queries/s", curves)
    by_name = {each.name: each for each in standings}
    ours, usearch, hnsw = (by_name[name] for name in (Ours.name, Usearch.name, Hnsw.name))
    report.at_least("recall@10 as tuned by the build", ours.point.recall, 0.99)
    if at_size:
        for rival, bar in ((usearch, 3), (hnsw, 1.5)):
            speedup = ours.point.queries_per_second / rival.point.queries_per_second
            report.at_least(f"queries/s ÷ {rival.name}'s", speedup, bar)
            report.at_least(f"{rival.name}'s build ÷ ours", seconds[rival.name] / seconds[ours.name], 10)
        report.at_most(f"p50 ÷ {hnsw.name}'s", ours.p50_ms / hnsw.p50_ms, 1)
        report.at_most("bytes per vector in memory", bytes_per_vector[ours.name], 640)


def report_build(
    report: Report, built: Built, confined: Built | None, seconds: Mapping[str, float], at_size: bool
) -> None:
    """What a build takes; `confined` is one within a hard limit on memory. `seconds` by index, ours of training
    and adding alone, from disk to disk.
    """
    report.values(
        "seconds to build on all cores",
        {
            "Likeness: train, add and write, from vectors on disk (the bar's)": seconds[Ours.name],
            "Likeness: all of it, from Parquet to a tuned, measured, checksummed version": built.seconds,
            "CPU seconds of that": built.cpu_seconds,
            "the same within its memory and 1.35 GB": confined.seconds if confined else None,
            f"{Usearch.name}: add, from vectors in memory": seconds[Usearch.name],
            f"{Hnsw.name}: train and add, from vectors in memory": seconds[Hnsw.name],
        },
    )
    memory = built.manifest.memory
    # Pages of files stay for as long as nobody else wants them: where memory was limited they had to go.
    beyond = (confined or built).peak_rss - memory
    report.values(
        "MB to build",
        {
            "index, as its manifest says": memory / _MB,
            f"peak resident beyond that, pages of mapped files included{', memory limited' * bool(confined)}": (
                beyond / _MB
            ),
            "peak beyond that, without these pages": (built.peak_anonymous - memory) / _MB,
        },
    )
    if at_size:
        report.at_most("GB to build beyond the index", beyond / _GB, 1.5)


def report_serving(report: Report, memory: Mapping[str, int]) -> None:
    """Bytes in memory after the queries, by file."""
    report.values(
        "MB to serve, after the queries",
        {
            "memory of its own": memory["anonymous"] / _MB,
            "pages mapped of the approximate index": memory["ann.faiss"] / _MB,
            "pages mapped of the exact vectors, given back at need": memory["vectors.faiss"] / _MB,
            "pages mapped of the rows, given back at need": memory["rows.arrow"] / _MB,
        },
    )


def report_kinds(report: Report, kinds: Sequence[KindFigures]) -> None:
    """Fresh queries of each kind, searched as far as the manifest says."""
    report.table("kinds of query, in batches (CPU of all cores)", [vars(each) for each in kinds])
    for each in kinds:
        report.at_least(f"recall@10 of fresh queries of kind {each.kind}", each.recall, each.target)
        report.at_most(f"manifest's error for {each.kind}", abs(each.recall - each.manifest), 0.005)


def report_filters(report: Report, filters: Sequence[Filtered]) -> None:
    """Searches among a share of the rows."""
    report.table(
        "filtered at random (bucket) and by content (cluster), through Searcher.search (latency on one core and "
        "with the rows' columns)",
        [vars(each) for each in filters],
    )
    for each in filters:
        report.at_least(f"recall@10 for {each.kind} filtered to {each.share:.1%} by {each.column}", each.recall, 0.98)


def report_updates(report: Report, updates: Updates, whole_build_s: float, at_size: bool) -> None:
    """What updates cost, and what they do to recall."""
    report.table(
        f"updates of 1% added and 1% deleted, build_index alone; recall@10 after the last {updates.recall:.4f}, "
        f"segments {updates.segments}",
        [
            {"update": number, "seconds": seconds, "% of the whole build": 100 * seconds / whole_build_s}
            for number, seconds in enumerate(updates.seconds, start=1)
        ],
    )
    report.at_least(f"recall@10 after {len(updates.seconds)} updates", updates.recall, 0.985)
    if at_size:
        report.at_most("slowest update ÷ whole build", max(updates.seconds) / whole_build_s, 0.05)


def _standing(standing: Standing) -> dict[str, Figure]:
    return {
        "": standing.name,
        "dials": ", ".join(f"{name} {value:g}" for name, value in standing.point.dials.items()),
        "recall@10": standing.point.recall,
        "reaches 0.99": "yes" if standing.reached else "never",
        "queries/s": standing.point.queries_per_second,
        "p50 ms": standing.p50_ms,
        "p99 ms": standing.p99_ms,
    }
