"""Cost of a query against recall. Indexes take turns, so that changes of the machine's speed affect all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.common.clustered import Rows, Vectors
from benchmarks.common.process import CORES, seconds_of, spent
from benchmarks.index.recall import recall
from benchmarks.index.rivals import Contestant, Parameters

_K = 10
_ENOUGH = 0.9995  # recall beyond which no parameters are tried
_TOLERANCE = 5e-4  # recall given up for speed by an index that does not reach the target


@dataclass(frozen=True, kw_only=True)
class Point:
    """Parameters of an index, their recall@10, and CPU microseconds of a query in a batch on one thread."""

    parameters: Parameters
    recall: float
    cpu_us: float


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An index at its operating point: its own choice, or the fastest point of its curve with the target recall.

    `reached` says whether the point has that recall. If none has, it is the fastest point close to the highest recall.
    `p50_ms` is the latency of single queries on one thread, `queries_per_second` the rate of a batch on all cores.
    """

    name: str
    curve: list[Point]
    point: Point
    reached: bool
    queries_per_second: float
    p50_ms: float


@dataclass(frozen=True, kw_only=True)
class Race:
    """Queries with their exact neighbours, `(n, 10)`, and the target for recall@10.

    Costs at the operating point are the best of `rounds`. The first `singles` queries measure the latency.
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
        figures = zip(contestants, curves, points, rates, self._latencies(contestants, points), strict=True)
        return [
            Standing(
                name=contestant.name,
                curve=sorted([*curve, point], key=lambda point: point.recall),
                point=point,
                reached=point.recall >= self.target,
                queries_per_second=rate,
                p50_ms=float(np.median(milliseconds)),
            )
            for contestant, curve, point, rate, milliseconds in figures
        ]

    def measure(self, contestant: Contestant, parameters: Parameters) -> Point:
        """One batch."""
        contestant.set(parameters)
        found, _, cpu = spent(partial(contestant.search, self.queries, _K, 1))
        return Point(parameters=parameters, recall=recall(found, self.truth), cpu_us=cpu / len(self.queries) * 1e6)

    def _rate(self, contestant: Contestant, point: Point) -> float:
        """Queries per second of a batch on all cores."""
        contestant.set(point.parameters)
        return len(self.queries) / seconds_of(partial(contestant.search, self.queries, _K, CORES))

    def _again(self, contestant: Contestant, point: Point) -> Point:
        return replace(point, cpu_us=min(point.cpu_us, self.measure(contestant, point.parameters).cpu_us))

    def _curve(self, contestant: Contestant) -> list[Point]:
        """Points along each ramp, until recall no longer rises."""
        points = []
        for ramp in contestant.ramps:
            last: Point | None = None
            for parameters in ramp:
                point = self.measure(contestant, parameters)
                points.append(point)
                if point.recall >= self.target and last and last.recall < self.target:
                    points += self._between(contestant, last, point)
                if point.recall >= _ENOUGH or (last and last.recall > 0.9 and point.recall - last.recall < 1e-4):
                    break
                last = point
        return points

    def _between(self, contestant: Contestant, below: Point, above: Point) -> list[Point]:
        """Up to four points nearer to the target, so that the coarse steps of a ramp put no index at a disadvantage."""
        found: list[Point] = []
        changed = [name for name, value in above.parameters.items() if below.parameters[name] != value]
        while True:
            middle = {name: round((below.parameters[name] + above.parameters[name]) / 2) for name in changed}
            parameters: Parameters = {**above.parameters, **middle}
            if parameters in (below.parameters, above.parameters) or len(found) == 4:
                return found
            point = self.measure(contestant, parameters)
            found.append(point)
            below, above = (below, point) if point.recall >= self.target else (point, above)

    def _best(self, curve: Sequence[Point]) -> Point:
        good = [point for point in curve if point.recall >= self.target]
        if good:
            return min(good, key=lambda point: point.cpu_us)
        highest = max(point.recall for point in curve)
        level = [point for point in curve if point.recall >= highest - _TOLERANCE]
        return min(level, key=lambda point: point.cpu_us)

    def _latencies(self, contestants: Sequence[Contestant], points: Sequence[Point]) -> list[list[float]]:
        """Milliseconds of single queries on one thread, the indexes in turn."""
        milliseconds: list[list[float]] = [[] for _ in contestants]
        for first in range(0, self.singles, 50):
            for contestant, point, mine in zip(contestants, points, milliseconds, strict=True):
                contestant.set(point.parameters)
                for query in self.queries[first : min(first + 50, self.singles)]:
                    mine.append(1e3 * seconds_of(partial(contestant.search, query[np.newaxis], _K, 1)))
        return milliseconds
