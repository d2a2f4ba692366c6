"""Ranks search results: orders ties by id, folds near-duplicates, diversifies; searches as deep as this needs."""

import itertools
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from index.arrays import Vectors, least_score, rounded
from index.filters.filter import Filter
from index.search.result_set import Hit
from index.search.sharded_index import ShardedIndex
from index.search_options import MAX_K, QueryLimits
from index.segments.eligible import Unlike
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex

_DEEPER = 4  # times as deep, if there are too few results
_MAX_TIES = 1_000  # images with the same score at the cut; with more, the index decides which come first
_BLOCK = 256  # candidates that one matrix product compares with the distinct hits before them


Searchable: TypeAlias = SegmentedIndex | ShardedIndex
"""The segments of a version as one, in this process or in others."""


@dataclass(frozen=True)
class Ranking:
    """Ranks the rows that pass the filter `where`. Searches look `width` times as far as the index is tuned to."""

    segments: Searchable
    limits: QueryLimits
    where: Filter | None
    width: float

    def rank(self, queries: Vectors) -> list[list[Hit]]:
        """The neighbours of each query within the limits, by score and then by image_id; near-duplicates are folded
        into better hits. With `diversity` they are in the order of `_diverse`.

        The search goes deeper until enough hits are found or all rows have been seen. If near-duplicates fill the
        nearest MAX_K, it goes on among the rows unlike them.
        """
        limits, live_count = self.limits, self.segments.live_count
        results: list[list[Hit]] = [[] for _ in queries]
        # One more shows whether several have the same score as the last; and some will be folded.
        depth = (self._candidates + 1) * (1 if limits.distinct is None else 2) + len(limits.exclude)
        deepest = min(live_count, max(depth, _MAX_TIES if limits.distinct is None else MAX_K))
        all_seen = limits.distinct is None or deepest == live_count  # or as good as all
        pending = np.arange(len(queries))
        while len(pending) and deepest:
            depth = min(depth, deepest)
            undecided = []
            for query, hits in zip(pending, self._search(queries[pending], depth), strict=True):
                complete = len(hits) < depth or (depth == deepest and all_seen)
                if not complete:
                    hits, complete = self._settled(hits)
                good = self._allowed(hits)
                enough = len(good) >= self._candidates
                if limits.distinct is not None:
                    good, enough = self._folded(good, limits.distinct, [])
                if enough or complete:
                    results[query] = self._page(good)
                elif depth == deepest and limits.distinct is not None:
                    results[query] = self._beyond_crowds(queries[query : query + 1], limits.distinct)
                else:
                    undecided.append(query)
            pending = np.array(undecided, np.intp)
            depth *= _DEEPER
        return results

    @property
    def _candidates(self) -> int:
        """How many hits are needed."""
        return _pool_size(self.limits.depth) if self.limits.diversity else self.limits.depth

    def _search(self, queries: Vectors, depth: int, unlike: Unlike | None = None) -> list[list[Hit]]:
        return hits_of(self.segments.search_with_ids(queries, depth, self.where, width=self.width, unlike=unlike))

    def _settled(self, hits: list[Hit]) -> tuple[list[Hit], bool]:
        """The hits that no other comes before, unlike some with the score of the last; and whether that is too low."""
        last = hits[-1].key
        return [hit for hit in hits if hit.key > last], last < self.limits.min_score

    def _allowed(self, hits: list[Hit]) -> list[Hit]:
        limits = self.limits
        return [hit for hit in hits if hit.key >= limits.min_score and hit.image_id not in limits.exclude]

    def _page(self, good: list[Hit]) -> list[Hit]:
        if self.limits.diversity:
            good = self._diverse(good[: self._candidates], self.limits.diversity)
        return good[self.limits.offset : self.limits.depth]

    def _beyond_crowds(self, query: Vectors, distinct: float) -> list[Hit]:
        """The distinct hits of one query, `(1, dim)`, whose nearest MAX_K rows have too few of them, such as 15,000
        copies of one placeholder.

        Each round searches only rows unlike all hits so far. At least one is found in each, and MAX_K rows are behind
        it, so the rounds, each with one pass over all rows, are few.
        """
        unique: list[Hit] = []
        depth, enough, complete = MAX_K + len(self.limits.exclude), False, False
        while not (enough or complete):
            known = len(unique)
            hits = self._search(query, depth, Unlike(self._vectors(unique), least_score(distinct)))[0]
            complete = len(hits) < depth
            if not complete:
                settled, complete = self._settled(hits)
                hits = settled or hits  # if all score the same, the index decides
            unique, enough = self._folded(self._allowed(hits), distinct, unique)
            complete = complete or len(unique) == known
        return self._page(unique)

    def _vectors(self, hits: list[Hit]) -> Vectors:
        return self.segments.vectors(np.array([hit.position for hit in hits], np.int64))

    def _folded(self, hits: list[Hit], distinct: float, unique: list[Hit]) -> tuple[list[Hit], bool]:
        """The distinct hits, as many as needed, with near-duplicates folded into them; and whether one more follows.
        `unique` are those found before.
        """
        before, count = [self._vectors(unique)], self._candidates
        for start in range(0, len(hits), _BLOCK):
            block = hits[start : start + _BLOCK]
            vectors = self._vectors(block)
            alike = np.zeros((len(block), count), bool)
            alike[:, : len(unique)] = vectors @ np.concatenate(before).T >= least_score(distinct)
            within = vectors @ vectors.T >= least_score(distinct)
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

    def _diverse(self, hits: list[Hit], diversity: float) -> list[Hit]:
        """The hits by maximal marginal relevance (Carbonell and Goldstein, 1998): each is the one with the highest
        score less its highest cosine with those before, weighted by 1 - `diversity` and `diversity`.

        The number of hits that a match is chosen from depends on its rank alone, so that pages follow each other.
        """
        if not hits:
            return hits
        vectors = self._vectors(hits)
        relevance = (1 - diversity) * np.array([hit.key for hit in hits])
        alike = np.full(len(hits), -1.0)  # the highest cosine with a chosen one
        chosen: list[int] = []
        for rank in range(1, min(self.limits.depth, len(hits)) + 1):
            best = int((relevance - diversity * alike)[: _pool_size(rank)].argmax())  # the first of equals
            chosen.append(best)
            relevance[best] = -np.inf
            np.maximum(alike, rounded(vectors @ vectors[best]), out=alike)
        return [hits[index] for index in chosen]


def hits_of(found: Hits) -> list[list[Hit]]:
    """The hits of each query, by score and then by image_id, of a search with ids."""
    assert found.ids is not None
    valid = found.positions >= 0
    scores, positions = rounded(found.scores[valid]).tolist(), found.positions[valid].tolist()
    hits = map(Hit, scores, found.ids[valid], positions, scores, found.parts[valid].tolist())
    by_query = [list(itertools.islice(hits, count)) for count in valid.sum(axis=1).tolist()]
    return [sorted(ranked, key=lambda hit: (-hit.key, hit.image_id)) for ranked in by_query]


def _pool_size(rank: int) -> int:
    """From how many of the best hits the match of a `rank`, from 1, in a diverse result is chosen."""
    return 100 + 4 * rank
