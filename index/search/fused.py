"""The nearest vectors and the matching words as one list, by reciprocal rank fusion (Cormack et al., 2009)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from index.arrays import rounded
from index.search.ranking import Searchable
from index.search.result_set import Hit, SetRequest
from index.search_options import MAX_K
from index.words.text import any_terms

WORD_HITS: Final = 100
"""How many images with matching words count."""
VECTOR_HITS: Final = 1_000
"""How many ranks by vector count for an image with matching words: so its place is the same on every page."""
_CONSTANT: Final = 60  # as in the paper: the first ranks should not outweigh all others
_LEAST_SHARE: Final = 0.5  # of the best score of words; the rest has one common word of several


def word_hits(index: Searchable, request: SetRequest, words: str, columns: Sequence[str]) -> list[Hit]:
    """The images that pass the request's filter and have any of the words in these columns, by BM25, their key; without
    a query vector all of them, up to MAX_K.
    """
    k = MAX_K if request.query is None else WORD_HITS
    found = index.search_words(any_terms(words), k, request.where, columns=columns)
    positions = np.array([hit.position for hit in found], np.int64)
    scores: list[float | None] = [None] * len(found)
    if request.query is not None and found:
        scores = rounded(index.vectors(positions) @ request.query[0]).tolist()
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
        if rank > VECTOR_HITS and hit.position in with_words:
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
