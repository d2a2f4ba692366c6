"""Ranks an index's results: ties by id, near-duplicates folded, alike ones apart, searched as deep as this needs."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Parts, Positions, Vectors
from index.filters.filter import Filter
from index.queries import MAX_K, QueryLimits
from index.segments.searchable import Searchable

_DECIMALS = 6  # float32 holds no more, and duplicates have to score the same
_DEEPER = 4  # times as deep, if the results found are not enough
_TIES = 1_000  # images with the same score at the cut; with more, the index decides which come first
_BLOCK = 256  # candidates compared with the kept ones in one matrix product


@dataclass(slots=True)
class Hit:
    """A row that was found, by the whole picture (`part` 0) or its n-th tile. `duplicates` are ids folded into it."""

    score: float
    image_id: str
    position: int
    part: int = 0
    duplicates: list[str] = field(default_factory=list)


def rank(
    segments: Searchable,
    queries: Vectors,
    wanted: QueryLimits,
    where: Filter | None = None,
    *,
    width: float = 1.0,
) -> list[list[Hit]]:
    """The wanted neighbours of each query, by score and then by image_id; near-duplicates are folded into better hits.
    With `diversity` they are in the order of `_diverse`.

    The search looks `width` times as far as the index is tuned to, and goes deeper until enough hits are found, all
    rows have been seen, or it is MAX_K deep.
    """
    found: list[list[Hit]] = [[] for _ in queries]
    candidates = _pool_size(wanted.depth) if wanted.diversity else wanted.depth
    # One more shows whether several have the same score as the last; and some will be folded.
    depth = (candidates + 1) * (1 if wanted.distinct is None else 2) + len(wanted.exclude)
    deepest = min(segments.live_count, max(depth, _TIES if wanted.distinct is None else MAX_K))
    pending = np.arange(len(queries))
    while len(pending) and deepest:
        depth = min(depth, deepest)
        open_ends = []
        scores, positions, parts, ids = segments.search_with_ids(queries[pending], depth, where, width=width)
        for query, hits in zip(pending, hits_of(scores, positions, parts, ids), strict=True):
            chosen = _choose(segments, hits, wanted, candidates, complete=len(hits) < depth or depth == deepest)
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


def hits_of(scores: npt.NDArray[np.float32], positions: Positions, parts: Parts, ids: Ids) -> list[list[Hit]]:
    """The hits of each query, by score and then by image_id, from a search's `(n, k)` results."""
    there = positions >= 0
    columns = rounded(scores[there]).tolist(), ids[there], positions[there].tolist(), parts[there].tolist()
    hits = map(Hit, *columns)
    found = [list(itertools.islice(hits, count)) for count in there.sum(axis=1).tolist()]
    return [sorted(ranked, key=lambda hit: (-hit.score, hit.image_id)) for ranked in found]


def _pool_size(position: int) -> int:
    """How many of the best hits the one at `position`, from 1, of a diverse result is chosen from."""
    return 100 + 4 * position


def _choose(
    segments: Searchable, hits: list[Hit], wanted: QueryLimits, candidates: int, *, complete: bool
) -> list[Hit] | None:
    """The wanted ones of the best hits; None if more hits are needed to decide, and these are not `complete`."""
    if not complete:
        # Others with the same score as the last may come before it.
        last = hits[-1].score
        complete = last < wanted.min_score
        hits = [hit for hit in hits if hit.score > last]
    good = [hit for hit in hits if hit.score >= wanted.min_score]
    good = [hit for hit in good if hit.image_id not in wanted.exclude]
    if wanted.distinct is None:
        enough = len(good) >= candidates
    else:
        good, enough = _folded(segments, good, wanted.distinct, candidates)
    if not (enough or complete):
        return None
    if wanted.diversity:
        good = _diverse(segments, good[:candidates], wanted.diversity, wanted.depth)
    return good[wanted.offset : wanted.depth]


def _folded(segments: Searchable, hits: list[Hit], distinct: float, count: int) -> tuple[list[Hit], bool]:
    """The first `count` distinct hits, with near-duplicates folded into them; and whether one more follows."""
    kept: list[Hit] = []
    before = [segments.vectors(np.empty(0, np.int64))]  # vectors of the kept hits
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


def _diverse(segments: Searchable, hits: list[Hit], diversity: float, count: int) -> list[Hit]:
    """The first `count` hits by maximal marginal relevance (Carbonell and Goldstein, 1998): each is the one with the
    highest score less its highest cosine with those before, weighted by 1 - `diversity` and `diversity`.

    How many hits a match is chosen from depends on its rank alone, so that pages follow each other.
    """
    if not hits:
        return hits
    vectors = segments.vectors(np.array([hit.position for hit in hits]))
    relevance = (1 - diversity) * np.array([hit.score for hit in hits])
    alike = np.full(len(hits), -1.0)  # the highest cosine with a chosen one
    chosen: list[int] = []
    for position in range(1, min(count, len(hits)) + 1):
        pool = _pool_size(position)
        best = int((relevance - diversity * alike)[:pool].argmax())  # the first of equals
        chosen.append(best)
        relevance[best] = -np.inf
        np.maximum(alike, rounded(vectors @ vectors[best]), out=alike)
    return [hits[at] for at in chosen]
