"""Orders in which a match depends on all before it: near-duplicates are folded, or results diversified.

Both read the order of the set from its beginning, which is the same for every page, so that pages follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from index.arrays import Vectors, least_score, rounded
from index.search.result_set import Hit, SetPage, SetRequest
from index.search.set_search import SetSearch
from index.search.sharded_index import ShardedIndex
from index.search_options import MAX_K, Place
from index.segments.segmented_index import SegmentedIndex

_BLOCK: Final = 256  # candidates that one matrix product compares with the distinct hits before them
_MORE: Final = 4  # times as many candidates, if there are too few distinct ones
_MOST: Final = 100_000  # candidates at once

Searchable: TypeAlias = SegmentedIndex | ShardedIndex
"""The segments of a version as one, in this process or in others."""


def find_set(index: Searchable, request: SetRequest) -> SetPage:
    return index.page(request) if isinstance(index, ShardedIndex) else SetSearch(index, request).page()


def ranked_page(index: Searchable, request: SetRequest, place: Place) -> SetPage:
    """The set, with the hits of the page after the place."""
    limits = request.limits
    count, first = place.seen + limits.k, place.first
    if limits.diversity:
        count, first = _pool_size(count), _pool_size(first)
    if limits.distinct is None:
        page = find_set(index, replace(request, first=first, depth=count))
        hits = [*page.hits]
    else:
        folding = _Folding(index, limits.distinct, count)
        # Some will be folded.
        page = folding.fold(replace(request, first=2 * (first + 1), depth=2 * (count + 1)))
        hits = folding.unique
    if limits.diversity:
        hits = _diverse(index, hits, limits.diversity, place.seen + limits.k)
    return replace(page, hits=hits[place.seen : place.seen + limits.k])


class _Folding:
    """Folds hits that have a cosine of `distinct` or more with a better one into it, until `count` are `unique`."""

    def __init__(self, index: Searchable, distinct: float, count: int) -> None:
        self.unique: list[Hit] = []
        self._index, self._least, self._count = index, least_score(distinct), count
        self._vectors: list[Vectors] = []
        self._seen = 0

    def fold(self, request: SetRequest) -> SetPage:
        """Fold the hits of a set, in order. It is returned with the first of them."""
        first = page = find_set(self._index, request)
        while not self._are_enough(page.hits) and len(page.hits) == request.depth:
            depth = min(_MORE * request.depth, _MOST)
            request = replace(request, after=page.hits[-1].place, depth=depth, facets=())
            page = find_set(self._index, request)
        return first

    def _are_enough(self, hits: Sequence[Hit]) -> bool:
        """Fold these. Whether one more follows those that are needed."""
        for start in range(0, len(hits), _BLOCK):
            block = hits[start : start + _BLOCK]
            vectors = vectors_of(self._index, block)
            alike = np.zeros((len(block), self._count), bool)
            if self.unique:
                alike[:, : len(self.unique)] = vectors @ np.concatenate(self._vectors).T >= self._least
            within = vectors @ vectors.T >= self._least
            for row, hit in enumerate(block):
                self._seen += 1
                if alike[row].any():
                    if self._seen <= MAX_K:  # of more, an answer would be too long
                        self.unique[alike[row].argmax()].duplicates.append(hit.image_id)
                elif len(self.unique) == self._count:
                    return True
                else:
                    alike[:, len(self.unique)] = within[:, row]
                    self.unique.append(hit)
                    self._vectors.append(vectors[row : row + 1])
        return False


def _diverse(index: Searchable, hits: Sequence[Hit], diversity: float, count: int) -> list[Hit]:
    """The first hits by maximal marginal relevance (Carbonell and Goldstein, 1998): each is the one with the highest
    score less its highest cosine with those before, weighted by 1 - `diversity` and `diversity`.

    The number of hits that a match is chosen from depends on its rank alone, so that pages follow each other.
    """
    if not hits:
        return []
    vectors = vectors_of(index, hits)
    relevance = (1 - diversity) * np.array([hit.key for hit in hits])
    alike = np.full(len(hits), -1.0)  # the highest cosine with a chosen one
    chosen: list[int] = []
    for rank in range(1, min(count, len(hits)) + 1):
        best = int((relevance - diversity * alike)[: _pool_size(rank)].argmax())  # the first of equals
        chosen.append(best)
        relevance[best] = -np.inf
        np.maximum(alike, rounded(vectors @ vectors[best]), out=alike)
    return [hits[slot] for slot in chosen]


def vectors_of(index: Searchable, hits: Sequence[Hit]) -> Vectors:
    return index.vectors(np.array([hit.position for hit in hits], np.int64))


def _pool_size(rank: int) -> int:
    """From how many of the best hits the match of a `rank`, from 1, in a diverse result is chosen."""
    return 100 + 4 * rank
