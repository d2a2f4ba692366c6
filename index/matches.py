"""The result of a search. Not in `index.search`, so that a client of the server need not import faiss."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Match:
    """An image near the query. `score` is the cosine; `metadata` are the columns of the source.

    `duplicates` are ids of images that were left out as near-duplicates of this one, best first. `percentile` is
    `Searcher.percentile` of the score, if the caller asked for it and the query is of a kind that has one. `box` is the
    part of the picture that is nearest, if the collection has tiles and the whole picture is less near: left, top,
    width and height as fractions of it.
    """

    image_id: str
    score: float
    uri: str | None
    """None if the vector was imported without an address."""
    metadata: dict[str, Any]
    duplicates: tuple[str, ...] = ()
    percentile: float | None = None
    box: tuple[float, float, float, float] | None = None
