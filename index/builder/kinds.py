"""Measures the recall of each kind of query, and how much wider its searches must be than those for an image."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from index.builder.ground_truth import GroundTruth
from index.collection.records import IndexSettings, KindRecord
from index.queries import KINDS, QueryKind
from index.segments.segmented_index import SegmentedIndex

_WIDTHS = [2 ** (step / 4) for step in range(25)]  # 1 … 64
_IMAGE_WIDTHS = _WIDTHS[:5]  # 1 … 2: an index that needs more for images is not good enough
_SAME_WIDTH = 1.01  # a manifest's widths are rounded
_K = 10
_MARGIN = 3  # standard errors above the target
_MIN_MARGIN = 2  # below it a width is tuned again: other queries than the held-out ones may miss the target


def measure_kinds(
    segments: SegmentedIndex,
    held_out: GroundTruth,
    settings: IndexSettings,
    before: Mapping[QueryKind, KindRecord],
) -> tuple[dict[QueryKind, KindRecord], GroundTruth]:
    """Recall@10 and the narrowest search that reaches the target, for each kind with queries; and the measured queries.

    The index is tuned for images: searches for them are wider only if the rows it was tuned with were easier than the
    held-out ones. A width of the version `before` stays while recall is surely enough. If no width is enough, the kind
    has the widest one, and the version is below its target.
    """
    records: dict[QueryKind, KindRecord] = {}
    for kind in KINDS:
        if kind not in held_out.kinds:
            continue
        target, widths = settings.target_of(kind), _IMAGE_WIDTHS if kind == "image" else _WIDTHS
        if kind in before or kind == "image":
            width = before[kind].width if kind in before else 1.0
            held_out = held_out.measured(segments, kind, (_K,), width=width)
            held_out, width = _kept_or_wider(segments, held_out, kind, target, widths, width)
        else:
            held_out, width = _tune(segments, held_out, kind, target, widths)
        recalls = _recalls(held_out, kind)
        records[kind] = KindRecord(queries=len(recalls), recall=round(float(recalls.mean()), 7), width=round(width, 4))
    return records, held_out


def _kept_or_wider(
    segments: SegmentedIndex,
    measured: GroundTruth,
    kind: QueryKind,
    target: float,
    widths: Sequence[float],
    width: float,
) -> tuple[GroundTruth, float]:
    """The queries, which were measured with this width, if that is surely enough; else those of `_tune`, unless the
    recall is good enough, and no width makes it surely so.
    """
    recalls = _recalls(measured, kind)
    if width >= widths[-1] or _lower_bound(recalls, _MIN_MARGIN) >= target:
        return measured, width
    wider = [each for each in widths if each > _SAME_WIDTH * width]
    for choice in (wider[:1], wider):  # mostly the next one is enough
        tuned, found = _tune(segments, measured, kind, target, choice)
        if _lower_bound(_recalls(tuned, kind)) >= target:
            break
    sure = _lower_bound(_recalls(tuned, kind), _MIN_MARGIN) >= target
    return (tuned, found) if sure or recalls.mean() < target else (measured, width)


def _tune(
    segments: SegmentedIndex, held_out: GroundTruth, kind: QueryKind, target: float, widths: Sequence[float]
) -> tuple[GroundTruth, float]:
    """The queries, measured with the narrowest width that surely reaches the target, or the widest; and that width."""
    unknown = held_out.unmeasured(held_out.kinds == kind)
    measured = cache(lambda width: unknown.measured(segments, kind, (_K,), width=width))
    index = bisect.bisect_left(widths, target, key=lambda width: _lower_bound(_recalls(measured(width), kind)))
    width = widths[min(index, len(widths) - 1)]
    return measured(width), width


def _recalls(measured: GroundTruth, kind: QueryKind) -> npt.NDArray[np.float64]:
    return measured.recalls_of(kind, _K)


def _lower_bound(recalls: npt.NDArray[np.float64], margin: float = _MARGIN) -> float:
    return float(recalls.mean() - margin * recalls.std() / math.sqrt(len(recalls)))
