"""Measures how well and how fast an index version answers."""

import time
from dataclasses import dataclass

import numpy as np

from index.arrays import Scores
from index.build.ground_truth import DEPTHS, GroundTruth
from index.collection.records import ScoreDistribution
from index.queries import KINDS, QueryKind
from index.segments.segmented_index import SegmentedIndex

_FEWER = 100  # queries for recall@100, which needs ten times as many neighbours of each
_SINGLES, _BATCH = 50, 250  # queries of which the times are measured
_PAIRS_ROWS = 4_000
_PAIRS_QUERIES = (250, 1_000)  # of the other kinds, of images
_BACKGROUND = 200  # of the texts, the last, which are not the collection's own: those fit some of its images
_LEVELS = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]


@dataclass(frozen=True, kw_only=True)
class Measured:
    queries: int
    recall: dict[str, float]
    latency_ms: dict[str, float]
    queries_per_second: float


def measure(segments: SegmentedIndex, held_out: GroundTruth) -> tuple[Measured, GroundTruth]:
    """Recall of the held-out images, as far as it is not known, and the queries with it; and how fast some of them are
    answered, in a batch and one by one. Recall is that of whole pictures; times are with their tiles, if they have any.
    """
    step = max(1, len(held_out.of("image")) // _FEWER)
    held_out = held_out.measured(segments, "image", (1, 10)).measured(segments, "image", (100,), step=step)
    images = held_out.of("image")
    few, batch = images.every(step), images.every(max(1, len(images) // _BATCH))
    segments.search_parts(few.vectors, 10)  # reads the mapped pages once
    started = time.perf_counter()
    segments.search_parts(batch.vectors, 10)
    seconds = time.perf_counter() - started
    singles = []
    for query in few.vectors[:: _FEWER // _SINGLES]:
        began = time.perf_counter()
        segments.search_parts(query[np.newaxis], 10)
        singles.append((time.perf_counter() - began) * 1e3)
    queries_by_k = {1: images, 10: images, 100: few}
    measured = Measured(
        queries=len(images),
        # Rounding undoes that of sums alone.
        recall={str(k): round(float(queries_by_k[k].found[:, column].mean()), 7) for column, k in enumerate(DEPTHS)},
        latency_ms={f"p{p}": round(float(np.percentile(singles, p)), 3) for p in (50, 99)},
        queries_per_second=round(len(batch) / seconds, 1),
    )
    return measured, held_out


def score_distribution(segments: SegmentedIndex, held_out: GroundTruth) -> ScoreDistribution:
    """Scores of held-out queries of each kind with images at random, and of images with the nearest other one."""
    step = max(1, segments.live_count // _PAIRS_ROWS)
    positions = segments.live_positions(np.arange(step // 2, segments.live_count, step))
    vectors = segments.vectors(positions)
    random: dict[QueryKind, list[float]] = {}
    for kind in KINDS:
        queries = held_out.of(kind).last(_BACKGROUND) if kind == "text" else held_out.of(kind)
        queries = queries.every(max(1, len(queries) // _PAIRS_QUERIES[kind == "image"]))
        # An image with itself is no pair, nor is a mix with what it was made of.
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
