"""The tables, figures and bars of `benchmarks.index`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from benchmarks.common.report import Bar, Figure, Goal, print_table
from benchmarks.index.race import Standing
from benchmarks.index.rivals import Hnsw, Ours, Usearch
from benchmarks.index.upkeep import Built, Filtered, Updates

_MB, _GB = 1e6, 1e9


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

    @property
    def update_shares(self) -> list[float]:
        """Each update's time as a share of the whole build's."""
        return [seconds / self.built.seconds for seconds in self.updates.seconds] if self.updates else []


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Every table of a set."""
    whole, around = outcome.dimensions
    factory = outcome.built.manifest.segments[0].factory
    console.print(
        f"\n{outcome.rows:,} vectors of 512 dimensions, of which {whole:.1f} by the covariance and {around:.1f} around "
        f"a vector; Likeness chose {factory}"
    )
    print_table(
        f"{outcome.rows:,}: recall@10 ≥ 0.99, batches on all cores; latency of single queries on one thread",
        ("", "recall@10", "queries/s", "p50 ms", "p99 ms", "B/vector"),
        [
            (
                _named(each),
                each.point.recall,
                each.point.queries_per_second,
                each.p50_ms,
                each.p99_ms,
                outcome.bytes_per_vector[each.name],
            )
            for each in outcome.standings
        ],
        console,
    )
    _print_costs(outcome, console)
    print_table(
        f"{outcome.rows:,}: filtered at random (bucket) and by content (cluster), through Searcher.search (latency on "
        "one core and with the rows' columns)",
        ("column", "share", "rows", "recall@10", "first use ms", "p50 ms", "p99 ms"),
        [
            (each.column, f"{each.share:.1%}", each.rows, each.recall, each.cold_ms, each.p50_ms, each.p99_ms)
            for each in outcome.filters
        ],
        console,
    )
    if outcome.updates:
        print_table(
            f"{outcome.rows:,}: updates of 1% added and 1% deleted, build_index alone; recall@10 after the last "
            f"{outcome.updates.recall:.4f}, segments {outcome.updates.segments}",
            ("update", "seconds", "% of the whole build"),
            [
                (number, seconds, 100 * share)
                for number, (seconds, share) in enumerate(
                    zip(outcome.updates.seconds, outcome.update_shares, strict=True), start=1
                )
            ],
            console,
        )


def _named(standing: Standing) -> str:
    """With the dials, and whether it falls short."""
    dials = ", ".join(f"{name} {value:g}" for name, value in standing.point.dials.items())
    return f"{standing.name}{f' ({dials})' if dials else ''}{'' if standing.reached else ': never reaches 0.99'}"


def _print_costs(outcome: Outcome, console: Console) -> None:
    built, serving = outcome.built, outcome.serving
    with_files, without = outcome.peak_beyond_index
    where = ", memory limited" if outcome.confined else ""
    print_table(
        f"{outcome.rows:,}: seconds to build on all cores",
        ("", "seconds"),
        [
            ("Likeness: train, add and write, from vectors on disk (the bar's)", outcome.build_seconds[Ours.name]),
            ("Likeness: all of it, from Parquet to a tuned, measured, checksummed version", built.seconds),
            *([("the same within its memory and 1.35 GB", outcome.confined.seconds)] if outcome.confined else []),
            (f"{Usearch.name}: add, from vectors in memory", outcome.build_seconds[Usearch.name]),
            (f"{Hnsw.name}: train and add, from vectors in memory", outcome.build_seconds[Hnsw.name]),
        ],
        console,
    )
    print_table(
        f"{outcome.rows:,}: memory of Likeness",
        ("", "MB"),
        [
            ("index, as its manifest says", built.manifest.memory / _MB),
            (f"building{where}: peak resident beyond that, pages of mapped files included", with_files / _MB),
            ("building: peak beyond that, without these pages", without / _MB),
            ("serving, after the queries: memory of its own", serving["anonymous"] / _MB),
            ("serving: pages mapped of the approximate index", serving["ann.faiss"] / _MB),
            ("serving: pages mapped of the exact vectors, given back at need", serving["vectors.faiss"] / _MB),
            ("serving: pages mapped of the rows, given back at need", serving["rows.arrow"] / _MB),
        ],
        console,
    )


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Everything, by the size of the set."""
    return {str(outcome.rows): _figures(outcome) for outcome in outcomes}


def _figures(outcome: Outcome) -> dict[str, Figure]:
    built, (with_files, without) = outcome.built, outcome.peak_beyond_index
    return {
        "intrinsic_dimension": outcome.dimensions[0],
        "local_dimension": outcome.dimensions[1],
        "factory": built.manifest.segments[0].factory,
        "held_out_recall": built.manifest.recall,
        "build_seconds": {**outcome.build_seconds, "Likeness, all of it": built.seconds},
        "build_peak_bytes_beyond_index": {"resident": with_files, "anonymous": without},
        "bytes_per_vector": outcome.bytes_per_vector,
        "serving_bytes": outcome.serving,
        "standings": {standing.name: _standing(standing) for standing in outcome.standings},
        "filters": [asdict(each) for each in outcome.filters],
        "updates": asdict(outcome.updates) if outcome.updates else None,
    }


def _standing(standing: Standing) -> dict[str, Figure]:
    """At the operating point, and the curve as pairs of recall and rate."""
    return {
        **asdict(standing.point),
        "p50_ms": standing.p50_ms,
        "p99_ms": standing.p99_ms,
        "curve": [[point.recall, round(point.queries_per_second)] for point in standing.curve],
    }


def bars_of(outcomes: Sequence[Outcome], *, quick: bool) -> list[Bar]:
    """The bars of every set; `quick`: without those that hold at size alone."""
    bars = []
    for outcome in outcomes:
        bars += _bars_of_quality(outcome)
        if not quick:
            bars += _bars_of_speed(outcome)
    if not quick:
        largest = outcomes[-1]
        bars.append(
            Bar(
                name=f"{largest.rows:,}: GB to build beyond the index",
                value=largest.peak_beyond_index[0] / _GB,
                bar=1.5,
                goal=Goal.AT_MOST,
            )
        )
    return bars


def _bars_of_quality(outcome: Outcome) -> list[Bar]:
    size = f"{outcome.rows:,}"
    bars = [Bar(name=f"{size}: recall@10 as tuned by the build", value=outcome.of(Ours.name).point.recall, bar=0.99)]
    bars += [
        Bar(name=f"{size}: recall@10 filtered to {each.share:.1%} by {each.column}", value=each.recall, bar=0.98)
        for each in outcome.filters
    ]
    if outcome.updates:
        count = len(outcome.updates.seconds)
        bars.append(Bar(name=f"{size}: recall@10 after {count} updates", value=outcome.updates.recall, bar=0.985))
    return bars


def _bars_of_speed(outcome: Outcome) -> list[Bar]:
    size, ours = f"{outcome.rows:,}", outcome.of(Ours.name)
    usearch, hnsw = outcome.of(Usearch.name), outcome.of(Hnsw.name)
    seconds = outcome.build_seconds

    def speedup(rival: Standing) -> float:
        return ours.point.queries_per_second / rival.point.queries_per_second

    bars = [
        Bar(name=f"{size}: queries/s ÷ {usearch.name}'s", value=speedup(usearch), bar=3),
        Bar(name=f"{size}: queries/s ÷ {hnsw.name}'s", value=speedup(hnsw), bar=1.5),
        Bar(name=f"{size}: p50 ÷ {hnsw.name}'s", value=ours.p50_ms / hnsw.p50_ms, bar=1, goal=Goal.AT_MOST),
        *(
            Bar(name=f"{size}: {name}'s build ÷ ours", value=seconds[name] / seconds[ours.name], bar=10)
            for name in (usearch.name, hnsw.name)
        ),
        Bar(
            name=f"{size}: bytes per vector in memory",
            value=outcome.bytes_per_vector[ours.name],
            bar=640,
            goal=Goal.AT_MOST,
        ),
    ]
    if outcome.updates:
        name = f"{size}: slowest update ÷ whole build"
        bars.append(Bar(name=name, value=max(outcome.update_shares), bar=0.05, goal=Goal.AT_MOST))
    return bars
