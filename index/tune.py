"""Finds the fastest search parameters of a segment that reach a recall, by measuring."""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping

import numpy as np

from index.exact import exact_neighbours
from index.ground_truth import drop_own, recall
from index.segment import Segment

_QUERIES = 1_000
_K = 10
_DEEP_K, _DEEP_STEP = 100, 4  # a quarter of the queries tells how much wider a search for more has to be
_MARGIN = 3  # standard errors above the target: the queries that judge a version are others than these


def tune(segment: Segment, target_recall: float) -> float:
    """Set the segment's approximate search to the fastest parameters with that recall@10, and return what they reach.

    How wide it has to be at the least shows where most candidates are ranked. From there on it is widened for each
    depth of ranking until the target is reached. When nothing reaches it: the widest and deepest. Then `breadth`,
    the power by which it widens with k, is raised until recall@100 is there too.
    """
    trial = _Trial(segment)
    depths, widths = _depths(segment), _widths(segment)
    narrowest = bisect.bisect_left(
        widths, target_recall, key=lambda width: trial.run({**depths[-1], **width}, margin=0, step=_DEEP_STEP)[0]
    )
    fastest, parameters = np.inf, {**depths[-1], **widths[-1]}
    for depth in depths:
        last = 0.0
        for width in widths[max(0, narrowest - 1) :]:
            reached, seconds = trial.run({**depth, **width})
            if reached >= target_recall:
                seconds = min(seconds, trial.run({**depth, **width})[1])
                if seconds < fastest:
                    fastest, parameters = seconds, {**depth, **width}
            # Wider costs more: no use once it is there, gains nothing, or is slower than what was found.
            if reached >= target_recall or seconds > fastest or reached - last < 1e-4:
                break
            last = reached
    reached = trial.run(parameters, margin=0)[0]
    for breadth in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        if trial.run({"breadth": breadth}, k=_DEEP_K, step=_DEEP_STEP)[0] >= target_recall:
            break
    return reached


class _Trial:
    """Rows of a segment as queries, and their exact neighbours."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._own = np.unique(np.linspace(0, segment.ntotal - 1, min(_QUERIES, segment.ntotal)).astype(np.int64))
        self._queries = segment.vectors(self._own)
        depth = min(_DEEP_K, segment.ntotal - 1)
        scores, positions = exact_neighbours(self._queries, segment.live_blocks(), depth + 1)
        self._exact, _ = drop_own(scores, positions, self._own)

    def run(
        self, parameters: Mapping[str, float], *, k: int = _K, margin: float = _MARGIN, step: int = 1
    ) -> tuple[float, float]:
        """The recall@k less `margin` standard errors, and seconds; of every so many of the queries."""
        self._segment.tune(parameters)
        queries = self._queries[::step]
        started = time.perf_counter()
        scores, positions = self._segment.search(queries, k + 1)
        seconds = time.perf_counter() - started
        recalls = recall(drop_own(scores, positions, self._own[::step])[0], self._exact[::step], k)
        return float(recalls.mean() - margin * recalls.std() / np.sqrt(len(recalls))), seconds


def _depths(segment: Segment) -> list[dict[str, float]]:
    """How many candidates are ranked anew, as multiples of k."""
    if "k_factor" in segment.parameters:  # by compressed vectors, and then by exact ones
        return [{"k_factor": float(2**step), "rescore": exact} for exact in (1.5, 2.5, 4.0) for step in range(1, 8)]
    return [{"rescore": round(2 ** (step / 2), 1)} for step in range(15)]


def _widths(segment: Segment) -> list[dict[str, float]]:
    """How far the search looks: inverted lists to probe, or the length of the graph's candidate list."""
    if "nprobe" in segment.parameters:
        steps = range(2 * segment.nlist.bit_length() + 1)
        return [{"nprobe": float(n)} for n in sorted({min(segment.nlist, round(2 ** (step / 2))) for step in steps})]
    if "efSearch" in segment.parameters:
        return [{"efSearch": float(round(2 ** (step / 2)))} for step in range(8, 21)]
    return [{}]
