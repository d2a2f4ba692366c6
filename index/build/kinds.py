"""Measures the recall of each kind of query, and how much wider its searches must be than those for an image."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from index.build.ground_truth import RECALL_KS, GroundTruth
from index.build.measure import Measurements
from index.collection.records import IndexSettings, KindRecord
from index.queries import KINDS, QueryKind
from index.segments.segmented_index import SegmentedIndex

_WIDTHS = [2 ** (step / 4) for step in range(25)]  # 1 … 64
_IMAGE_WIDTHS = _WIDTHS[:5]  # 1 … 2: an index that needs more for images is not good enough
_K = 10
_MARGIN = 3  # standard errors above the target


def measure_kinds(
    segments: SegmentedIndex,
    held_out: GroundTruth,
    settings: IndexSettings,
    images: Measurements,
    before: Mapping[QueryKind, KindRecord],
) -> tuple[dict[QueryKind, KindRecord], GroundTruth]:
    """Recall@10 and the narrowest search that reaches the target, for each kind with queries; and the measured queries.

    The index is tuned for images, measured as `images`: searches for them are wider only if the rows it was tuned with
    were easier than the held-out ones. A width of the version `before` stays while it is enough. If no width is enough,
    the kind has the widest one, and the version is below its target.
    """
    reached, width = images.recall["10"], before["image"].width if before else 1.0
    if _recalls(held_out, "image").mean() < settings.target_recall:
        held_out, width = _tune(segments, held_out, "image", settings.target_recall, _IMAGE_WIDTHS)
        reached = round(float(_recalls(held_out, "image").mean()), 7)
    records: dict[QueryKind, KindRecord] = {
        "image": KindRecord(queries=images.queries, recall=reached, width=round(width, 4))
    }
    for kind in KINDS:
        if kind == "image" or kind not in held_out.kinds:
            continue
        measured, width = held_out, 1.0
        if kind in before:
            width = before[kind].width
            measured = held_out.measured(segments, kind, (_K,), width=width)
        if kind not in before or _recalls(measured, kind).mean() < settings.target_of(kind):
            measured, width = _tune(segments, held_out, kind, settings.target_of(kind))
        recalls, held_out = _recalls(measured, kind), measured
        records[kind] = KindRecord(queries=len(recalls), recall=round(float(recalls.mean()), 7), width=round(width, 4))
    return records, held_out


def _tune(
    segments: SegmentedIndex,
    held_out: GroundTruth,
    kind: QueryKind,
    target: float,
    widths: Sequence[float] = _WIDTHS,
) -> tuple[GroundTruth, float]:
    """The queries, measured with the narrowest width that surely reaches the target, or the widest; and that width."""
    unknown = held_out.unmeasured(held_out.kinds == kind)
    measured = cache(lambda width: unknown.measured(segments, kind, (_K,), width=width))
    index = bisect.bisect_left(widths, target, key=lambda width: _lower_bound(_recalls(measured(width), kind)))
    width = widths[min(index, len(widths) - 1)]
    return measured(width), width


def _recalls(measured: GroundTruth, kind: QueryKind) -> npt.NDArray[np.float64]:
    return measured.of(kind).recalls[:, RECALL_KS.index(_K)]


def _lower_bound(recalls: npt.NDArray[np.float64]) -> float:
    return float(recalls.mean() - _MARGIN * recalls.std() / math.sqrt(len(recalls)))
