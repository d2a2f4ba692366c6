"""Measures how well and how fast an index version answers."""

import time
from dataclasses import dataclass

import numpy as np

from index.arrays import Scores
from index.build.ground_truth import GroundTruth, found_scores, recall
from index.collection.records import ScoreDistribution
from index.queries import KINDS, QueryKind
from index.segments.segmented_index import SegmentedIndex

_FEWER = 100  # queries sent one by one, and for recall@100, which needs ten times as many neighbours of each
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


def measure(segments: SegmentedIndex, held_out: GroundTruth, *, step: int = 1) -> Measured:
    """Search every `step`-th held-out image, in a batch, and some of them one by one. Recall is that of whole pictures;
    times are with their tiles, if they have any.
    """
    images = held_out.of("image")
    few, images = images.every(max(1, len(images) // _FEWER)), images.every(step)
    segments.search_parts(few.vectors, 10)  # reads the mapped pages once
    started = time.perf_counter()
    found = found_scores(segments, images, 10)
    seconds = time.perf_counter() - started
    if any(segment.tiles is not None for segment in segments.parts):
        started = time.perf_counter()
        segments.search_parts(images.vectors, 10)
        seconds = time.perf_counter() - started
    found_deep = found_scores(segments, few, 100)
    singles = []
    for query in few.vectors[::step]:
        began = time.perf_counter()
        segments.search_parts(query[np.newaxis], 10)
        singles.append((time.perf_counter() - began) * 1e3)
    recalls = {
        "1": recall(found, images.scores, 1),
        "10": recall(found, images.scores, 10),
        "100": recall(found_deep, few.scores, 100),
    }
    return Measured(
        queries=len(found),
        recall={k: round(float(value.mean()), 7) for k, value in recalls.items()},  # undoes the rounding of sums alone
        latency_ms={f"p{p}": round(float(np.percentile(singles, p)), 3) for p in (50, 99)},
        queries_per_second=round(len(found) / seconds, 1),
    )


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
