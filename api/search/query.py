"""A query, once its request has been read, and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from embedder.identity import ModelIdentity
from index.match import Match
from index.query_vectors import SearchOptions

DISTINCT: Final = 0.98
"""The cosine from which on images count as duplicates if a caller names none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One thing to be like, or unlike if `weight` is negative: the first of these fields that is given.

    `data` is a picture's file, `url` its address, `image_id` an image of the index, and `vector` `(dim,)` of any length
    but zero. `at` tells messages the place of a field in the request, for example "queries.2.{}".
    """

    data: bytes | None = None
    url: str | None = None
    text: str | None = None
    image_id: str | None = None
    vector: NDArray[np.float32] | None = None
    weight: float = 1.0
    at: str = "{}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """The mix of `parts`, and how many and which neighbours of it to return. `fields` None: all metadata columns.

    `allow_partial`: if a part of the index does not answer, answer from the others.
    """

    parts: tuple[Part, ...]
    k: int = 10
    options: SearchOptions = field(default_factory=SearchOptions)
    fields: tuple[str, ...] | None = None
    allow_partial: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Matches, best first, with the index version and model.

    `searched` of the `ntotal` images were searched: fewer than all if a part of the index did not answer and the caller
    allowed that. `timing_ms`: fetch, decode and embed, if the query needed them, search and total.
    """

    matches: list[Match]
    version: str
    ntotal: int
    searched: int
    model: ModelIdentity
    timing_ms: Mapping[str, float]
