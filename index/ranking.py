"""Ranks what an index finds: ties by their ids, near-duplicates folded, searched as deep as that takes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from index.queries import MAX_K, Vectors, Wanted
from index.searchable import Ids, S, Searchable

_DECIMALS = 6  # float32 holds no more, and duplicates have to score the same
_DEEPER = 4  # times as deep, where what was found does not do
_TIES = 1_000  # images that score the same at the cut; beyond, which of them come first is left to the index
_BLOCK = 256  # candidates compared with what is kept in one matrix product


@dataclass(slots=True)
class Hit:
    """A row that was found. `duplicates` are ids folded into it."""

    score: float
    image_id: str
    position: int
    duplicates: list[str] = field(default_factory=list)


def rank(
    segments: Searchable[S], queries: Vectors, wanted: Wanted, eligible: Sequence[S] | None = None
) -> list[list[Hit]]:
    """What is wanted of each query's neighbours, by score and then by image_id.

    Near-duplicates of a better one are folded into it up to where the first follows that is not wanted any more. The
    search goes deeper until enough is found, all rows have been seen, or it is MAX_K deep.
    """
    found: list[list[Hit]] = [[] for _ in queries]
    available = segments.count(eligible)
    # One more tells whether the last is one of several that score the same; and some will be folded.
    depth = (wanted.depth + 1) * (1 if wanted.distinct is None else 2) + len(wanted.exclude)
    deepest = min(available, max(depth, _TIES if wanted.distinct is None else MAX_K))
    pending = np.arange(len(queries))
    while len(pending) and deepest:
        depth = min(depth, deepest)
        open_ends = []
        scores, positions, ids = segments.search_with_ids(queries[pending], depth, eligible)
        for query, hits in zip(pending, hits_of(scores, positions, ids), strict=True):
            chosen = _choose(segments, hits, wanted, complete=depth == deepest)
            if chosen is None:
                open_ends.append(query)
            else:
                found[query] = chosen
        pending = np.array(open_ends, np.intp)
        depth *= _DEEPER
    return found


def rounded(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Scores as reported."""
    return np.round(scores.astype(np.float64), _DECIMALS)  # type: ignore[return-value]  # numpy's stub says float16


def hits_of(scores: npt.NDArray[np.float32], positions: npt.NDArray[np.int64], ids: Ids) -> list[list[Hit]]:
    """What a search found, each `(n, k)`: the hits of each query, by score and then by image_id."""
    there = positions >= 0
    columns = rounded(scores[there]).tolist(), ids[there], positions[there].tolist()
    hits = map(Hit, *columns)
    found = [list(itertools.islice(hits, count)) for count in there.sum(axis=1).tolist()]
    return [sorted(ranked, key=lambda hit: (-hit.score, hit.image_id)) for ranked in found]


def _choose(segments: Searchable[S], hits: list[Hit], wanted: Wanted, *, complete: bool) -> list[Hit] | None:
    """What is wanted of the best hits, or None when it takes more of them to tell.

    `complete`: there are no more.
    """
    if not complete:
        # Others that score the same as the last may come before it.
        last = hits[-1].score
        complete = last < wanted.min_score
        hits = [hit for hit in hits if hit.score > last]
    good = [hit for hit in hits if hit.score >= wanted.min_score]
    good = [hit for hit in good if hit.image_id not in wanted.exclude]
    if wanted.distinct is None:
        enough = len(good) >= wanted.depth
    else:
        good, enough = _folded(segments, good, wanted.distinct, wanted.depth)
    return good[wanted.offset : wanted.depth] if enough or complete else None


def _folded(segments: Searchable[S], hits: list[Hit], distinct: float, count: int) -> tuple[list[Hit], bool]:
    """The first `count` hits that are unlike every one before, others folded into these; whether one more follows."""
    kept: list[Hit] = []
    before = [segments.vectors(np.empty(0, np.int64))]  # of what is kept
    for start in range(0, len(hits), _BLOCK):
        block = hits[start : start + _BLOCK]
        vectors = segments.vectors(np.array([hit.position for hit in block]))
        alike = np.zeros((len(block), count), bool)
        alike[:, : len(kept)] = rounded(vectors @ np.concatenate(before).T) >= distinct
        within = rounded(vectors @ vectors.T) >= distinct
        for row, hit in enumerate(block):
            if alike[row].any():
                kept[alike[row].argmax()].duplicates.append(hit.image_id)
            elif len(kept) == count:
                return kept, True
            else:
                alike[:, len(kept)] = within[:, row]
                kept.append(hit)
                before.append(vectors[row : row + 1])
    return kept, False
