"""One search over several segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from index.exact import Positions, Scores
from index.segment import Eligible, Segment


def nearest(
    segments: Sequence[Segment],
    queries: npt.NDArray[np.float32],
    k: int,
    eligible: Sequence[Eligible | None] | None = None,
) -> tuple[Scores, Positions]:
    """Scores and positions of the k nearest, `(n, k)`, best first; -1 where there are fewer.

    Positions count through the segments in their order. `eligible` has one entry for each segment.
    """
    starts = np.cumsum([0, *(segment.ntotal for segment in segments)])
    allowed = eligible or [None] * len(segments)
    found = [segment.search(queries, k, rows) for segment, rows in zip(segments, allowed, strict=True)]
    if len(found) == 1:
        return found[0]
    scores = np.concatenate([scores for scores, _ in found], axis=1)
    positions = np.concatenate(
        [np.where(positions < 0, -1, positions + start) for (_, positions), start in zip(found, starts, strict=False)],
        axis=1,
    )
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, best, axis=1), np.take_along_axis(positions, best, axis=1)
