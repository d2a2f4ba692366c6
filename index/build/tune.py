"""Finds the fastest search parameters of a segment that reach a recall, by measuring."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from index.build.ground_truth import drop_own, recall
from index.segments.exact import exact_neighbours
from index.segments.vector_index import VectorIndex

Parameters = dict[str, float]

_QUERIES = 1_000
_K = 10
_DEEP_K, _DEEP_STEP = 100, 4  # a quarter of the queries shows how much wider a search for a larger k has to be
_FINALISTS, _LAPS = 4, 3  # the 4 fastest are timed again, 3 times
_SLOWER = 1.2  # times the fastest: more than the noise of a machine
_MARGIN = 3  # standard errors above the target: a version is measured with other queries than these


def tune(segment: VectorIndex, target_recall: float) -> float:
    """Set the segment's approximate search to the fastest parameters with that recall@10, and return what they reach.

    The deepest re-ranking allows the narrowest search, so its width is found first. From there, for each depth of exact
    ranking, depth is reduced while the target is met, and width raised when it is not. When nothing meets the target,
    the widest and deepest search is taken. Then `breadth`, the power by which the search widens with k, is raised
    until recall@100 meets the target too.
    """
    trial = _Trial(segment)
    stairs, widths = _depths(segment), _widths(segment)
    deepest = stairs[-1][0]
    narrowest = bisect.bisect_left(
        widths, target_recall, key=lambda width: trial.run({**deepest, **width}, margin=0, step=_DEEP_STEP)[0]
    )
    fastest = np.inf
    good: list[tuple[float, Parameters]] = []
    for depths in stairs:
        for parameters, seconds in _staircase(trial, depths, widths[max(0, narrowest - 1) :], target_recall, fastest):
            fastest = min(fastest, seconds)
            good.append((seconds, parameters))
    finalists = [parameters for _, parameters in sorted(good, key=lambda each: each[0])[:_FINALISTS]]
    best = min(finalists, key=trial.seconds, default={**deepest, **widths[-1]})
    reached = trial.run(best, margin=0)[0]
    for breadth in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        if trial.run({"breadth": breadth}, k=_DEEP_K, step=_DEEP_STEP)[0] >= target_recall:
            break
    return reached


def _staircase(
    trial: _Trial, depths: Sequence[Parameters], widths: Sequence[Parameters], target_recall: float, fastest: float
) -> Iterator[tuple[Parameters, float]]:
    """For each depth, deepest first, the narrowest search that reaches the target, and its seconds; until one that does
    not is slower than the `fastest` that did.
    """
    at = 0
    for depth in depths:
        while at < len(widths):
            parameters = {**depth, **widths[at]}
            reached, seconds = trial.run(parameters)
            if reached >= target_recall:
                fastest = min(fastest, seconds)
                yield parameters, seconds
                break
            if seconds > _SLOWER * fastest:
                return
            at += 1


class _Trial:
    """Rows of a segment as queries, and their exact neighbours."""

    def __init__(self, segment: VectorIndex) -> None:
        self._segment = segment
        self._own = np.unique(np.linspace(0, segment.ntotal - 1, min(_QUERIES, segment.ntotal)).astype(np.int64))
        self._queries = segment.vectors(self._own)
        depth = min(_DEEP_K, segment.ntotal - 1)
        scores, positions = exact_neighbours(self._queries, segment.live_blocks(), depth + 1)
        self._exact, _ = drop_own(scores, positions, self._own)

    def run(self, parameters: Parameters, k: int = _K, margin: float = _MARGIN, step: int = 1) -> tuple[float, float]:
        """The recall@k less `margin` standard errors, and the seconds taken, for every `step`-th query."""
        self._segment.tune(parameters)
        queries = self._queries[::step]
        started = time.perf_counter()
        scores, positions = self._segment.search(queries, k + 1)
        seconds = time.perf_counter() - started
        recalls = recall(drop_own(scores, positions, self._own[::step])[0], self._exact[::step], k)
        return float(recalls.mean() - margin * recalls.std() / np.sqrt(len(recalls))), seconds

    def seconds(self, parameters: Parameters) -> float:
        """The fewest of several runs."""
        return min(self.run(parameters)[1] for _ in range(_LAPS))


def _depths(segment: VectorIndex) -> list[list[Parameters]]:
    """How many candidates are re-ranked, as multiples of k: for each depth of exact ranking, the deepest first."""
    if "k_factor" in segment.parameters:  # by compressed vectors, and then by exact ones
        factors = _steps(2, 128, per_octave=2)[::-1]
        return [[{"k_factor": factor, "rescore": exact} for factor in factors] for exact in (1.5, 2.5, 4.0)]
    return [[{"rescore": factor} for factor in _steps(1, 128, per_octave=2)[::-1]]]


def _widths(segment: VectorIndex) -> list[Parameters]:
    """How far the search looks: inverted lists to probe, or the length of the graph's candidate list."""
    if "nprobe" in segment.parameters:
        counts = {round(step) for step in _steps(1, segment.nlist, per_octave=4)}
        return [{"nprobe": float(count)} for count in sorted(counts)]
    if "efSearch" in segment.parameters:
        return [{"efSearch": float(round(step))} for step in _steps(16, 1024, per_octave=4)]
    return [{}]


def _steps(first: float, last: float, *, per_octave: int) -> list[float]:
    """From `first` to `last`, with `per_octave` equal steps for each doubling."""
    count = math.ceil(per_octave * math.log2(last / first))
    return [min(last, round(first * 2 ** (step / per_octave), 2)) for step in range(count + 1)]
