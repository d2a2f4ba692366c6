"""Measures how well each kind of query is answered, and how much wider than for an image its searches have to be."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from index.build.ground_truth import GroundTruth, found_scores, recall
from index.build.measure import Measured
from index.collection.records import IndexSettings, KindRecord
from index.queries import KINDS, QueryKind
from index.segments.segmented_index import SegmentedIndex

_WIDTHS = [2 ** (step / 4) for step in range(25)]  # 1 … 64
_MARGIN = 3  # standard errors above the target
FEWER = 250
"""Queries of each kind that measure an update, unless they show that a kind needs a wider search now."""


def measure_kinds(
    segments: SegmentedIndex,
    held_out: GroundTruth,
    settings: IndexSettings,
    images: Measured,
    before: Mapping[QueryKind, KindRecord],
) -> dict[QueryKind, KindRecord]:
    """Recall@10 of each kind that there are queries of, and the narrowest search that reaches its target.

    The index is tuned for `images`, which are measured already. A width that was found `before` stays while it is
    enough. A kind that no width is enough for has the widest, and the version is below its target.
    """
    found: dict[QueryKind, KindRecord] = {
        "image": KindRecord(queries=images.queries, recall=images.recall["10"], width=1.0)
    }
    for kind in KINDS:
        queries = held_out.of(kind)
        if kind != "image" and len(queries):
            known = before.get(kind)
            few = queries.every(max(1, len(queries) // FEWER))
            record = known and _record(_recalls(segments, few, known.width), known.width)
            if record is None or record.recall < settings.target_of(kind):
                record = _tuned(segments, queries, settings.target_of(kind))
            found[kind] = record
    return found


def _tuned(segments: SegmentedIndex, queries: GroundTruth, target: float) -> KindRecord:
    """The narrowest of the widths that reaches the target with certainty, else the widest."""
    recalls = cache(partial(_recalls, segments, queries))
    at = bisect.bisect_left(_WIDTHS, target, key=lambda width: _lower_bound(recalls(width)))
    width = _WIDTHS[min(at, len(_WIDTHS) - 1)]
    return _record(recalls(width), width)


def _record(recalls: npt.NDArray[np.float64], width: float) -> KindRecord:
    return KindRecord(queries=len(recalls), recall=round(float(recalls.mean()), 7), width=round(width, 4))


def _recalls(segments: SegmentedIndex, queries: GroundTruth, width: float) -> npt.NDArray[np.float64]:
    return recall(found_scores(segments, queries, 10, width), queries.scores, 10)


def _lower_bound(recalls: npt.NDArray[np.float64]) -> float:
    return float(recalls.mean() - _MARGIN * recalls.std() / math.sqrt(len(recalls)))
