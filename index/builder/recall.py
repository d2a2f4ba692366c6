"""Recall of a search: the share of the nearest that it found, where what is as near, or nearly the same, counts too."""

import math

import numpy as np
import numpy.typing as npt

from index.arrays import Positions, Scores, Vectors
from index.segments.hits import Hits

MARGIN = 3
"""Standard errors above the target, as other queries than the measured ones may miss it."""

_EQUAL = 1e-6  # rounding difference of a sum in another order
_SAME = 0.995  # the least cosine of two images that are nearly the same
_NEAR_EQUAL, _NEAR = 5e-4, 0.95  # the error of an 8-bit re-ranking, and the k-th score from which it may hide ranks


def drop_own(hits: Hits, own: Positions) -> Hits:
    """Drop each query's `own` positions, `(n,)` or `(n, p)`. Results have one column less, or p: a query loses its last
    ones instead of those that are not among them.
    """
    positions, own = hits.positions, own.reshape(len(hits.positions), -1)
    drop = (positions[:, :, np.newaxis] == own[:, np.newaxis, :]).any(axis=2) & (positions >= 0)
    return hits.take(np.argsort(drop, axis=1, kind="stable")[:, : positions.shape[1] - own.shape[1]])


def recall(scores: Scores, exact: Scores, k: int) -> npt.NDArray[np.float64]:
    """For each query, the share of its k nearest that a search found, `(n,)`; others that are as near count too, as
    in ann-benchmarks. Both kinds of scores are `(n, k or more)`, best first, -inf where there are fewer.
    """
    k = min(k, exact.shape[1])
    if k == 0:
        return np.ones(len(exact))
    counts = np.isfinite(exact[:, :k]).sum(axis=1)
    kth = np.take_along_axis(exact, np.maximum(counts - 1, 0)[:, np.newaxis], axis=1)
    least = kth - np.where(kth >= _NEAR, _NEAR_EQUAL, _EQUAL)
    hits = (np.isfinite(scores[:, :k]) & (scores[:, :k] >= least)).sum(axis=1)
    return np.where(counts > 0, np.minimum(hits, counts) / np.maximum(counts, 1), 1.0)


def lower_bound(recalls: npt.NDArray[np.float64], margin: float = MARGIN) -> float:
    """The mean less `margin` standard errors."""
    return float(recalls.mean() - margin * recalls.std() / math.sqrt(len(recalls)))


def near_equal_recall(found: Vectors, true: Vectors) -> npt.NDArray[np.float64]:
    """For each query, the share of its nearest images that were found, or one that is nearly the same in place of each:
    which of a thousand frames comes first is no question that a mix or a text answers. Both are `(n, k, dim)`.
    """
    same = true @ found.transpose(0, 2, 1) >= _SAME
    hits = np.minimum(same.any(axis=1).sum(axis=1), same.any(axis=2).sum(axis=1))
    shares: npt.NDArray[np.float64] = hits / true.shape[1]
    return shares


def nearer(scores: Scores, min_scores: Scores, own: Positions) -> Hits:
    """Those of the `(n, m)` scores of m rows that reach their query's minimum, `(n, 1)`, at the numbers of their rows.
    Rows with a query's `own` numbers, `(n, p)`, are left out.
    """
    good = scores >= min_scores
    query, parent = np.nonzero((own >= 0) & (own < scores.shape[1]))
    good[query, own[query, parent]] = False
    query, row = np.nonzero(good)
    slot = np.arange(len(query)) - np.searchsorted(query, query)
    shape = len(scores), int(slot.max(initial=-1)) + 1
    near, rows = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64)
    near[query, slot], rows[query, slot] = scores[query, row], row
    return Hits.whole(near, rows)
