"""The nearest vectors and the matching words as one list, by reciprocal rank fusion (Cormack et al., 2009)."""

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from index.arrays import rounded
from index.search.ranking import Ranking, Searchable
from index.search.result_set import Hit, SetRequest
from index.search_options import MAX_K, QueryLimits
from index.segments.exact import exact_neighbours
from index.words.text import any_terms

WORD_HITS: Final = 100
"""How many images with matching words count."""
_VECTOR_HITS: Final = 1_000
"""How many ranks by vector count for an image with matching words: so its place is the same on every page."""
_CONSTANT: Final = 60  # as in the paper: the first ranks should not outweigh all others
_LEAST_SHARE: Final = 0.5  # of the best score of words; the rest has one common word of several


def best_of_both(
    index: Searchable, request: SetRequest, limits: QueryLimits, words: str, hidden: Container[str]
) -> list[Hit]:
    """The best images by vector and words, or without a vector by words alone, for all pages up to the one within the
    limits. The columns `hidden` do not count.
    """
    by_words = _word_hits(index, request, words, [name for name in index.schema.names if name not in hidden])
    if request.query is None:
        return by_words
    deeper = replace(limits, k=min(max(_VECTOR_HITS, limits.depth + WORD_HITS), MAX_K), offset=0)
    nearest = Ranking(index, deeper, request.where, request.width).rank(request.query)[0]
    return fused(nearest, by_words, words)


def _word_hits(index: Searchable, request: SetRequest, words: str, columns: Sequence[str]) -> list[Hit]:
    """The images that pass the request's filter and have any of the words in these columns, by BM25, their key; without
    a query vector all of them, up to MAX_K.
    """
    k = MAX_K if request.query is None else WORD_HITS
    found = index.search_words(any_terms(words), k, request.where, columns=columns)
    positions = np.array([hit.position for hit in found], np.int64)
    scores: list[float | None] = [None] * len(found)
    if request.query is not None and found:
        vectors = np.arange(len(found)), index.vectors(positions)
        compared = exact_neighbours(request.query, [vectors], len(found))  # as other scores are, to the last bit
        scores = rounded(compared.scores[0][np.argsort(compared.positions[0])]).tolist()
    return [
        Hit(hit.score, image_id, hit.position, score, words=hit.terms)
        for hit, image_id, score in zip(found, index.ids(positions), scores, strict=True)
    ]


def fused(by_vector: Sequence[Hit], by_words: Sequence[Hit], words: str) -> list[Hit]:
    """The hits of both, by the sum of 1 ÷ (60 + rank), their new key, and then by id.

    If all images that match are known, so that they are few, those with all `words` come first, whatever their vectors.
    Matches with few of the words, and of little weight, do not count.
    """
    wanted, few = len(any_terms(words)), len(by_words) < WORD_HITS
    by_words = [hit for hit in by_words if hit.key >= _LEAST_SHARE * by_words[0].key or _terms(hit) == wanted]
    gains: dict[int, float] = {}
    known: dict[int, Hit] = {}
    with_words = {hit.position for hit in by_words}
    for rank, hit in enumerate(by_vector, start=1):
        if rank > _VECTOR_HITS and hit.position in with_words:
            continue
        gains[hit.position] = 1 / (_CONSTANT + rank)
        known[hit.position] = replace(hit, vector_rank=rank)
    ranks = 1 + np.searchsorted([-hit.key for hit in by_words], [-hit.key for hit in by_words])  # equal ones share one
    for rank, hit in zip(ranks.tolist(), by_words, strict=True):
        gains[hit.position] = gains.get(hit.position, 0.0) + 1 / (_CONSTANT + rank) + (few and _terms(hit) == wanted)
        known[hit.position] = replace(known.get(hit.position, hit), words=hit.words)
    hits = [replace(hit, key=gains[position]) for position, hit in known.items()]
    return sorted(hits, key=lambda hit: (-hit.key, hit.image_id))


def _terms(hit: Hit) -> int:
    """How many of the words an image has, in whatever columns."""
    return len({term for terms in (hit.words or {}).values() for term in terms})
