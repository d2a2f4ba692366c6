"""Measures the recall of each kind of query, how much wider its searches must be than those for an image, and the
speed of an index version.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.arrays import Positions, Scores, Vectors
from index.builder.ground_truth import RECALL_KS, GroundTruth
from index.builder.recall import MARGIN, drop_own, lower_bound, recall
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import KindRecord, ScoreDistribution, SegmentRecord
from index.errors import FactoryError
from index.queries import KINDS, QueryKind
from index.segments.exact import exact_neighbours
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex

_WIDTHS = [2 ** (step / 4) for step in range(25)]  # 1 … 64
_IMAGE_WIDTHS = _WIDTHS[:5]  # 1 … 2: an index that needs more for images is not good enough
_SAME_WIDTH = 1.01  # a manifest's widths are rounded
_MIN_MARGIN = 2  # below it a width is tuned again
_K, _LAPS = 10, 3
_KS = (1, _K)  # measured by the same searches
_DEEP_QUERIES = 100  # for recall@100, which needs ten times as many neighbours of each
_NEW_QUERIES = 32
_SINGLES = 50  # queries that are timed one by one
_RANDOM_ROWS = 4_000
_RANDOM_QUERIES = (250, 1_000)  # of the other kinds, of images
_RANDOM_TEXTS = 200  # the last ones: those before them are the collection's own, and fit some of its images
_LEVELS = [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 0.99999, 1.0]


def measure_kinds(
    segments: SegmentedIndex,
    held_out: GroundTruth,
    settings: IndexSettings,
    before: Mapping[QueryKind, KindRecord],
) -> tuple[dict[QueryKind, KindRecord], GroundTruth]:
    """Recall@10 and the narrowest search that reaches the target, for each kind with queries; and the measured queries.

    The index is tuned for images: searches for them are wider only if the rows it was tuned with were easier than the
    held-out ones. A width of the version `before`, or the width of images, stays while recall is surely enough, or if
    it is enough and no width makes it surely so. If none is enough, the kind has the widest one, and the version is
    below its target.
    """
    records: dict[QueryKind, KindRecord] = {}
    for kind in KINDS:
        if kind in held_out.kinds:
            width = before[kind].width if kind in before else 1.0
            held_out = held_out.measured(segments, kind, _KS, width=width)
            held_out, width = _kept_or_wider(segments, held_out, kind, settings.target_of(kind), width)
            recalls = held_out.recalls_of(kind, _K)
            records[kind] = KindRecord(queries=len(recalls), recall=_mean(recalls), width=round(width, 4))
    return records, held_out


def _kept_or_wider(
    segments: SegmentedIndex, measured: GroundTruth, kind: QueryKind, target: float, width: float
) -> tuple[GroundTruth, float]:
    """The queries, which were measured with this width, if that is surely enough; else measured with the narrowest that
    is, or the widest, unless the recall is good enough and no width makes it surely so.
    """
    wider = [each for each in (_IMAGE_WIDTHS if kind == "image" else _WIDTHS) if each > _SAME_WIDTH * width]
    recalls = measured.recalls_of(kind, _K)
    if not wider or lower_bound(recalls, _MIN_MARGIN) >= target:
        return measured, width
    unknown = measured.unmeasured(measured.kinds == kind)
    tried = cache(lambda width: unknown.measured(segments, kind, _KS, width=width))

    def reached(width: float) -> float:
        return lower_bound(tried(width).recalls_of(kind, _K))

    # Mostly the next one is enough.
    index = 0 if reached(wider[0]) >= target else bisect.bisect_left(wider, target, 1, key=reached)
    found = wider[min(index, len(wider) - 1)]
    sure = lower_bound(tried(found).recalls_of(kind, _K), _MIN_MARGIN) >= target
    return (tried(found), found) if sure or recalls.mean() < target else (measured, width)


def measure_recall(
    segments: SegmentedIndex, held_out: GroundTruth, *, width: float = 1.0
) -> tuple[dict[str, float], GroundTruth]:
    """Recall@k of the held-out images by k, measured where it is not known, by searches `width` times as wide as tuned;
    and the measured queries. Tiles are not searched.
    """
    step = _step(held_out)
    held_out = held_out.measured(segments, "image", _KS, width=width)
    held_out = held_out.measured(segments, "image", (100,), width=width, step=step)
    recalls = {k: held_out.recalls_of("image", k)[:: step if k == 100 else 1] for k in RECALL_KS}
    return {str(k): _mean(each) for k, each in recalls.items()}, held_out


def _mean(recalls: npt.NDArray[np.float64]) -> float:
    return round(float(recalls.mean()), 7)  # coarse enough to hide rounding errors of the sums


def _step(held_out: GroundTruth) -> int:
    return max(1, int(np.count_nonzero(held_out.kinds == "image")) // _DEEP_QUERIES)


def measure_speed(segments: SegmentedIndex, held_out: GroundTruth, *, width: float = 1.0) -> dict[str, Any]:
    """Facts of a manifest: the times of some of the held-out images, in a batch and one by one, in tiles as well if
    there are any, and the cost of a query.
    """
    few = held_out.of("image").rows(slice(None, None, _step(held_out)))
    timed = few.vectors[:: _DEEP_QUERIES // _SINGLES]
    cost = _cost(segments, timed)  # reads the mapped pages as well
    marks = [time.perf_counter()]
    for queries in (few.vectors, *(query[np.newaxis] for query in timed)):
        segments.search_parts(queries, _K, width=width)
        marks.append(time.perf_counter())
    batch, *singles = np.diff(marks)
    return {
        "latency_ms": {f"p{p}": round(float(np.percentile(singles, p)) * 1e3, 3) for p in (50, 99)},
        "queries_per_second": round(len(few) / float(batch), 1),
        "cost": round(cost, 3),
    }


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
    segments.search_parts(queries, _K)
    return time.thread_time() - started


def check_new_rows(
    segments: SegmentedIndex, new: Positions, gained: Mapping[int, int], width: float, target: float
) -> None:
    """FactoryError if approximate indexes that were trained for other rows miss the `new` ones that they `gained`,
    those from a position on, by the segment's number. Only these are searched exactly.

    The held-out queries are older, and may be of other content than the index has ever been trained for.
    """
    if not len(new):
        return
    chosen = new[np.unique(np.linspace(0, len(new) - 1, min(_NEW_QUERIES, len(new))).astype(np.int64))]
    queries = segments.vectors(chosen)
    found = drop_own(segments.search(queries, _K + 1, width=width), chosen)
    blocks = chain.from_iterable(segments.live_blocks_of(number, first=first) for number, first in gained.items())
    exact = drop_own(exact_neighbours(queries, blocks, _K + 1), chosen)
    recalls = recall(found.scores, Hits.joined([found, exact]).distinct(_K).scores, _K)
    if (reached := lower_bound(recalls, -MARGIN)) < target:
        raise FactoryError(
            f"the new rows are unlike those that the index was trained for: recall@10 {reached:.6g}, expected "
            f"{target:g} or more"
        )


def score_distribution(segments: SegmentedIndex, held_out: GroundTruth) -> ScoreDistribution:
    """Scores of held-out queries of each kind with random images, and of images with their nearest neighbour."""
    step = max(1, segments.live_count // _RANDOM_ROWS)
    positions = segments.live_positions(np.arange(step // 2, segments.live_count, step))
    vectors = segments.vectors(positions)
    random: dict[QueryKind, list[float]] = {}
    for kind in KINDS:
        queries = held_out.of(kind)
        queries = queries.rows(slice(-_RANDOM_TEXTS, None)) if kind == "text" else queries
        queries = queries.rows(slice(None, None, max(1, len(queries) // _RANDOM_QUERIES[kind == "image"])))
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
