"""A query, once its request has been read, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from embedder.identity import ModelIdentity
from index.match import Match
from index.queries import QueryKind, SearchOptions, Source, kind_of

if TYPE_CHECKING:
    import pandas as pd

MATCH_COLUMNS: Final = ("rank", "score", "percentile", "image_id", "uri", "duplicates", "box")
"""Of a table of matches; its other columns are metadata."""
UNLIKE: Final = 0.3
"""How much an image to be unlike weighs against one to be like, if nobody says. Like one drawn picture and unlike one
of another shape, 94% of first matches have the right shape; 95% without the latter, and 67% if it weighs 1.
"""
DISTINCT: Final = 0.98
"""Minimum cosine of duplicates by default."""

FITTING: Final = 99.995
"""The lowest percentile of a match that fits its words, if a caller names none. In the demo collection 99% of 200
captions find what they describe, and 97% of 200 for a shape, a colour or a subject that no image has find nothing.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One thing to be like, or unlike if `weight` is negative: the first of these fields that is given.

    `data` is a picture's file, `url` its address, `image_id` an image of the index, and `vector` `(dim,)` of any length
    but zero. `crop` is a part of the picture: left, top, width and height, as shares of the upright picture. `at` tells
    messages the place of a field in the request, for example "queries.2.{}".
    """

    data: bytes | None = None
    url: str | None = None
    text: str | None = None
    image_id: str | None = None
    vector: NDArray[np.floating[Any]] | None = None
    crop: tuple[float, ...] | None = None
    weight: float = 1.0
    at: str = "{}"

    @property
    def to_fetch(self) -> bool:
        """Whether a picture has to be fetched: that of a URL, or of an id of which a part is wanted."""
        return self.data is None and (self.url is not None or (self.image_id is not None and self.crop is not None))

    @property
    def picture_field(self) -> str:
        """The field of the request that gives the picture."""
        return self.at.format("url" if self.url is not None else "id" if self.image_id is not None else "image")

    @property
    def source(self) -> Source:
        """What it is made from."""
        if self.data is not None or self.url is not None:
            return "image"
        return "text" if self.text is not None else "image" if self.image_id is not None else "vector"


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """The mix of `parts`, and how many and which neighbours of it to return.

    `min_percentile`: leave out matches of a lower percentile. `allow_partial`: if a part of the index does not answer,
    answer from the others.
    """

    parts: tuple[Part, ...]
    k: int = 10
    options: SearchOptions = field(default_factory=SearchOptions)
    min_percentile: float | None = None
    allow_partial: bool = False

    @property
    def kind(self) -> QueryKind | None:
        """On which it depends how far the search looks, and whether matches have a percentile."""
        return kind_of([(part.source, part.weight) for part in self.parts])


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

    def to_pandas(self) -> "pd.DataFrame":
        """A row for each match: rank of these, score, percentile, image_id, uri, duplicates, box, then the metadata.

        A metadata column that has one of these names is called "metadata.<name>".
        """
        import pandas as pd

        rows = match_rows(self.matches)
        return pd.DataFrame(rows, columns=None if rows else list(MATCH_COLUMNS))


def match_rows(matches: Sequence[Match], first: int = 1) -> list[dict[str, Any]]:
    """A row of a table for each match, of which the first has the rank `first`."""
    return [
        {"rank": rank}
        | {name: getattr(match, name) for name in MATCH_COLUMNS[1:]}
        | {metadata_column(name): value for name, value in match.metadata.items()}
        for rank, match in enumerate(matches, start=first)
    ]


def metadata_column(name: str) -> str:
    """What a metadata column is called beside the others."""
    return f"metadata.{name}" if name in MATCH_COLUMNS else name
