"""Ranks search results: orders ties by id, folds near-duplicates, diversifies; searches as deep as this needs."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Parts, Positions, Vectors
from index.filters.filter import Filter
from index.queries import MAX_K, QueryLimits
from index.segments.searchable import Searchable, Unlike

_DECIMALS = 6  # float32 holds no more, and duplicates have to score the same
_DEEPER = 4  # times as deep, if there are too few results
_MAX_TIES = 1_000  # images with the same score at the cut; with more, the index decides which come first
_BLOCK = 256  # candidates that one matrix product compares with the distinct hits before them


@dataclass(slots=True)
class Hit:
    """A row that matches with its whole picture (`part` 0) or its n-th tile. `duplicates` are ids folded into it."""

    score: float
    image_id: str
    position: int
    part: int = 0
    duplicates: list[str] = field(default_factory=list)


def rank(
    segments: Searchable,
    queries: Vectors,
    limits: QueryLimits,
    where: Filter | None = None,
    *,
    width: float = 1.0,
) -> list[list[Hit]]:
    """The neighbours of each query within the limits, by score and then by image_id; near-duplicates are folded into
    better hits. With `diversity` they are in the order of `_diverse`.

    The search looks `width` times as far as the index is tuned to, and goes deeper until enough hits are found or all
    rows have been seen. If near-duplicates fill the nearest MAX_K, it goes on among the rows unlike them.
    """
    results: list[list[Hit]] = [[] for _ in queries]
    candidates = _pool_size(limits.depth) if limits.diversity else limits.depth
    # One more shows whether several have the same score as the last; and some will be folded.
    depth = (candidates + 1) * (1 if limits.distinct is None else 2) + len(limits.exclude)
    deepest = min(segments.live_count, max(depth, _MAX_TIES if limits.distinct is None else MAX_K))
    all_seen = limits.distinct is None or deepest == segments.live_count  # or as good as all
    pending = np.arange(len(queries))
    while len(pending) and deepest:
        depth = min(depth, deepest)
        undecided = []
        scores, positions, parts, ids = segments.search_with_ids(queries[pending], depth, where, width=width)
        for query, hits in zip(pending, hits_of(scores, positions, parts, ids), strict=True):
            complete = len(hits) < depth or (depth == deepest and all_seen)
            chosen = _choose(segments, hits, limits, candidates, complete=complete)
            if chosen is None and depth == deepest:
                results[query] = _beyond_crowds(segments, queries[query : query + 1], limits, candidates, where, width)
            elif chosen is None:
                undecided.append(query)
            else:
                results[query] = chosen
        pending = np.array(undecided, np.intp)
        depth *= _DEEPER
    return results


def rounded(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Scores as reported."""
    return np.round(scores.astype(np.float64), _DECIMALS)  # type: ignore[return-value]  # numpy's stub says float16


def _least(cosine: float) -> float:
    """The least cosine that is reported as this one."""
    return cosine - 0.5 * float(10**-_DECIMALS)


def hits_of(scores: npt.NDArray[np.float32], positions: Positions, parts: Parts, ids: Ids) -> list[list[Hit]]:
    """The hits of each query, by score and then by image_id, from a search's `(n, k)` results."""
    valid = positions >= 0
    columns = rounded(scores[valid]).tolist(), ids[valid], positions[valid].tolist(), parts[valid].tolist()
    hits = map(Hit, *columns)
    by_query = [list(itertools.islice(hits, count)) for count in valid.sum(axis=1).tolist()]
    return [sorted(ranked, key=lambda hit: (-hit.score, hit.image_id)) for ranked in by_query]


def _pool_size(rank: int) -> int:
    """From how many of the best hits the match of a `rank`, from 1, in a diverse result is chosen."""
    return 100 + 4 * rank


def _choose(
    segments: Searchable, hits: list[Hit], limits: QueryLimits, candidates: int, *, complete: bool
) -> list[Hit] | None:
    """Those of the best hits that meet the limits. None if more hits are needed to decide, and these are not all."""
    if not complete:
        # Others with the same score as the last may come before it.
        last = hits[-1].score
        complete = last < limits.min_score
        hits = [hit for hit in hits if hit.score > last]
    good = [hit for hit in hits if hit.score >= limits.min_score and hit.image_id not in limits.exclude]
    if limits.distinct is None:
        enough = len(good) >= candidates
    else:
        good, enough = _folded(segments, good, limits.distinct, candidates, [])
    return _page(segments, good, limits, candidates) if enough or complete else None


def _page(segments: Searchable, good: list[Hit], limits: QueryLimits, candidates: int) -> list[Hit]:
    if limits.diversity:
        good = _diverse(segments, good[:candidates], limits.diversity, limits.depth)
    return good[limits.offset : limits.depth]


def _beyond_crowds(
    segments: Searchable, query: Vectors, limits: QueryLimits, candidates: int, where: Filter | None, width: float
) -> list[Hit]:
    """The distinct hits of one query, `(1, dim)`, whose nearest MAX_K rows have too few of them, such as 15,000 copies
    of one placeholder.

    Each round searches only rows unlike all hits so far. At least one is found in each, and MAX_K rows are behind it,
    so the rounds, each with one pass over all rows, are few.
    """
    assert limits.distinct is not None
    unique: list[Hit] = []
    depth, enough, complete = MAX_K + len(limits.exclude), False, False
    while not (enough or complete):
        known = len(unique)
        unlike = Unlike(_vectors(segments, unique), _least(limits.distinct))
        found = segments.search_with_ids(query, depth, where, width=width, unlike=unlike)
        hits = hits_of(*found)[0]
        complete = len(hits) < depth
        if not complete:
            last = hits[-1].score
            complete = last < limits.min_score
            hits = [hit for hit in hits if hit.score > last] or hits  # if all score the same, the index decides
        good = [hit for hit in hits if hit.score >= limits.min_score and hit.image_id not in limits.exclude]
        unique, enough = _folded(segments, good, limits.distinct, candidates, unique)
        complete = complete or len(unique) == known
    return _page(segments, unique, limits, candidates)


def _vectors(segments: Searchable, hits: list[Hit]) -> Vectors:
    return segments.vectors(np.array([hit.position for hit in hits], np.int64))


def _folded(
    segments: Searchable, hits: list[Hit], distinct: float, count: int, unique: list[Hit]
) -> tuple[list[Hit], bool]:
    """The first `count` distinct hits, with near-duplicates folded into them; and whether one more follows. `unique`
    are those found before.
    """
    before = [_vectors(segments, unique)]
    for start in range(0, len(hits), _BLOCK):
        block = hits[start : start + _BLOCK]
        vectors = _vectors(segments, block)
        alike = np.zeros((len(block), count), bool)
        alike[:, : len(unique)] = vectors @ np.concatenate(before).T >= _least(distinct)
        within = vectors @ vectors.T >= _least(distinct)
        for row, hit in enumerate(block):
            if alike[row].any():
                unique[alike[row].argmax()].duplicates.append(hit.image_id)
            elif len(unique) == count:
                return unique, True
            else:
                alike[:, len(unique)] = within[:, row]
                unique.append(hit)
                before.append(vectors[row : row + 1])
    return unique, False


def _diverse(segments: Searchable, hits: list[Hit], diversity: float, count: int) -> list[Hit]:
    """The first `count` hits by maximal marginal relevance (Carbonell and Goldstein, 1998): each is the one with the
    highest score less its highest cosine with those before, weighted by 1 - `diversity` and `diversity`.

    The number of hits that a match is chosen from depends on its rank alone, so that pages follow each other.
    """
    if not hits:
        return hits
    vectors = _vectors(segments, hits)
    relevance = (1 - diversity) * np.array([hit.score for hit in hits])
    alike = np.full(len(hits), -1.0)  # the highest cosine with a chosen one
    chosen: list[int] = []
    for rank in range(1, min(count, len(hits)) + 1):
        best = int((relevance - diversity * alike)[: _pool_size(rank)].argmax())  # the first of equals
        chosen.append(best)
        relevance[best] = -np.inf
        np.maximum(alike, rounded(vectors @ vectors[best]), out=alike)
    return [hits[index] for index in chosen]
