"""Finds the fastest search parameters of a segment that reach a target recall, by measuring."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from index.builder.recall import MARGIN, drop_own, lower_bound, recall
from index.segments.exact import exact_neighbours
from index.segments.kinds.kind import Parameters
from index.segments.nearest import Part, nearest
from index.segments.vector_index import VectorIndex

_QUERIES = 1_000
_K = 10
_DEEP_K, _DEEP_STEP = 100, 4  # a quarter of the queries measures how much wider a search for a larger k must be
_FINALISTS, _LAPS = 4, 3  # the 4 fastest are timed again, 3 times
_SLOWER = 1.1  # times the fastest: more than measuring noise
_FEW = 0.05  # share of the queries


def tune(segment: VectorIndex, target_recall: float) -> float:
    """Set the segment's approximate search to the fastest parameters with that recall@10, and return their recall.

    The deepest re-ranking allows the narrowest search. From there, the search is widened while that makes it faster,
    each time with the shallowest re-ranking that meets the target. If only queries amid near-equal rows miss it, they
    get a deeper search than all others; otherwise, if nothing meets it, the widest and deepest search is used. Then
    `breadth`, the power by which the search widens with k, is raised until recall@100 meets the target too.
    """
    trial, widest = _Trial(segment), segment.kind.widths[-1]
    shallow, *deeper = segment.kind.depths
    best = _fastest(trial, target_recall, shallow)
    if best is None and trial.crowd_alone_misses({**shallow[-1], **widest}, target_recall):
        segment.tune({"crowd": trial.crowd})
        deeper = [shallow, *deeper]
    for depths in deeper:  # the next only if no search with these is good enough
        best = best or _fastest(trial, target_recall, depths)
    reached = trial.run(best or {**[shallow, *deeper][-1][-1], **widest}, margin=0)[0]
    for breadth in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        if trial.run({"breadth": breadth}, k=_DEEP_K, step=_DEEP_STEP)[0] >= target_recall:
            break
    return reached


def _fastest(trial: _Trial, target_recall: float, depths: Sequence[Parameters]) -> Parameters | None:
    """The fastest parameters that reach the target; None if there are none."""
    searches = _good_searches(trial, depths, trial.segment.kind.widths, target_recall)
    good = [parameters for _, parameters in sorted(searches, key=lambda timed: timed[0])]
    return min(good[:_FINALISTS], key=trial.seconds, default=None)


def _good_searches(
    trial: _Trial, depths: Sequence[Parameters], widths: Sequence[Parameters], target_recall: float
) -> Iterator[tuple[float, Parameters]]:
    """Seconds and parameters of the narrowest search that reaches the target, and of wider ones that re-rank less,
    until even those with less re-ranking than the last are slower. The shallowest depth comes first.
    """
    deepest, fastest = depths[-1], math.inf
    narrowest = bisect.bisect_left(widths, target_recall, key=lambda width: trial.run({**deepest, **width})[0])
    for width in widths[narrowest:]:
        number, seconds = _shallowest(trial, depths, width, target_recall)
        if number < len(depths):
            yield seconds, {**depths[number], **width}
            fastest, depths = min(fastest, seconds), depths[:number]
        if not depths or seconds > _SLOWER * fastest:
            return


def _shallowest(
    trial: _Trial, depths: Sequence[Parameters], width: Parameters, target_recall: float
) -> tuple[int, float]:
    """The index of the first depth that reaches the target with this width, and its seconds; if none does, the number
    of depths and the seconds of the last.
    """
    run = cache(lambda number: trial.run({**depths[number], **width}))
    number = bisect.bisect_left(range(len(depths)), target_recall, key=lambda number: run(number)[0])
    return number, run(min(number, len(depths) - 1))[1]


class _Trial:
    """Rows of a segment as queries, and their exact neighbours."""

    def __init__(self, segment: VectorIndex) -> None:
        self.segment = segment
        self._own = np.unique(np.linspace(0, segment.ntotal - 1, min(_QUERIES, segment.ntotal)).astype(np.int64))
        self._queries = segment.vectors(self._own)
        depth = min(_DEEP_K, segment.ntotal - 1)
        self._exact = drop_own(exact_neighbours(self._queries, segment.live_blocks(), depth + 1), self._own).scores

    @property
    def crowd(self) -> float:
        """The cosine with the tenth neighbour that few queries exceed."""
        return float(np.quantile(self._exact[:, :_K][:, -1], 1 - _FEW))

    def crowd_alone_misses(self, parameters: Parameters, target_recall: float) -> bool:
        """Whether all queries but those beyond `crowd` reach the target."""
        alone = self._exact[:, :_K][:, -1] < self.crowd
        return bool(self._recalls(parameters, _K, 1)[0][alone].mean() >= target_recall)

    def run(self, parameters: Parameters, k: int = _K, margin: float = MARGIN, step: int = 1) -> tuple[float, float]:
        """The recall@k less `margin` standard errors, and the seconds taken, for every `step`-th query."""
        recalls, seconds = self._recalls(parameters, k, step)
        return lower_bound(recalls, margin), seconds

    def _recalls(self, parameters: Parameters, k: int, step: int) -> tuple[npt.NDArray[np.float64], float]:
        self.segment.tune(parameters)
        queries = self._queries[::step]
        started = time.perf_counter()
        hits = nearest([Part(self.segment)], queries, k + 1)
        seconds = time.perf_counter() - started
        return recall(drop_own(hits, self._own[::step]).scores, self._exact[::step], k), seconds

    def seconds(self, parameters: Parameters) -> float:
        """Seconds of the fastest of several runs."""
        return min(self.run(parameters)[1] for _ in range(_LAPS))
