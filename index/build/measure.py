"""Measures the recall and the speed of an index version."""

import time
from dataclasses import dataclass

import numpy as np

from index.arrays import Scores
from index.build.ground_truth import RECALL_KS, GroundTruth
from index.collection.records import ScoreDistribution
from index.queries import KINDS, QueryKind
from index.segments.segmented_index import SegmentedIndex

_DEEP_QUERIES = 100  # for recall@100, which needs ten times as many neighbours of each
_SINGLES, _BATCH = 50, 250  # queries that are timed one by one, and in a batch
_RANDOM_ROWS = 4_000
_RANDOM_QUERIES = (250, 1_000)  # of the other kinds, of images
_RANDOM_TEXTS = 200  # the last ones: those before them are the collection's own, and fit some of its images
_LEVELS = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]


@dataclass(frozen=True, kw_only=True)
class Measurements:
    queries: int
    recall: dict[str, float]
    latency_ms: dict[str, float]
    queries_per_second: float


def measure(segments: SegmentedIndex, held_out: GroundTruth) -> tuple[Measurements, GroundTruth]:
    """Recall of the held-out images, measured where it is not known, and the times of some of them, in a batch and one
    by one; and the measured queries. Recall is that of whole pictures, while times include tiles, if there are any.
    """
    step = max(1, len(held_out.of("image")) // _DEEP_QUERIES)
    held_out = held_out.measured(segments, "image", (1, 10)).measured(segments, "image", (100,), step=step)
    images = held_out.of("image")
    few, batch = images.every_nth(step), images.every_nth(max(1, len(images) // _BATCH))
    segments.search_parts(few.vectors, 10)  # reads the mapped pages once
    started = time.perf_counter()
    segments.search_parts(batch.vectors, 10)
    seconds = time.perf_counter() - started
    singles = []
    for query in few.vectors[:: _DEEP_QUERIES // _SINGLES]:
        began = time.perf_counter()
        segments.search_parts(query[np.newaxis], 10)
        singles.append((time.perf_counter() - began) * 1e3)
    by_k = {1: images, 10: images, 100: few}
    measured = Measurements(
        queries=len(images),
        # Coarse enough to hide rounding errors of the sums.
        recall={str(k): round(float(by_k[k].recalls[:, column].mean()), 7) for column, k in enumerate(RECALL_KS)},
        latency_ms={f"p{p}": round(float(np.percentile(singles, p)), 3) for p in (50, 99)},
        queries_per_second=round(len(batch) / seconds, 1),
    )
    return measured, held_out


def score_distribution(segments: SegmentedIndex, held_out: GroundTruth) -> ScoreDistribution:
    """Scores of held-out queries of each kind with random images, and of images with their nearest neighbour."""
    step = max(1, segments.live_count // _RANDOM_ROWS)
    positions = segments.live_positions(np.arange(step // 2, segments.live_count, step))
    vectors = segments.vectors(positions)
    random: dict[QueryKind, list[float]] = {}
    for kind in KINDS:
        queries = held_out.of(kind).last(_RANDOM_TEXTS) if kind == "text" else held_out.of(kind)
        queries = queries.every_nth(max(1, len(queries) // _RANDOM_QUERIES[kind == "image"]))
        # Without an image's score with itself, and a mix's with its parents.
        own = queries.parent_positions(segments)
        others = (own[:, :, np.newaxis] != positions).all(axis=1)
        random[kind] = _quantiles((queries.vectors @ vectors.T)[others])
    nearest = held_out.of("image").scores[:, 0]
    nearest_scores = _quantiles(nearest[np.isfinite(nearest)])
    return ScoreDistribution(
        levels=_LEVELS, random={kind: scores for kind, scores in random.items() if scores}, nearest=nearest_scores
    )


def _quantiles(scores: Scores) -> list[float]:
    return [round(float(score), 4) for score in np.quantile(scores, _LEVELS)] if len(scores) else []
