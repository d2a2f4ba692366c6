"""The documents that are answered."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Self
from urllib.parse import quote

from pydantic import BaseModel, Field, WithJsonSchema

from api.access.locations import redact, shown_model_id
from api.search.plain import plain
from api.search.result import SearchResult
from embedder.identity import ModelIdentity
from index.collection.records import ModelRecord, VersionManifest
from index.collection.rows import FIXED
from index.match import Match
from index.versions.promotion import Version

LOCATION_COLUMNS: Final = frozenset({"uri"})
"""Columns of every row that say where its picture lies."""

_URI: Final = "where the collection found the picture; null from a server that keeps locations to itself"


def _is_none(value: object) -> bool:
    return value is None


class MatchOut(BaseModel):
    image_id: str
    score: float = Field(description="cosine similarity: 1 is the same vector, higher is nearer")
    uri: str | None = Field(description=_URI)
    metadata: dict[str, Any]
    picture: str = Field(description="the picture's address on this server, relative to its root")
    duplicates: list[str] = Field(description="ids left out because they are all but the same as this one")
    percentile: float | None = Field(
        description="of random pairs of the collection's images, the percentage less alike; null unless one picture "
        "was asked for"
    )


class IndexOut(BaseModel):
    version: str
    ntotal: int = Field(description="how many images the index holds")


class ModelOut(BaseModel):
    id: str = Field(description="its id on the hub, or the name of its folder")
    revision: str | None
    fingerprint: str
    dim: int

    @classmethod
    def of(cls, model: ModelIdentity, locations: bool) -> Self:
        return cls(
            id=shown_model_id(model.model_id, locations),
            revision=model.revision,
            fingerprint=model.fingerprint,
            dim=model.dim,
        )

    @classmethod
    def of_record(cls, record: ModelRecord, locations: bool) -> Self:
        return cls(**{**record.model_dump(), "id": shown_model_id(record.id, locations)})


class IndexDetailsOut(IndexOut):
    """The index version that answers, as it was measured when it was built."""

    model: ModelOut
    kind: str = Field(description='"Flat" is exact; otherwise faiss factory strings')
    created_at: datetime
    recall: dict[str, float] = Field(description="by k: the share of the k nearest that is found, against exact search")
    latency_ms: dict[str, float] = Field(description="p50 and p99 of one query")
    queries_per_second: float = Field(description="when many are asked at once")
    columns: dict[str, str] = Field(description="what a filter can name, with Arrow's names of the types")

    @classmethod
    def of(cls, manifest: VersionManifest, columns: dict[str, str], locations: bool) -> Self:
        return cls(
            version=manifest.version,
            ntotal=manifest.ntotal,
            model=ModelOut.of_record(manifest.model, locations),
            kind=manifest.kind,
            created_at=manifest.created_at,
            recall=manifest.recall,
            latency_ms=manifest.latency_ms,
            queries_per_second=manifest.queries_per_second,
            columns={name: kind for name, kind in columns.items() if locations or name not in LOCATION_COLUMNS},
        )


class SearchedOut(BaseModel):
    """How much of the index was looked through: all, unless `allow_partial` was asked for and a part did not answer."""

    rows: int = Field(description="images in the parts that answered")
    of: int = Field(description="images in the index")


class TimingOut(BaseModel):
    """Milliseconds, by stage; a stage that the query had no need of is left out."""

    fetch: float | None = Field(default=None, exclude_if=_is_none)
    decode: float | None = Field(default=None, exclude_if=_is_none)
    embed: float | None = Field(default=None, exclude_if=_is_none)
    search: float | None = Field(default=None, exclude_if=_is_none)
    total: float

    @classmethod
    def of(cls, milliseconds: Mapping[str, float]) -> Self:
        return cls(**{stage: round(ms, 3) for stage, ms in milliseconds.items()})


class SearchResponse(BaseModel):
    matches: list[MatchOut] = Field(description="best first")
    index: IndexOut
    searched: SearchedOut
    model: ModelOut
    timing_ms: TimingOut

    @classmethod
    def of(cls, result: SearchResult, locations: bool) -> Self:
        return cls(
            matches=[_match_out(match, locations) for match in result.matches],
            index=IndexOut(version=result.version, ntotal=result.ntotal),
            searched=SearchedOut(rows=result.searched, of=result.ntotal),
            model=ModelOut.of(result.model, locations),
            timing_ms=TimingOut.of(result.timing_ms),
        )


class Found(BaseModel):
    """A search of a batch that has an answer."""

    ok: SearchResponse


class Embedded(BaseModel):
    """A vector at unit length."""

    ok: list[float]
    timing_ms: TimingOut


class Failed(BaseModel):
    """One of many that has a problem."""

    problem: Annotated[dict[str, Any], WithJsonSchema({"allOf": [{"$ref": "#/components/schemas/ProblemOut"}]})]


class BatchResponse(BaseModel):
    results: list[Found | Failed] = Field(description="one for each search, in their order")


class EmbedResponse(BaseModel):
    index: IndexOut = Field(description="what the vectors can be compared with")
    model: ModelOut
    results: list[Embedded | Failed] = Field(description="one for each input, in their order")


class VersionOut(BaseModel):
    """An index version. What its manifest says is null, and `damage` why, when that cannot be read."""

    version: str
    live: bool = Field(description="whether CURRENT names it")
    serving: bool = Field(description="whether it is what this server answers from")
    ntotal: int | None
    model: ModelOut | None
    recall: dict[str, float] | None
    created_at: datetime | None
    damage: str | None

    @classmethod
    def of(cls, version: Version, serving: str, locations: bool) -> Self:
        manifest = version.manifest
        return cls(
            version=version.name,
            live=version.live,
            serving=version.name == serving,
            ntotal=manifest and manifest.ntotal,
            model=manifest and ModelOut.of_record(manifest.model, locations),
            recall=manifest and manifest.recall,
            created_at=manifest and manifest.created_at,
            damage=version.damage and redact(version.damage, show=locations),
        )


class VersionsOut(BaseModel):
    versions: list[VersionOut] = Field(description="oldest first")


class SwitchedOut(BaseModel):
    """What CURRENT names now, and what this server answers from: the same unless `failure` says why not."""

    live: str
    before: str = Field(description="what this server answered from until now")
    serving: str
    failure: str | None
    skipped: dict[str, str] = Field(description="versions that a rollback passed over, and why")


class ImageOut(BaseModel):
    """One image of the index."""

    image_id: str
    uri: str | None = Field(description=_URI)
    content_hash: str | None
    size: int | None = Field(description="bytes of the file")
    modified: datetime | None
    etag: str | None
    width: int | None = Field(description="pixels, as displayed")
    height: int | None
    format: str | None
    metadata: dict[str, Any]
    picture: str

    @classmethod
    def of(cls, row: Mapping[str, Any], locations: bool) -> Self:
        hidden = frozenset() if locations else LOCATION_COLUMNS
        known = {name: None if name in hidden else row.get(name) for name in cls.model_fields if name in FIXED}
        metadata = {name: plain(value) for name, value in row.items() if name not in FIXED}
        return cls(**known, metadata=metadata, picture=picture_path(row["image_id"]))


class FieldError(BaseModel):
    field: str
    expected: str
    got: str


class ProblemOut(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="stable; tell errors apart by it")
    title: str
    status: int
    detail: str
    field: str | None = Field(default=None, description='where the rejected picture stood: "image", "queries.2.url"')
    reason: str | None = Field(default=None, description="why a picture was rejected")
    stage: str | None = Field(default=None, description='"fetch" or "decode"')
    retryable: bool | None = Field(default=None, description="whether the same request may work later")
    errors: list[FieldError] | None = None
    retry_after_s: float | None = Field(default=None, description="as the header Retry-After")


def picture_path(image_id: str) -> str:
    """The address of an image's picture, relative to the server's root."""
    return f"/picture?id={quote(image_id)}"


def _match_out(match: Match, locations: bool) -> MatchOut:
    return MatchOut(
        image_id=match.image_id,
        score=match.score,
        uri=match.uri if locations else None,
        metadata={name: plain(value) for name, value in match.metadata.items()},
        picture=picture_path(match.image_id),
        duplicates=list(match.duplicates),
        percentile=match.percentile,
    )
