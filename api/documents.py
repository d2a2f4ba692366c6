"""The JSON documents of a server's answers, and the fields of its queries, for the server and its client.

The OpenAPI document is generated from these types. Times are ISO 8601.
"""

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired
from urllib.parse import unquote

from pydantic import ConfigDict, Field, WithJsonSchema, with_config
from pydantic_core import to_json
from typing_extensions import TypedDict  # pydantic refuses `typing.TypedDict` before Python 3.12

from index.matches import Match, Uri

SOURCE_FIELDS: Final = ("url", "image", "text", "id", "embedding")
"""The fields that say what to look for; an example has exactly one of them."""

MAX_BATCH: Final = 64
"""Items of a batch."""
MAX_JSON_VALUES: Final = 2**18
"""Values in a JSON body: 64 vectors of 4,096. Parsing holds the GIL, for 20 ms at this limit; it would be a second if
only bytes were limited.
"""

Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]

_URL_SAFE: Final = str.maketrans("-_", "+/")


def decode_base64(text: str) -> bytes:
    """The bytes of base64 in its usual forms: a `data:` URL, wrapped, with the URL-safe alphabet, without padding.

    Raises ValueError for anything else.
    """
    if text[:5].lower() == "data:":
        header, _, text = text.partition(",")
        if not header.lower().rstrip().endswith(";base64"):
            raise ValueError("the data: URL does not say ;base64")
        text = unquote(text)
    text = "".join(text.split()).translate(_URL_SAFE)
    if bare := text.rstrip("="):
        text = bare + "=" * (-len(bare) % 4)
    return base64.b64decode(text, validate=True)


@with_config(ConfigDict(json_schema_serialization_defaults_required=True))
@dataclass(frozen=True, kw_only=True)
class MatchOut(Match):
    """An image near the query."""

    picture: Annotated[str, Field(description="the picture's address on this server, relative to its root")]


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

    queries: Annotated[int, Field(description="how many queries this was measured with")]
    recall: Annotated[float, Field(description="the share of the 10 nearest images that a search finds")]
    width: Annotated[float, Field(description="how far a search of this kind looks, relative to one for an image")]


class IndexDetailsOut(IndexOut):
    """The index version that answers, with measurements from its build."""

    collection: Annotated[str, Field(description="the collection's name")]
    model: ModelOut
    kind: Annotated[str, Field(description='"Flat" is exact search; otherwise factory strings of faiss')]
    created_at: Time
    recall: Annotated[
        dict[str, float], Field(description="by k: the share of the k nearest images that a search finds")
    ]
    kinds: Annotated[
        dict[str, KindOut], Field(description="by kind of query: image, mix, contrast (with negative weights) and text")
    ]
    latency_ms: Annotated[dict[str, float], Field(description="p50 and p99 of one query")]
    queries_per_second: Annotated[float, Field(description="measured with concurrent queries")]
    columns: Annotated[dict[str, str], Field(description="columns that filters can use, with Arrow's type names")]
    max_k: Annotated[int, Field(description="the largest k that this server accepts")]
    embeds_texts: Annotated[bool, Field(description="whether the model takes searches by words")]
    has_words: Annotated[bool, Field(description="whether searches by words look for them in text")]


class FacetValueOut(TypedDict):
    value: str | int | bool
    count: Annotated[int, Field(description="how many of the counted images that pass the filter have this value")]
    filter: NotRequired[
        Annotated[dict[str, str], Field(description="for a year or month of a time: the filter that selects it")]
    ]


class FacetOut(TypedDict):
    values: Annotated[list[FacetValueOut], Field(description="most frequent first; for a time, latest first")]
    others: Annotated[int, Field(description="how many more values there are")]


class FacetsOut(TypedDict):
    """How many images have each value, for columns whose values recur."""

    index: IndexOut
    rows: Annotated[int, Field(description="how many images were counted; a sample if there are very many")]
    columns: dict[str, FacetOut]


class SearchedOut(TypedDict):
    """How much of the index was searched: all of it, unless a part did not answer and `allow_partial` was set."""

    rows: Annotated[int, Field(description="images in the parts that answered")]
    of: Annotated[int, Field(description="images in the index")]


class TimingOut(TypedDict):
    """Milliseconds by stage. Stages that the query did not need are left out."""

    fetch: NotRequired[float | None]
    decode: NotRequired[float | None]
    embed: NotRequired[float | None]
    search: NotRequired[float | None]
    total: float


class PageOut(TypedDict):
    """How many images a search found in all, and how to read on."""

    first: Annotated[int, Field(description="the rank of the first match of this page")]
    total: Annotated[int, Field(description="how many images pass the filter and the bounds of scores, on all pages")]
    exact: Annotated[
        bool,
        Field(description="whether `total` is exact; otherwise an approximate search found these images"),
    ]
    groups: Annotated[int | None, Field(description="with `group_by`: in how many groups; null without")]
    facets: Annotated[
        dict[str, FacetOut] | None, Field(description="the values of the columns that `facets` names; null without")
    ]
    cursor: Annotated[str | None, Field(description="`cursor` of a request for the next page; null on the last")]


class SearchResponse(PageOut):
    matches: Annotated[list[MatchOut], Field(description="a page, best first or as `sort` says")]
    index: IndexOut
    searched: SearchedOut
    model: ModelOut
    timing_ms: TimingOut


class Found(TypedDict):
    """A search of a batch that succeeded."""

    ok: SearchResponse


class Embedded(TypedDict):
    """A vector at unit length."""

    ok: list[float]
    timing_ms: TimingOut


class FieldError(TypedDict):
    field: str
    expected: str
    got: str


class ProblemOut(TypedDict):
    """An error, in the format of RFC 9457."""

    type: Annotated[str, Field(description="identifies the kind of error; never changes its meaning")]
    title: str
    status: int
    detail: str
    field: NotRequired[
        Annotated[str, Field(description='the field with the rejected picture or id: "image" or "queries.2.url"')]
    ]
    reason: NotRequired[Annotated[str, Field(description="why a picture was rejected")]]
    stage: NotRequired[Annotated[str, Field(description='"fetch", "decode" or "embed"')]]
    retryable: NotRequired[Annotated[bool, Field(description="whether the same request may work later")]]
    errors: NotRequired[list[FieldError]]
    retry_after_s: NotRequired[
        Annotated[float, Field(description="as in the header Retry-After, with fractions of a second")]
    ]


class Failed(TypedDict):
    """An item of a batch that failed."""

    problem: ProblemOut


class BatchResponse(TypedDict):
    results: Annotated[list[Found | Failed], Field(description="one per search, in the order of the request")]


class EmbedResponse(TypedDict):
    index: Annotated[IndexOut, Field(description="the index that the vectors can be compared with")]
    model: ModelOut
    results: Annotated[list[Embedded | Failed], Field(description="one per input, in the order of the request")]


class VersionOut(TypedDict):
    """An index version. If its manifest cannot be read, `damage` says why, and the manifest's values are null."""

    version: str
    live: Annotated[bool, Field(description="whether CURRENT names it")]
    serving: Annotated[bool, Field(description="whether this server answers from it")]
    ntotal: int | None
    model: ModelOut | None
    recall: dict[str, float] | None
    kinds: Annotated[dict[str, KindOut] | None, Field(description="by kind of query")]
    created_at: Time | None
    damage: str | None


class VersionsOut(TypedDict):
    versions: Annotated[list[VersionOut], Field(description="oldest first")]


class SwitchedOut(TypedDict):
    """The version that CURRENT names now, and the one this server answers from; if they differ, `failure` says why."""

    live: str
    before: Annotated[str, Field(description="the version that this server answered from until now")]
    serving: str
    failure: str | None
    skipped: Annotated[dict[str, str], Field(description="versions that a rollback skipped, and why")]


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
    """A collection of the server. Values from its manifest are null if there is none or it cannot be read."""

    name: str
    path: Annotated[str, Field(description="prefix of its page and routes, relative to the server's root")]
    state: Annotated[
        Literal["open", "closed", "unavailable"],
        Field(description='a "closed" collection is opened by the first request for it'),
    ]
    ntotal: int | None
    version: str | None
    model: ModelOut | None
    failure: Annotated[str | None, Field(description="why the collection is unavailable")]


class CollectionsOut(TypedDict):
    collections: Annotated[
        list[CollectionOut], Field(description="the first one answers requests without /collections/NAME")
    ]


@with_config(ConfigDict(json_schema_serialization_defaults_required=True))
@dataclass(frozen=True, kw_only=True)
class CollectionMatchOut(MatchOut):
    """An image near the query, in one of several collections."""

    collection: str


class CollectionsSearchResponse(PageOut):
    matches: Annotated[
        list[CollectionMatchOut], Field(description="a page, of all collections, best first or as `sort` says")
    ]
    indexes: Annotated[dict[str, IndexOut], Field(description="by collection, the index version that answered")]
    searched: SearchedOut
    model: Annotated[ModelOut | None, Field(description="null if the collections have different models")]
    timing_ms: TimingOut


def json_bytes(document: object) -> bytes:
    """JSON of any column's values: NaN and infinity as null, bytes as URL-safe base64, times in ISO 8601."""
    return to_json(document, inf_nan_mode="null", bytes_mode="base64", fallback=str)
