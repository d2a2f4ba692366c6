"""What a query costs against recall, of several indexes in turn, so that the machine's moods strike all alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.common.process import CORES, seconds_of
from benchmarks.index.recall import recall
from benchmarks.index.rivals import Contestant, Dials
from jobs.demo.clustered import Rows, Vectors

_K = 10
_ENOUGH = 0.9995  # recall beyond which no setting is of interest
_LEVEL = 5e-4  # below an index's highest recall what is faster is as good


@dataclass(frozen=True, kw_only=True)
class Point:
    """A setting of an index, recall@10 there, and microseconds of CPU for a query of a batch on one thread."""

    dials: Dials
    recall: float
    cpu_us: float


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An index at its operating point: what it chose itself, or the fastest of its curve with the recall wanted.

    `reached` says whether it has that recall; an index that never has stands where it is all but at its
    highest. Milliseconds are of single queries on one thread, queries per second those of a batch on all cores.
    """

    name: str
    curve: list[Point]
    point: Point
    reached: bool
    queries_per_second: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True)
class Course:
    """Queries with their exact neighbours, `(n, 10)`, and the recall@10 to reach.

    Costs at the operating point are the best of so many `rounds`. `singles` measure the latency.
    """

    queries: Vectors
    truth: Rows
    target: float
    rounds: int
    singles: int

    def run(self, contestants: Sequence[Contestant]) -> list[Standing]:
        """The standings, in the order of the contestants."""
        curves = [self._curve(contestant) for contestant in contestants]
        points = [
            self._best(curve) if contestant.tuned is None else self.measure(contestant, contestant.tuned)
            for contestant, curve in zip(contestants, curves, strict=True)
        ]
        rates = [0.0] * len(points)
        for _ in range(self.rounds):
            points = [self._again(contestant, point) for contestant, point in zip(contestants, points, strict=True)]
            rates = [
                max(rate, self._rate(contestant, point))
                for rate, contestant, point in zip(rates, contestants, points, strict=True)
            ]
        milliseconds = self._latencies(contestants, points)
        return [
            Standing(
                name=contestant.name,
                curve=sorted([*curve, point], key=lambda point: point.recall),
                point=point,
                reached=point.recall >= self.target,
                queries_per_second=rate,
                p50_ms=float(np.percentile(mine, 50)),
                p99_ms=float(np.percentile(mine, 99)),
            )
            for contestant, curve, point, rate, mine in zip(
                contestants, curves, points, rates, milliseconds, strict=True
            )
        ]

    def measure(self, contestant: Contestant, dials: Dials) -> Point:
        """One batch."""
        contestant.set(dials)
        started = time.process_time()
        found = contestant.search(self.queries, _K, 1)
        cpu_us = (time.process_time() - started) / len(self.queries) * 1e6
        return Point(dials=dials, recall=recall(found, self.truth), cpu_us=cpu_us)

    def _rate(self, contestant: Contestant, point: Point) -> float:
        """Queries per second of a batch on all cores."""
        contestant.set(point.dials)
        return len(self.queries) / seconds_of(partial(contestant.search, self.queries, _K, CORES))

    def _again(self, contestant: Contestant, point: Point) -> Point:
        return replace(point, cpu_us=min(point.cpu_us, self.measure(contestant, point.dials).cpu_us))

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
            return min(good, key=lambda point: point.cpu_us)
        highest = max(point.recall for point in curve)
        level = [point for point in curve if point.recall >= highest - _LEVEL]
        return min(level, key=lambda point: point.cpu_us)

    def _latencies(self, contestants: Sequence[Contestant], points: Sequence[Point]) -> list[list[float]]:
        """Milliseconds of single queries, one thread each, the indexes in turn."""
        milliseconds: list[list[float]] = [[] for _ in contestants]
        for first in range(0, self.singles, 50):
            for contestant, point, mine in zip(contestants, points, milliseconds, strict=True):
                contestant.set(point.dials)
                for query in self.queries[first : min(first + 50, self.singles)]:
                    mine.append(1e3 * seconds_of(partial(contestant.search, query[np.newaxis], _K, 1)))
        return milliseconds
