"""The nearest vectors and the matching words as one list, by reciprocal rank fusion (Cormack et al., 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from index.search.ranking import Searchable, find_set
from index.search.result_set import BEST, Hit, SetPage, SetRequest
from index.search_options import Place

MIXED_HITS: Final = 100
"""How many of the nearest and how many images with matching words are mixed. All others follow by their scores."""
_CONSTANT: Final = 60  # as in the paper: the first ranks should not outweigh all others
_LEAST_SHARE: Final = 0.8  # of the best score of words; of three that are as rare, two are less


def page_of_both(index: Searchable, request: SetRequest, place: Place) -> SetPage:
    """The set that the request's vector finds, with the hits after the place, the best by vector and words first."""
    assert request.words is not None
    k = request.limits.k
    of_words = replace(request.words, k=MIXED_HITS)
    found = replace(request, words=of_words, order=BEST, facets=(), after=None, depth=MIXED_HITS)
    by_words = find_set(index, found).hits
    wanted = len(_terms(*by_words))  # not those that no image has
    strong = strong_hits(by_words, wanted)
    by_vector = replace(request, words=None, first=max(place.first, MIXED_HITS))
    if request.after is not None:
        page = find_set(index, replace(by_vector, depth=k + len(strong)))
        return page.of(_rest(page.hits, strong, place.seen)[:k])
    page = find_set(index, replace(by_vector, depth=MIXED_HITS))
    mixed = fused(page.hits, strong, wanted)
    hits = mixed[place.seen : place.seen + k]
    if len(hits) == k or len(page.hits) < MIXED_HITS:
        return replace(page, hits=hits)
    skipped, further = place.seen + len(hits) - len(mixed), k - len(hits)
    after = page.of(page.hits).after
    more = replace(by_vector, facets=(), after=after, depth=skipped + further + len(strong))
    rest = _rest(find_set(index, more).hits, strong, len(mixed))[skipped:][:further]
    return page.of([*hits, *rest]) if rest else replace(page, hits=hits)


def fused(by_vector: Sequence[Hit], by_words: Sequence[Hit], wanted: int) -> list[Hit]:
    """The hits of both, by the sum of 1 ÷ (60 + rank), their new key, and then by id.

    If so few match that all are known, those with all `wanted` words come first, whatever their vectors.
    """
    few = len(by_words) < MIXED_HITS
    first = {hit.position for hit in by_words if few and len(_terms(hit)) == wanted}
    near = {hit.position: rank for rank, hit in enumerate(by_vector, start=1)}
    gains = {position: 1 / (_CONSTANT + rank) for position, rank in near.items()}
    ranks = 1 + np.searchsorted([-hit.key for hit in by_words], [-hit.key for hit in by_words])  # equal ones share one
    for rank, hit in zip(ranks.tolist(), by_words, strict=True):
        gains[hit.position] = gains.get(hit.position, 0.0) + 1 / (_CONSTANT + rank) + (hit.position in first)
    words = {hit.position: hit.words for hit in by_words}
    hits = {hit.position: hit for hit in (*by_words, *by_vector)}
    order = sorted(hits, key=lambda place: (-gains[place], hits[place].image_id))
    return [replace(hits[at], key=gains[at], vector_rank=near.get(at), words=words.get(at)) for at in order]


def strong_hits(by_words: Sequence[Hit], wanted: int) -> list[Hit]:
    """Without those that lack words of some weight. Else what is in the middle of both lists, as it has some words and
    is a bit alike, would come before the best of one.
    """
    return [hit for hit in by_words if hit.key >= _LEAST_SHARE * by_words[0].key or len(_terms(hit)) == wanted]


def _rest(hits: Sequence[Hit], by_words: Sequence[Hit], seen: int) -> list[Hit]:
    """Those of the hits by vector that come after `seen` of both."""
    earlier = {hit.position for hit in by_words}
    others = [hit for hit in hits if hit.position not in earlier]
    near, scores = (np.array([hit.score for hit in each], np.float64) for each in (by_words, others))
    farther = np.searchsorted(np.sort(near), scores).tolist()  # of the earlier ones, how many are farther away
    ranks = (seen + number - count for number, count in enumerate(farther, start=1))
    return [replace(hit, vector_rank=rank) for hit, rank in zip(others, ranks, strict=True)]


def _terms(*hits: Hit) -> set[str]:
    """The words that these images have, in whatever columns."""
    return {term for hit in hits for terms in (hit.words or {}).values() for term in terms}
