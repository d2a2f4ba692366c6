"""The tables and bars of `benchmarks.index`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.report import Figure, Report
from benchmarks.index.race import Standing
from benchmarks.index.rivals import Hnsw, Ours, Svs, Usearch
from benchmarks.index.upkeep import Built, Filtered, KindFigures, Updates
from index.collection.records import VersionManifest


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of an index."""

    build_s: float
    build_cpu_s: float
    bytes_per_vector: float


def report_choice(report: Report, manifest: VersionManifest, whole: float, around: float) -> None:
    """The set's intrinsic dimensions, overall and around a vector, and the index that Likeness chose for it."""
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


def report_standings(report: Report, standings: Sequence[Standing], costs: Mapping[str, Costs], at_size: bool) -> None:
    """Results with images, and the costs of each index."""
    report.table(
        "images: recall@10 ≥ 0.99; CPU of a batch and latency of single queries on one thread, queries/s on all cores",
        [_standing(each) for each in standings],
    )
    report.table(
        "seconds to train and add on all cores, CPU seconds (ours: of the whole build), bytes of a vector in memory",
        [{"": name, **vars(cost)} for name, cost in costs.items()],
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
            report.at_least(f"{rival.name}'s build ÷ ours", costs[rival.name].build_s / mine.build_s, 10)
    report.at_most(f"p50 ÷ {Hnsw.name}'s", ours.p50_ms / by_name[Hnsw.name].p50_ms, 1)
    report.at_most("bytes per vector in memory", mine.bytes_per_vector, 640)
    if svs := _svs(standings):
        _report_cpu(report, "images", standings, 1.1)
        report.at_most(f"p50 ÷ {svs.name}'s", ours.p50_ms / svs.p50_ms, 1.5)
        report.at_most(f"CPU of the whole build ÷ {svs.name}'s", mine.build_cpu_s / costs[svs.name].build_cpu_s, 0.6)


def report_texts(report: Report, standings: Sequence[Standing], at_size: bool) -> None:
    """Results with words."""
    report.table("words: recall@10 ≥ 0.98", [_standing(each) for each in standings])
    if at_size and _svs(standings):
        _report_cpu(report, "words", standings, 1)


def report_build(report: Report, built: Built, confined: Built | None, seconds: float, at_size: bool) -> None:
    """Costs of a build; `confined` is one with a hard limit on memory. `seconds` are for training and adding only, from
    disk to disk.
    """
    report.values(
        "seconds to build on all cores",
        {
            "train, add and write, from vectors on disk": seconds,
            "complete, from Parquet to a tuned, measured, checksummed version": built.seconds,
            "CPU seconds of the complete build": built.cpu_seconds,
            "complete, limited to 1.35 GB beyond the index": confined.seconds if confined else None,
        },
    )
    if at_size:
        # Linux keeps mapped pages of files in memory until it needs the space, so a limit makes this smaller.
        beyond = (confined or built).peak_rss - built.manifest.memory
        report.at_most("GB to build beyond the index", beyond / 1e9, 1.5)


def report_kinds(report: Report, kinds: Sequence[KindFigures], rivals: Mapping[str, Mapping[str, float]]) -> None:
    """Recall of fresh queries by kind: ours with the manifest's widths, rivals with their parameters for images."""
    report.table("kinds of query, in batches on one thread", [vars(each) for each in kinds])
    ours = {each.kind: each.recall for each in kinds}
    recalls: Mapping[str, Mapping[str, Figure]] = {Ours.name: ours, **rivals}
    report.table(
        "recall@10 by kind of query, rivals with their parameters for images",
        [{"": name, **each} for name, each in recalls.items()],
    )
    for each in kinds:
        report.at_least(f"recall@10 of fresh queries of kind {each.kind}", each.recall, each.target)
        report.at_most(f"manifest's error for {each.kind}", abs(each.recall - each.manifest), 0.005)


def report_filters(report: Report, filters: Sequence[Filtered]) -> None:
    """Recall of filtered searches."""
    report.table("filtered at random (bucket) and by content (cluster)", [vars(each) for each in filters])
    for each in filters:
        report.at_least(f"recall@10 for {each.kind} filtered to {each.share:.1%} by {each.column}", each.recall, 0.98)


def report_updates(report: Report, updates: Updates, built: Built, at_size: bool) -> None:
    """Cost of updates, and recall after them."""
    report.table(
        f"updates of 1% added and 1% deleted, build_index alone; recall@10 after the last {updates.recall:.4f}, "
        f"segments {updates.segments}",
        [
            {
                "update": number,
                "seconds": seconds,
                "% of the whole build": 100 * seconds / built.seconds,
                "CPU seconds": cpu,
                "% of the whole build's": 100 * cpu / built.cpu_seconds,
            }
            for number, (seconds, cpu) in enumerate(zip(updates.seconds, updates.cpu_seconds, strict=True), start=1)
        ],
    )
    report.at_least(f"recall@10 after {len(updates.seconds)} updates", updates.recall, 0.985)
    if at_size:
        mean = sum(updates.cpu_seconds) / len(updates.cpu_seconds)
        report.at_most("CPU of an update, on average ÷ whole build", mean / built.cpu_seconds, 0.04)
        report.at_most("slowest update ÷ whole build", max(updates.seconds) / built.seconds, 0.05)


def _svs(standings: Sequence[Standing]) -> Standing | None:
    """The strongest rival, if it takes part."""
    return next((each for each in standings if each.name.startswith(Svs.maker)), None)


def _report_cpu(report: Report, what: str, standings: Sequence[Standing], bar: float) -> None:
    """Bars for our CPU time, as built and swept, ÷ the strongest rival's: 0 if the rival never reaches the recall."""
    ours, swept, svs = standings[0], standings[1], _svs(standings)
    assert svs is not None
    for each in (ours, swept):
        share = each.point.cpu_us / svs.point.cpu_us if svs.reached else 0.0
        short = "" if svs.reached else f", which stays at {svs.point.recall:.3f}"
        report.at_most(f"CPU for {what}: {each.name} ÷ {svs.name}{short}", share, bar)


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
