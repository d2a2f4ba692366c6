"""What a search finds. Apart from `index.search`, so that a client of the server need not import faiss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Match:
    """An image near the query. `score` is the cosine; `metadata` are the columns of the source.

    `duplicates` are ids of images that were left out because they are all but the same as this one, best first.
    `percentile` is `Searcher.percentile` of the score, where the query was an image and somebody asked for it.
    """

    image_id: str
    score: float
    uri: str
    metadata: dict[str, Any]
    duplicates: tuple[str, ...] = ()
    percentile: float | None = None
