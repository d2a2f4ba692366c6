"""The result of a search. Not in `index.search`, so that a client of the server need not import faiss."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

# Generators of clients do not agree on tuples.
_FOUR_NUMBERS: Final = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}

Uri = Annotated[
    str | None,
    Field(
        description="where the collection found the picture; null if the server hides locations, and for a vector that "
        "was imported without an address"
    ),
]


@dataclass(frozen=True, kw_only=True)
class Match:
    """An image near the query. Answers of a server, tables and the terminal have these fields, in this order."""

    score: Annotated[
        float | None, Field(description="cosine similarity; 1 means the same vector; null without a query")
    ]
    percentile: Annotated[
        float | None,
        Field(
            description="percentage of the collection's images that score lower for a random query of this kind: an "
            "image, a mix, a mix with negative weights, or words; null for vectors, and for words mixed with images"
        ),
    ] = None
    image_id: str
    uri: Uri
    duplicates: Annotated[
        tuple[str, ...],
        Field(description="ids of near-duplicates of this match, best first, which were left out"),
    ] = ()
    box: Annotated[
        Annotated[tuple[float, float, float, float], WithJsonSchema(_FOUR_NUMBERS)] | None,
        Field(
            description="in a collection with tiles: the part of the picture that matched, as x, y, width and height "
            "as fractions of the picture; null if the whole picture matches better"
        ),
    ] = None
    words: Annotated[
        Mapping[str, tuple[str, ...]] | None,
        Field(description="in a search by text: the words that matched, by column; null if none did, or none counted"),
    ] = None
    vector_rank: Annotated[
        int | None,
        Field(
            description="in a search by text and words: the rank by score alone; null if only its words brought it up"
        ),
    ] = None
    group: Annotated[
        Any, Field(description="with `group_by`: the value that the group's images share, or the day of a time")
    ] = None
    group_size: Annotated[
        int | None, Field(description="with `group_by`: how many images the group has; this is the first of them")
    ] = None
    metadata: Annotated[dict[str, Any], Field(description="columns of the source")]


MATCH_COLUMNS: Final = ("rank", *(field.name for field in fields(Match) if field.name != "metadata"))
"""The columns of a table of matches besides the metadata."""

ROW_FIELDS: Final = ("uri",)
"""The fields of a match that are columns of its row. Shards send these and the metadata with their hits."""

SEARCHES: Final = "searches"
"""The column with the names of the saved searches that an image matches; the annotation and the predictor of it."""
