"""Queries per second against recall, of several indexes in turn, so that the machine's moods strike all alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.common.process import seconds_of
from benchmarks.index.recall import recall
from benchmarks.index.rivals import Contestant, Dials
from jobs.demo.clustered import Rows, Vectors

_K = 10
_ENOUGH = 0.9995  # recall beyond which no setting is of interest
_LEVEL = 5e-4  # below an index's highest recall what is faster is as good


@dataclass(frozen=True, kw_only=True)
class Point:
    """A setting of an index, recall@10 there, and queries per second of a batch on all cores."""

    dials: Dials
    recall: float
    queries_per_second: float


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An index at its operating point: what it chose itself, or the fastest of its curve with the recall wanted.

    `reached` says whether it has that recall; an index that never has stands where it is all but at its
    highest. Milliseconds are of single queries on one thread.
    """

    name: str
    curve: list[Point]
    point: Point
    reached: bool
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True)
class Course:
    """Queries with their exact neighbours, `(n, 10)`, and the recall@10 to reach.

    Rates are the best of so many `rounds`, twice as many at the operating point. `singles` measure the latency.
    """

    queries: Vectors
    truth: Rows
    target: float
    threads: int
    rounds: int
    singles: int

    def run(self, contestants: Sequence[Contestant]) -> list[Standing]:
        """The standings, in the order of the contestants."""
        curves = [self._curve(contestant) for contestant in contestants]
        for _ in range(self.rounds):
            for number in range(max(len(curve) for curve in curves)):
                for contestant, curve in zip(contestants, curves, strict=True):
                    if number < len(curve):
                        curve[number] = self._again(contestant, curve[number])
        points = [
            self._best(curve) if contestant.tuned is None else self.measure(contestant, contestant.tuned)
            for contestant, curve in zip(contestants, curves, strict=True)
        ]
        for _ in range(2 * self.rounds):
            points = [self._again(contestant, point) for contestant, point in zip(contestants, points, strict=True)]
        latencies = self._latencies(contestants, points)
        return [
            Standing(
                name=contestant.name,
                curve=sorted([*curve, point], key=lambda point: point.recall),
                point=point,
                reached=point.recall >= self.target,
                p50_ms=float(np.percentile(milliseconds, 50)),
                p99_ms=float(np.percentile(milliseconds, 99)),
            )
            for contestant, curve, point, milliseconds in zip(contestants, curves, points, latencies, strict=True)
        ]

    def measure(self, contestant: Contestant, dials: Dials) -> Point:
        """One batch."""
        contestant.set(dials)
        queries = self.queries[: contestant.most_queries]
        started = time.perf_counter()
        found = contestant.search(queries, _K, self.threads)
        seconds = time.perf_counter() - started
        return Point(
            dials=dials,
            recall=recall(found, self.truth[: len(queries)]),
            queries_per_second=len(queries) / seconds,
        )

    def _again(self, contestant: Contestant, point: Point) -> Point:
        rate = self.measure(contestant, point.dials).queries_per_second
        return replace(point, queries_per_second=max(rate, point.queries_per_second))

    def _curve(self, contestant: Contestant) -> list[Point]:
        """Points along each ramp, up to where it gains nothing more."""
        points = []
        for ramp in contestant.ramps:
            last: Point | None = None
            for dials in ramp:
                point = self.measure(contestant, dials)
                points.append(point)
                if point.recall >= self.target and last and last.recall < self.target:
                    points += self._between(contestant, last, point)
                if point.recall >= _ENOUGH or (last and last.recall > 0.9 and point.recall - last.recall < 1e-4):
                    break
                last = point
        return points

    def _between(self, contestant: Contestant, below: Point, above: Point) -> list[Point]:
        """Close in on the target: the steps of a ramp must not cost an index what a finer one would give it."""
        found: list[Point] = []
        changed = [name for name, value in above.dials.items() if below.dials[name] != value]
        while True:
            middle = {name: round((below.dials[name] + above.dials[name]) / 2) for name in changed}
            dials: Dials = {**above.dials, **middle}
            if dials in (below.dials, above.dials) or len(found) == 4:
                return found
            point = self.measure(contestant, dials)
            found.append(point)
            below, above = (below, point) if point.recall >= self.target else (point, above)

    def _best(self, curve: Sequence[Point]) -> Point:
        good = [point for point in curve if point.recall >= self.target]
        if good:
            return max(good, key=lambda point: point.queries_per_second)
        highest = max(point.recall for point in curve)
        level = [point for point in curve if point.recall >= highest - _LEVEL]
        return max(level, key=lambda point: point.queries_per_second)

    def _latencies(self, contestants: Sequence[Contestant], points: Sequence[Point]) -> list[list[float]]:
        """Milliseconds of single queries, one thread each, the indexes in turn."""
        milliseconds: list[list[float]] = [[] for _ in contestants]
        for contestant, point in zip(contestants, points, strict=True):
            contestant.set(point.dials)
        for first in range(0, self.singles, 50):
            for contestant, mine in zip(contestants, milliseconds, strict=True):
                for number in range(first, min(first + 50, self.singles, contestant.most_queries)):
                    query = self.queries[number : number + 1]
                    mine.append(1e3 * seconds_of(partial(contestant.search, query, _K, 1)))
        return milliseconds
