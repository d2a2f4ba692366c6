"""The bodies and parameters of requests: searches, alone and in batches, items to embed, versions to promote."""

from typing import Annotated, Any, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from api.documents import SOURCE_FIELDS
from api.search.query import DISTINCT
from index.queries import MAX_DIVERSE, MAX_K

ONE_OF: Final = {
    "Example": SOURCE_FIELDS,
    "SearchRequest": (*SOURCE_FIELDS, "queries"),
    "CollectionsSearchRequest": ("url", "image", "text", "embedding", "queries"),
    "EmbedRequest": ("images", "texts", "urls"),
    "SearchParameters": ("url", "text", "id"),
}
"""By model, the fields of which exactly one is required."""

_MAX_FIELDS: Final = 1_000
_MAX_NAMES: Final = 64
_MAX_EXAMPLES: Final = 16
_MAX_BATCH: Final = 64
JSON_TEXT_FIELDS: Final = {
    "crop": "[0.5, 0, 0.5, 1]",
    "distinct": "true or 0.98",
    "fields": '["label"]',
    "filter": '{"label": "cat"}',
}
"""Fields that are JSON text in a form or URL, with an example of each."""
STRICT: Final = ConfigDict(strict=True, extra="forbid")


def _distinct(value: object) -> float | None:
    if value is None or value is False:
        return None
    if value is True:
        return DISTINCT
    if isinstance(value, int | float) and -1 <= value <= 1:
        return float(value)
    raise ValueError(f"a cosine from -1 to 1, or true for {DISTINCT}")


Crop = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]],
    Field(fail_fast=True),
    WithJsonSchema(
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 4, "maxItems": 4}
    ),
]
_CROP: Final = "use only this part of the picture: x, y, width and height, as fractions of the upright picture"


class Options(BaseModel):
    """Which neighbours to return."""

    # The maximum depends on the server's settings, so `api.http.body` checks both bounds.
    k: int = Field(default=10, json_schema_extra={"minimum": 1}, description="how many matches to return")
    offset: int = Field(
        default=0, ge=0, le=MAX_K, description="how many matches to skip; k + offset may be at most 10,000"
    )
    min_score: float | None = Field(
        default=None, ge=-1, le=1, allow_inf_nan=False, description="the lowest cosine of a match"
    )
    min_percentile: float | None = Field(
        default=None,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="the lowest percentile of a match; refused if the matches have none",
    )
    filter: dict[str, Any] | None = Field(
        default=None,
        description="a condition on columns, in MongoDB's syntax: a value, or $eq $ne $in $nin $gt $gte $lt $lte "
        "$exists $prefix, combined by $and $or $not; `GET /index` lists the columns",
        examples=[{"label": "cat", "width": {"$gte": 640}}],
    )
    distinct: Annotated[
        float | None,
        BeforeValidator(_distinct),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": -1, "maximum": 1}, {"type": "boolean"}]}),
    ] = Field(
        default=None,
        description=f"return only the best of images with this cosine or more between them; true means {DISTINCT}",
    )
    diversity: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="how much to prefer images that differ from the matches before them: 0 ranks by score alone, 1 by "
        f"difference alone; k + offset may then be at most {MAX_DIVERSE:,}",
    )
    fields: list[str] | None = Field(
        default=None,
        max_length=_MAX_FIELDS,
        description="metadata columns to return, and width, height, size and modified; by default all metadata",
        examples=[["label"]],
    )
    allow_partial: bool = Field(
        default=False,
        description="if a part of the index does not answer, search the others and say how many images they hold; "
        "by default such a search fails",
    )


class _ExactlyOne(BaseModel):
    """A document with exactly one of the fields in ONE_OF."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = ONE_OF[type(self).__name__]
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"exactly one of {', '.join(names[:-1])} and {names[-1]}")
        return self


class _UrlQueries(BaseModel):
    """Queries that can also be URL parameters."""

    url: str | None = Field(
        default=None, min_length=1, max_length=4_096, description="an http or https URL of a picture"
    )
    text: str | None = Field(
        default=None, max_length=1_000, description="what the picture shows, in words", examples=["a red star"]
    )
    id: str | None = Field(
        default=None, max_length=4_096, description="the id of an indexed image, which is left out of the matches"
    )


class QuerySource(_UrlQueries):
    """What to look for."""

    model_config = STRICT

    image: str | None = Field(
        default=None,
        description="a picture's file in base64, or a `data:` URL of it",
        json_schema_extra={"contentEncoding": "base64"},
    )
    embedding: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(fail_fast=True)] | None = Field(
        default=None, description="a vector with the model's number of dimensions and any norm"
    )
    crop: Crop | None = Field(default=None, description=f"with image, url or id: {_CROP}", examples=[[0.5, 0, 0.5, 1]])


class Example(QuerySource, _ExactlyOne):
    """One part of a mix: exactly one of url, image, text, id and embedding."""

    weight: float = Field(
        default=1.0, ge=-100, le=100, allow_inf_nan=False, description="negative: prefer images unlike this one"
    )


class SearchRequest(QuerySource, Options, _ExactlyOne):
    """A search: exactly one of url, image, text, id, embedding and queries, with options."""

    queries: list[Example] | None = Field(
        default=None,
        min_length=1,
        max_length=_MAX_EXAMPLES,
        description="a mix: the weighted sum of the examples' vectors, each at unit length",
    )


class CollectionNames(BaseModel):
    """Which collections to search."""

    collections: list[str] = Field(
        min_length=1,
        max_length=_MAX_NAMES,
        description="their names, as in `GET /collections`; all must have the same model",
    )


class CollectionsSearchRequest(SearchRequest, CollectionNames):
    """A search of several collections. It takes no id, because an id belongs to one collection; `distinct` applies
    within each.
    """


class _TextFields(BaseModel):
    """Fields of a form or a URL; those in JSON_TEXT_FIELDS are JSON text.

    An empty field counts as absent, because browsers send one for an input that nobody filled in.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, form: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in form.items() if value != ""}

    @field_validator(*JSON_TEXT_FIELDS, mode="before", check_fields=False)
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        try:
            return from_json(value, allow_inf_nan=False)
        except ValueError as error:
            raise ValueError(f"JSON text such as {JSON_TEXT_FIELDS[info.field_name or '']} ({error})") from error


class UploadFields(_TextFields, Options):
    """The form fields besides an uploaded `image`."""

    crop: Crop | None = Field(default=None, description=_CROP)


class FacetParameters(_TextFields):
    """Which images to count."""

    filter: dict[str, Any] | None = Field(default=None, description="the filter of a search")


class SearchParameters(_UrlQueries, UploadFields, _ExactlyOne):
    """A search in a URL: exactly one of url, text and id, with the options of a form."""

    @property
    def source(self) -> QuerySource:
        return QuerySource(url=self.url, text=self.text, id=self.id, crop=self.crop)


class BatchRequest(BaseModel):
    """Searches, each with its own result or problem."""

    model_config = STRICT

    # Validated one by one, so that an invalid search does not affect the others.
    searches: list[Any] = Field(min_length=1, max_length=_MAX_BATCH, description="SearchRequests")


_Items = Annotated[list[str] | None, Field(min_length=1, max_length=_MAX_BATCH)]


class EmbedRequest(_ExactlyOne):
    """Items to embed: exactly one of images, texts and urls."""

    model_config = STRICT

    images: _Items = Field(default=None, description="pictures' files in base64")
    texts: _Items = None
    urls: _Items = Field(default=None, description="http or https URLs of pictures")


class PromoteRequest(BaseModel):
    """The version to make live."""

    model_config = STRICT

    version: str = Field(pattern=r"^[0-9]{6}$", examples=["000012"])
