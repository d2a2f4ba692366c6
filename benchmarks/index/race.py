"""Cost of a query at a recall. Indexes take turns, so that changes of the machine's speed affect all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from benchmarks.common.clustered import Rows, Vectors
from benchmarks.common.process import CORES, seconds_of, spent
from benchmarks.index.recall import recall
from benchmarks.index.rivals import Contestant, Parameters

_K = 10
_ENOUGH = 0.9995  # recall beyond which no parameters are tried
_TOLERANCE = 5e-4  # recall given up for speed by an index that does not reach the target
_SINGLES = 50  # queries of each turn


@dataclass(frozen=True, kw_only=True)
class Point:
    """Parameters of an index, their recall@10, and CPU microseconds of a query in a batch on one thread."""

    parameters: Parameters
    recall: float
    cpu_us: float


@dataclass(kw_only=True)
class Standing:
    """An index at its operating point: its own choice, or the fastest point of its curve with the target recall.

    `reached` says whether the point has that recall. If none has, it is the fastest point close to the highest recall.
    `milliseconds` are those of single queries on one thread, `queries_per_second` the rate of a batch on all cores.
    """

    contestant: Contestant
    point: Point
    reached: bool
    queries_per_second: float = 0.0
    milliseconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def p50_ms(self) -> float:
        return float(np.median(self.milliseconds))


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
        standings = list(map(self._operating_point, contestants))
        for _ in range(self.rounds):
            for each in standings:
                again = self._measure(each.contestant, each.point.parameters)
                each.point = min(each.point, again, key=lambda point: point.cpu_us)
            for each in standings:
                each.queries_per_second = max(each.queries_per_second, self._rate(each))
        for first in range(0, self.singles, _SINGLES):
            for each in standings:
                each.milliseconds += self._latencies(each, self.queries[first : min(first + _SINGLES, self.singles)])
        return standings

    def _operating_point(self, contestant: Contestant) -> Standing:
        if contestant.tuned is not None:
            point = self._measure(contestant, contestant.tuned)
        else:
            curve = list(self._curve(contestant))
            highest = max(point.recall for point in curve)
            enough = self.target if highest >= self.target else highest - _TOLERANCE
            point = min((each for each in curve if each.recall >= enough), key=lambda point: point.cpu_us)
        return Standing(contestant=contestant, point=point, reached=point.recall >= self.target)

    def _measure(self, contestant: Contestant, parameters: Parameters) -> Point:
        """One batch."""
        contestant.set(parameters)
        found, _, cpu = spent(partial(contestant.search, self.queries, _K, 1))
        return Point(parameters=parameters, recall=recall(found, self.truth), cpu_us=cpu / len(self.queries) * 1e6)

    def _curve(self, contestant: Contestant) -> Iterator[Point]:
        """Points along each ramp, until recall no longer rises."""
        for ramp in contestant.ramps:
            last: Point | None = None
            for parameters in ramp:
                point = self._measure(contestant, parameters)
                yield point
                if point.recall >= self.target and last and last.recall < self.target:
                    yield from self._between(contestant, last, point)
                if point.recall >= _ENOUGH or (last and last.recall > 0.9 and point.recall - last.recall < 1e-4):
                    break
                last = point

    def _between(self, contestant: Contestant, below: Point, above: Point) -> Iterator[Point]:
        """Up to four points nearer to the target, so that the coarse steps of a ramp put no index at a disadvantage."""
        changed = [name for name, value in above.parameters.items() if below.parameters[name] != value]
        for _ in range(4):
            middle = {name: round((below.parameters[name] + above.parameters[name]) / 2) for name in changed}
            parameters: Parameters = {**above.parameters, **middle}
            if parameters in (below.parameters, above.parameters):
                return
            point = self._measure(contestant, parameters)
            yield point
            below, above = (below, point) if point.recall >= self.target else (point, above)

    def _rate(self, standing: Standing) -> float:
        """Queries per second of a batch on all cores."""
        standing.contestant.set(standing.point.parameters)
        return len(self.queries) / seconds_of(partial(standing.contestant.search, self.queries, _K, CORES))

    def _latencies(self, standing: Standing, queries: Vectors) -> list[float]:
        """Milliseconds of these queries, one by one on one thread."""
        standing.contestant.set(standing.point.parameters)
        return [1e3 * seconds_of(partial(standing.contestant.search, query[np.newaxis], _K, 1)) for query in queries]
