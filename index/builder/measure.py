"""Measures the recall and the speed of an index version."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import faiss
import numpy as np

from index.arrays import Positions, Scores, Vectors
from index.builder.ground_truth import GroundTruth
from index.builder.queries_file import RECALL_KS
from index.builder.recall import drop_own, recall
from index.collection.records import ScoreDistribution, SegmentRecord
from index.queries import KINDS, QueryKind
from index.segments.exact import exact_neighbours
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex

_DEEP_QUERIES = 100  # for recall@100, which needs ten times as many neighbours of each
_K, _LAPS = 10, 3
_NEW_QUERIES = 32
_SINGLES = 50  # queries that are timed one by one
_RANDOM_ROWS = 4_000
_RANDOM_QUERIES = (250, 1_000)  # of the other kinds, of images
_RANDOM_TEXTS = 200  # the last ones: those before them are the collection's own, and fit some of its images
_LEVELS = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Facts of a version's manifest."""

    latency_ms: dict[str, float]
    queries_per_second: float
    cost: float


def measure_recall(
    segments: SegmentedIndex, held_out: GroundTruth, *, width: float = 1.0
) -> tuple[dict[str, float], GroundTruth]:
    """Recall@k of the held-out images by k, measured where it is not known, by searches `width` times as wide as tuned;
    and the measured queries. Tiles are not searched.
    """
    step = _step(held_out)
    held_out = held_out.measured(segments, "image", (1, 10), width=width)
    held_out = held_out.measured(segments, "image", (100,), width=width, step=step)
    recalls = {k: held_out.recalls_of("image", k)[:: step if k == 100 else 1] for k in RECALL_KS}
    # Coarse enough to hide rounding errors of the sums.
    return {str(k): round(float(each.mean()), 7) for k, each in recalls.items()}, held_out


def _step(held_out: GroundTruth) -> int:
    return max(1, int(np.count_nonzero(held_out.kinds == "image")) // _DEEP_QUERIES)


def measure_speed(segments: SegmentedIndex, held_out: GroundTruth, *, width: float = 1.0) -> Speed:
    """The times of some of the held-out images, in a batch and one by one, in tiles as well if there are any."""
    few = held_out.of("image").every_nth(_step(held_out))
    timed = few.vectors[:: _DEEP_QUERIES // _SINGLES]
    cost = _cost(segments, timed)  # reads the mapped pages as well
    started = time.perf_counter()
    segments.search_parts(few.vectors, 10, width=width)
    seconds = time.perf_counter() - started
    singles = []
    for query in timed:
        began = time.perf_counter()
        segments.search_parts(query[np.newaxis], 10, width=width)
        singles.append((time.perf_counter() - began) * 1e3)
    return Speed(
        latency_ms={f"p{p}": round(float(np.percentile(singles, p)), 3) for p in (50, 99)},
        queries_per_second=round(len(few) / seconds, 1),
        cost=round(cost, 3),
    )


def cost_alike(before: Sequence[SegmentRecord], now: Sequence[SegmentRecord]) -> bool:
    """Whether a query costs about the same in both: the segments have the same indexes, and at most four times as many
    rows.
    """
    one, other = (
        [(each.factory, each.parameters, (each.live.bit_length() + 1) // 2) for each in segments]
        for segments in (before, now)
    )
    return one == other


def _cost(segments: SegmentedIndex, queries: Vectors) -> float:
    """CPU time of searching all segments ÷ that of the largest alone, so that the machine's speed plays no part."""
    largest = SegmentedIndex([max(segments.parts, key=len)])
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # waiting threads use CPU time too
    try:
        laps = [[_cpu_seconds(each, queries) for each in (segments, largest)] for _ in range(_LAPS)]
    finally:
        faiss.omp_set_num_threads(threads)
    whole, alone = np.min(laps, axis=0)
    return float(whole / alone) if len(segments.parts) > 1 and alone > 0 else 1.0


def _cpu_seconds(segments: SegmentedIndex, queries: Vectors) -> float:
    started = time.thread_time()
    segments.search_parts(queries, 10)
    return time.thread_time() - started


def recall_of_new(segments: SegmentedIndex, new: Positions, gained: Mapping[int, int], width: float) -> float:
    """Recall@10 of searches with rows that are `new`, plus three standard errors, as far as the rows that segments have
    `gained` are missed: only those from a position on, by the segment's number, are searched exactly.

    The held-out queries are older, and may be of other content than the index has never been trained for.
    """
    chosen = new[np.unique(np.linspace(0, len(new) - 1, min(_NEW_QUERIES, len(new))).astype(np.int64))]
    queries = segments.vectors(chosen)
    found = drop_own(segments.search(queries, _K + 1, width=width), chosen)
    blocks = chain.from_iterable(segments.live_blocks_of(number, first=first) for number, first in gained.items())
    exact = drop_own(exact_neighbours(queries, blocks, _K + 1), chosen)
    recalls = recall(found.scores, Hits.joined([found, exact]).distinct(_K).scores, _K)
    return float(recalls.mean() + 3 * recalls.std() / np.sqrt(len(recalls)))


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
