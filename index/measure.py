"""Measures how well and how fast an index version answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.exact import Scores
from index.ground_truth import HeldOut, recall, search_held_out
from index.nearest import nearest
from index.records import ScoreDistribution
from index.segment import Segment

_FEWER = 100  # queries asked one by one, and for recall@100, which looks at ten times as many neighbours of each
_PAIRS_ROWS = 4_000
_LEVELS = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Recall by k, milliseconds of single queries by percentile, queries per second in a batch; see VersionManifest."""

    queries: int
    recall: dict[str, float]
    latency_ms: dict[str, float]
    queries_per_second: float


def measure(segments: Sequence[Segment], held_out: HeldOut, *, step: int = 1) -> Measured:
    """Ask every so many of the held-out queries, in a batch and some of them one by one."""
    queries = held_out.vectors[::step]
    few = slice(None, None, max(1, len(held_out.ids) // _FEWER))
    nearest(segments, held_out.vectors[few], 10)  # what is mapped has to be read once
    started = time.perf_counter()
    found = search_held_out(segments, held_out.ids[::step], queries, 10)
    seconds = time.perf_counter() - started
    found_deep = search_held_out(segments, held_out.ids[few], held_out.vectors[few], 100)
    singles = []
    for query in held_out.vectors[few]:
        began = time.perf_counter()
        nearest(segments, query[np.newaxis], 10)
        singles.append((time.perf_counter() - began) * 1e3)
    recalls = {
        "1": recall(found, held_out.scores[::step], 1),
        "10": recall(found, held_out.scores[::step], 10),
        "100": recall(found_deep, held_out.scores[few], 100),
    }
    return Measured(
        queries=len(queries),
        recall={k: float(value.mean()) for k, value in recalls.items()},
        latency_ms={f"p{p}": round(float(np.percentile(singles, p)), 3) for p in (50, 99)},
        queries_per_second=round(len(queries) / seconds, 1),
    )


def score_distribution(segments: Sequence[Segment], held_out: HeldOut) -> ScoreDistribution:
    """Scores of held-out images with other images at random, and with the nearest other one."""
    total = sum(segment.live_count for segment in segments)
    step = max(1, total // _PAIRS_ROWS)
    pairs = []
    for segment in segments:
        positions = segment.live_positions()[step // 2 :: step]
        scores = held_out.vectors @ segment.vectors(positions).T
        # An image with itself is no pair.
        own = segment.ids(positions).to_numpy(zero_copy_only=False)
        pairs.append(scores[held_out.ids.to_numpy(zero_copy_only=False)[:, np.newaxis] != own])
    nearest_scores = held_out.scores[:, 0][np.isfinite(held_out.scores[:, 0])]
    return ScoreDistribution(
        levels=_LEVELS,
        random=_quantiles(np.concatenate(pairs)),
        nearest=_quantiles(nearest_scores),
    )


def _quantiles(scores: Scores) -> list[float]:
    return [round(float(score), 4) for score in np.quantile(scores, _LEVELS)] if len(scores) else []
