"""Finds the fastest search parameters of a segment that reach a recall, by measuring."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np

from index.ground_truth import drop_own, exact_neighbours, recall
from index.segment import TUNED_K, Segment

_QUERIES = 1_000
_DEEP_K, _DEEP_STEP = 100, 4  # a quarter of the queries tells how much wider a search for more has to be
_MARGIN = 3  # standard errors above the target: the queries that judge a version are others than these


def tune(segment: Segment, target_recall: float) -> dict[str, float]:
    """Set the segment's approximate search to the fastest parameters with that recall@10, and return them.

    For each depth of ranking the search is widened until it reaches the target. When none does: those with the
    best recall. Then `breadth`, the power by which it widens with k, is raised until recall@100 is there too.
    """
    trial = _Trial(segment)
    fastest: tuple[float, dict[str, float]] | None = None
    best: tuple[float, dict[str, float]] = (-1.0, segment.parameters)
    widths, narrowest = list(_widths(segment)), 0
    for depth in _depths(segment):
        last = -1.0
        for width in widths[narrowest:]:
            segment.tune({**depth, **width})
            reached, seconds = trial.run(TUNED_K)
            best = max(best, (reached, segment.parameters), key=lambda item: item[0])
            if reached >= target_recall:
                seconds = min(seconds, trial.run(TUNED_K)[1])
                fastest = min(fastest or (np.inf, {}), (seconds, segment.parameters), key=lambda item: item[0])
            # Wider costs more: no use once it is there, gains nothing, or is slower than what was found.
            if reached >= target_recall or (fastest and seconds > fastest[0]) or (last > 0.9 and reached - last < 1e-4):
                break
            last = reached
        if not fastest:
            # What is too narrow for few candidates is so for many.
            narrowest = max(0, widths.index(width) - 2)
        elif reached < target_recall:
            break  # deeper is slower from here on
    segment.tune(fastest[1] if fastest else best[1])
    for breadth in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        segment.tune({"breadth": breadth})
        if trial.run(_DEEP_K, step=_DEEP_STEP)[0] >= target_recall:
            break
    return segment.parameters


class _Trial:
    """Rows of a segment as queries, and their exact neighbours."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._own = np.unique(np.linspace(0, segment.ntotal - 1, min(_QUERIES, segment.ntotal)).astype(np.int64))
        self._queries = segment.vectors(self._own)
        depth = min(_DEEP_K, segment.ntotal - 1)
        scores, positions = exact_neighbours(self._queries, segment.live_blocks(), depth + 1)
        self._exact, _ = drop_own(scores, positions, self._own)

    def run(self, k: int, step: int = 1) -> tuple[float, float]:
        """The recall@k that may be counted on, and seconds; of every so many of the queries."""
        queries = self._queries[::step]
        started = time.perf_counter()
        scores, positions = self._segment.search(queries, k + 1)
        seconds = time.perf_counter() - started
        recalls = recall(drop_own(scores, positions, self._own[::step])[0], self._exact[::step], k)
        return float(recalls.mean() - _MARGIN * recalls.std() / np.sqrt(len(recalls))), seconds


def _depths(segment: Segment) -> Iterator[dict[str, float]]:
    """How many candidates are ranked anew, as multiples of k."""
    if "k_factor" in segment.parameters:  # by compressed vectors, and then by exact ones
        yield from ({"k_factor": factor, "rescore": 2.0} for factor in (2.0, 4.0, 8.0, 16.0, 32.0, 64.0))
    else:
        yield from ({"rescore": factor} for factor in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0))


def _widths(segment: Segment) -> Iterator[dict[str, float]]:
    """How far the search looks: inverted lists to probe, or the length of the graph's candidate list."""
    parameters = segment.parameters
    for step in itertools.count(2):
        width = round(2 ** (step / 2))
        if "nprobe" in parameters and width <= segment.nlist:
            yield {"nprobe": float(width)}
        elif "efSearch" in parameters and 8 * width <= 1024:
            yield {"efSearch": float(8 * width)}
        else:
            break
    if not {"nprobe", "efSearch"} & parameters.keys():
        yield {}
