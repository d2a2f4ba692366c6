"""Measures how well and how fast an index version answers."""

import time
from dataclasses import dataclass

import numpy as np

from index.arrays import Scores
from index.build.ground_truth import GroundTruth, drop_own, recall
from index.collection.records import ScoreDistribution
from index.segments.segmented_index import SegmentedIndex

_FEWER = 100  # queries sent one by one, and for recall@100, which needs ten times as many neighbours of each
_PAIRS_ROWS = 4_000
_LEVELS = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]


@dataclass(frozen=True, kw_only=True)
class Measured:
    queries: int
    recall: dict[str, float]
    latency_ms: dict[str, float]
    queries_per_second: float


def measure(segments: SegmentedIndex, held_out: GroundTruth, *, step: int = 1) -> Measured:
    """Search every `step`-th held-out query, in a batch, and some of them one by one."""
    every = slice(None, None, step)
    few = slice(None, None, max(1, len(held_out.ids) // _FEWER))
    segments.search(held_out.vectors[few], 10)  # reads the mapped pages once
    started = time.perf_counter()
    found = _found(segments, held_out, every, 10)
    seconds = time.perf_counter() - started
    found_deep = _found(segments, held_out, few, 100)
    singles = []
    for query in held_out.vectors[few][::step]:
        began = time.perf_counter()
        segments.search(query[np.newaxis], 10)
        singles.append((time.perf_counter() - began) * 1e3)
    recalls = {
        "1": recall(found, held_out.scores[every], 1),
        "10": recall(found, held_out.scores[every], 10),
        "100": recall(found_deep, held_out.scores[few], 100),
    }
    return Measured(
        queries=len(found),
        recall={k: round(float(value.mean()), 7) for k, value in recalls.items()},  # undoes the rounding of sums alone
        latency_ms={f"p{p}": round(float(np.percentile(singles, p)), 3) for p in (50, 99)},
        queries_per_second=round(len(found) / seconds, 1),
    )


def _found(segments: SegmentedIndex, held_out: GroundTruth, rows: slice, k: int) -> Scores:
    """The index's results for some of the queries, without the queries themselves: scores `(n, k)`."""
    scores, positions = segments.search(held_out.vectors[rows], k + 1)
    return drop_own(scores, positions, segments.positions(held_out.ids[rows]))[0]


def score_distribution(segments: SegmentedIndex, held_out: GroundTruth) -> ScoreDistribution:
    """Scores of held-out images with other images at random, and with the nearest other one."""
    step = max(1, segments.live_count // _PAIRS_ROWS)
    positions = segments.live_positions(np.arange(step // 2, segments.live_count, step))
    scores = held_out.vectors @ segments.vectors(positions).T
    # An image with itself is no pair.
    pairs = scores[held_out.ids.to_numpy(zero_copy_only=False)[:, np.newaxis] != segments.ids(positions)]
    nearest_scores = held_out.scores[:, 0][np.isfinite(held_out.scores[:, 0])]
    return ScoreDistribution(levels=_LEVELS, random=_quantiles(pairs), nearest=_quantiles(nearest_scores))


def _quantiles(scores: Scores) -> list[float]:
    return [round(float(score), 4) for score in np.quantile(scores, _LEVELS)] if len(scores) else []
