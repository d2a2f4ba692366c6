"""The tables and bars of `benchmarks.index`."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.common.report import Figure, Report
from benchmarks.index.race import Standing
from benchmarks.index.rivals import Hnsw, Ours, Usearch
from benchmarks.index.upkeep import Built, Filtered, Updates

_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that was measured of a set. `dimensions`: of all vectors, and around one of them.

    `confined` was built within a hard limit on memory. By index: `build_seconds`, ours of training and adding alone,
    from disk to disk; `bytes_per_vector` in memory.
    """

    rows: int
    dimensions: tuple[float, float]
    built: Built
    confined: Built | None
    build_seconds: dict[str, float]
    standings: list[Standing]
    bytes_per_vector: dict[str, float]
    serving: dict[str, int]
    filters: list[Filtered]
    updates: Updates | None

    def of(self, name: str) -> Standing:
        """How an index stands."""
        return next(standing for standing in self.standings if standing.name == name)

    @property
    def peak_beyond_index(self) -> tuple[int, int]:
        """The most bytes that the build held beyond the finished index: with the pages of mapped files, and without.

        Pages stay for as long as nobody else wants them, so the first is of the confined build, where there is one.
        """
        memory = self.built.manifest.memory
        return (self.confined or self.built).peak_rss - memory, self.built.peak_anonymous - memory


def print_outcome(outcome: Outcome, report: Report) -> None:
    """Every table of a set."""
    size, manifest = f"{outcome.rows:,}", outcome.built.manifest
    whole, around = outcome.dimensions
    report.table(
        f"{size}: vectors of 512 dimensions, and the index that Likeness chose",
        [
            {
                "dimensions by the covariance": whole,
                "around a vector": around,
                "factory": manifest.segments[0].factory,
                "held-out recall@10": manifest.recall["10"],
            }
        ],
    )
    report.table(
        f"{size}: recall@10 ≥ 0.99, batches on all cores; latency of single queries on one thread",
        [_standing(each, outcome.bytes_per_vector[each.name]) for each in outcome.standings],
    )
    report.figures[f"{size}: recall@10 and queries/s"] = {
        each.name: [[point.recall, round(point.queries_per_second)] for point in each.curve]
        for each in outcome.standings
    }
    report.table(f"{size}: seconds to build on all cores", _named("seconds", _seconds_to_build(outcome)))
    report.table(f"{size}: memory of Likeness", _named("MB", _memory(outcome)))
    report.table(
        f"{size}: filtered at random (bucket) and by content (cluster), through Searcher.search (latency on one core "
        "and with the rows' columns)",
        [vars(each) for each in outcome.filters],
    )
    if updates := outcome.updates:
        report.table(
            f"{size}: updates of 1% added and 1% deleted, build_index alone; recall@10 after the last "
            f"{updates.recall:.4f}, segments {updates.segments}",
            [
                {"update": number, "seconds": seconds, "% of the whole build": 100 * seconds / outcome.built.seconds}
                for number, seconds in enumerate(updates.seconds, start=1)
            ],
        )


def _standing(standing: Standing, bytes_per_vector: float) -> dict[str, Figure]:
    return {
        "": standing.name,
        "dials": ", ".join(f"{name} {value:g}" for name, value in standing.point.dials.items()),
        "recall@10": standing.point.recall,
        "reaches 0.99": "yes" if standing.reached else "never",
        "queries/s": standing.point.queries_per_second,
        "p50 ms": standing.p50_ms,
        "p99 ms": standing.p99_ms,
        "B/vector": bytes_per_vector,
    }


def _named(unit: str, figures: Mapping[str, float]) -> list[dict[str, Figure]]:
    return [{"": name, unit: value} for name, value in figures.items()]


def _seconds_to_build(outcome: Outcome) -> dict[str, float]:
    found = {
        "Likeness: train, add and write, from vectors on disk (the bar's)": outcome.build_seconds[Ours.name],
        "Likeness: all of it, from Parquet to a tuned, measured, checksummed version": outcome.built.seconds,
        f"{Usearch.name}: add, from vectors in memory": outcome.build_seconds[Usearch.name],
        f"{Hnsw.name}: train and add, from vectors in memory": outcome.build_seconds[Hnsw.name],
    }
    if outcome.confined:
        found["Likeness: all of it, within its memory and 1.35 GB"] = outcome.confined.seconds
    return found


def _memory(outcome: Outcome) -> dict[str, float]:
    (with_files, without), serving = outcome.peak_beyond_index, outcome.serving
    where = ", memory limited" if outcome.confined else ""
    found = {
        "index, as its manifest says": outcome.built.manifest.memory,
        f"building{where}: peak resident beyond that, pages of mapped files included": with_files,
        "building: peak beyond that, without these pages": without,
        "serving, after the queries: memory of its own": serving["anonymous"],
        "serving: pages mapped of the approximate index": serving["ann.faiss"],
        "serving: pages mapped of the exact vectors, given back at need": serving["vectors.faiss"],
        "serving: pages mapped of the rows, given back at need": serving["rows.arrow"],
    }
    return {name: size / _MB for name, size in found.items()}


def judge_quality(outcome: Outcome, report: Report) -> None:
    """The bars that hold at every size."""
    size = f"{outcome.rows:,}"
    report.at_least(f"{size}: recall@10 as tuned by the build", outcome.of(Ours.name).point.recall, 0.99)
    for each in outcome.filters:
        report.at_least(f"{size}: recall@10 filtered to {each.share:.1%} by {each.column}", each.recall, 0.98)
    if updates := outcome.updates:
        report.at_least(f"{size}: recall@10 after {len(updates.seconds)} updates", updates.recall, 0.985)


def judge_speed(outcome: Outcome, report: Report) -> None:
    """The bars that hold from 100,000 rows on."""
    size, seconds = f"{outcome.rows:,}", outcome.build_seconds
    ours, usearch, hnsw = (outcome.of(name) for name in (Ours.name, Usearch.name, Hnsw.name))
    for rival, bar in ((usearch, 3), (hnsw, 1.5)):
        speedup = ours.point.queries_per_second / rival.point.queries_per_second
        report.at_least(f"{size}: queries/s ÷ {rival.name}'s", speedup, bar)
        report.at_least(f"{size}: {rival.name}'s build ÷ ours", seconds[rival.name] / seconds[ours.name], 10)
    report.at_most(f"{size}: p50 ÷ {hnsw.name}'s", ours.p50_ms / hnsw.p50_ms, 1)
    report.at_most(f"{size}: bytes per vector in memory", outcome.bytes_per_vector[ours.name], 640)
    if outcome.updates:
        slowest = max(outcome.updates.seconds) / outcome.built.seconds
        report.at_most(f"{size}: slowest update ÷ whole build", slowest, 0.05)
