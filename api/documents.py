"""The JSON documents that a server answers with, as it writes and its clients read them.

The OpenAPI document is made from these types. Times are ISO 8601.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, WithJsonSchema
from pydantic_core import to_json
from typing_extensions import TypedDict  # pydantic refuses that of `typing` before Python 3.12

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
Uri = Annotated[
    str | None,
    Field(description="where the collection found the picture; null from a server that keeps locations to itself"),
]


class MatchOut(TypedDict):
    image_id: str
    score: Annotated[float, Field(description="cosine similarity: 1 is the same vector, higher is nearer")]
    uri: Uri
    metadata: dict[str, Any]
    picture: Annotated[str, Field(description="the picture's address on this server, relative to its root")]
    duplicates: Annotated[list[str], Field(description="ids left out because they are all but the same as this one")]
    percentile: Annotated[
        float | None,
        Field(
            description="of the collection's images, the percentage that score less with a random query of this kind: "
            "an image, a mix, a mix with negative weights, or words; null for vectors, and for words beside images"
        ),
    ]
    box: Annotated[
        list[float] | None,
        Field(
            description="in a collection with tiles: the part of the picture that matched, as x, y, width and height "
            "in shares of it; null if the whole picture is nearer"
        ),
    ]


class IndexOut(TypedDict):
    version: str
    ntotal: Annotated[int, Field(description="how many images the index holds")]


class ModelOut(TypedDict):
    id: Annotated[str, Field(description="its id on the hub, or the name of its folder")]
    revision: str | None
    fingerprint: str
    dim: int


class KindOut(TypedDict):
    """How well one kind of query is answered."""

    queries: Annotated[int, Field(description="how many it was measured with")]
    recall: Annotated[float, Field(description="the share of the 10 nearest that is found, against exact search")]
    width: Annotated[float, Field(description="how many times as far as for an image a search looks")]


class IndexDetailsOut(IndexOut):
    """The index version that answers, as it was measured when it was built."""

    collection: Annotated[str, Field(description="the collection's name")]
    model: ModelOut
    kind: Annotated[str, Field(description='"Flat" is exact; otherwise faiss factory strings')]
    created_at: Time
    recall: Annotated[
        dict[str, float], Field(description="by k: the share of the k nearest that is found, against exact search")
    ]
    kinds: Annotated[
        dict[str, KindOut], Field(description="by kind of query: image, mix, contrast (with negative weights) and text")
    ]
    latency_ms: Annotated[dict[str, float], Field(description="p50 and p99 of one query")]
    queries_per_second: Annotated[float, Field(description="when many are asked at once")]
    columns: Annotated[dict[str, str], Field(description="what a filter can name, with Arrow's names of the types")]


class FacetValueOut(TypedDict):
    value: str | int | bool
    count: Annotated[int, Field(description="of the images that were looked at and pass the filter")]
    filter: NotRequired[
        Annotated[dict[str, str], Field(description="of a time's year or month: the condition that lets it through")]
    ]


class FacetOut(TypedDict):
    values: Annotated[
        list[FacetValueOut], Field(description="the most frequent first; of a time, the last year or month")
    ]
    others: Annotated[int, Field(description="how many more values there are")]


class FacetsOut(TypedDict):
    """How many images have each value of the columns whose values images share."""

    index: IndexOut
    rows: Annotated[int, Field(description="images that were looked at: of very many, a sample")]
    columns: dict[str, FacetOut]


class SearchedOut(TypedDict):
    """How much of the index was looked through: all, unless `allow_partial` was asked for and a part did not answer."""

    rows: Annotated[int, Field(description="images in the parts that answered")]
    of: Annotated[int, Field(description="images in the index")]


class TimingOut(TypedDict):
    """Milliseconds, by stage; a stage that the query had no need of is left out."""

    fetch: NotRequired[float | None]
    decode: NotRequired[float | None]
    embed: NotRequired[float | None]
    search: NotRequired[float | None]
    total: float


class SearchResponse(TypedDict):
    matches: Annotated[list[MatchOut], Field(description="best first")]
    index: IndexOut
    searched: SearchedOut
    model: ModelOut
    timing_ms: TimingOut


class Found(TypedDict):
    """A search of a batch that has an answer."""

    ok: SearchResponse


class Embedded(TypedDict):
    """A vector at unit length."""

    ok: list[float]
    timing_ms: TimingOut


class Failed(TypedDict):
    """One of many that has a problem."""

    problem: Annotated[dict[str, Any], WithJsonSchema({"allOf": [{"$ref": "#/components/schemas/ProblemOut"}]})]


class BatchResponse(TypedDict):
    results: Annotated[list[Found | Failed], Field(description="one for each search, in their order")]


class EmbedResponse(TypedDict):
    index: Annotated[IndexOut, Field(description="what the vectors can be compared with")]
    model: ModelOut
    results: Annotated[list[Embedded | Failed], Field(description="one for each input, in their order")]


class VersionOut(TypedDict):
    """An index version. What its manifest says is null, and `damage` why, when that cannot be read."""

    version: str
    live: Annotated[bool, Field(description="whether CURRENT names it")]
    serving: Annotated[bool, Field(description="whether it is what this server answers from")]
    ntotal: int | None
    model: ModelOut | None
    recall: dict[str, float] | None
    kinds: Annotated[dict[str, KindOut] | None, Field(description="by kind of query")]
    created_at: Time | None
    damage: str | None


class VersionsOut(TypedDict):
    versions: Annotated[list[VersionOut], Field(description="oldest first")]


class SwitchedOut(TypedDict):
    """What CURRENT names now, and what this server answers from: the same unless `failure` says why not."""

    live: str
    before: Annotated[str, Field(description="what this server answered from until now")]
    serving: str
    failure: str | None
    skipped: Annotated[dict[str, str], Field(description="versions that a rollback passed over, and why")]


class ImageOut(TypedDict):
    """One image of the index."""

    image_id: str
    uri: Uri
    content_hash: str | None
    size: Annotated[int | None, Field(description="bytes of the file")]
    modified: Time | None
    etag: str | None
    width: Annotated[int | None, Field(description="pixels, as displayed")]
    height: int | None
    format: str | None
    metadata: dict[str, Any]
    picture: str


class CollectionOut(TypedDict):
    """A collection of the server. What its manifest says is null if it has no version, or that cannot be read."""

    name: str
    path: Annotated[str, Field(description="where its page and all its routes are, relative to the server's root")]
    state: Annotated[
        Literal["open", "closed", "unavailable"],
        Field(description='one that is "closed" is opened by the first request for it'),
    ]
    ntotal: int | None
    version: str | None
    model: ModelOut | None
    failure: Annotated[str | None, Field(description="why it is unavailable")]


class CollectionsOut(TypedDict):
    collections: Annotated[
        list[CollectionOut], Field(description="the first one answers requests without /collections/NAME")
    ]


class CollectionMatchOut(MatchOut):
    collection: str


class CollectionsSearchResponse(TypedDict):
    matches: Annotated[list[CollectionMatchOut], Field(description="of all collections, best first")]
    indexes: Annotated[dict[str, IndexOut], Field(description="by collection, the index version that answered")]
    searched: SearchedOut
    model: ModelOut
    timing_ms: TimingOut


def json_bytes(document: object) -> bytes:
    """JSON of any column's values: no NaN, bytes as URL-safe base64, times in ISO 8601."""
    return to_json(document, inf_nan_mode="null", bytes_mode="base64", fallback=str)
