"""The bodies and parameters of requests: searches, alone and in batches, items to embed, versions to promote."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Required, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    with_config,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, core_schema
from typing_extensions import TypedDict

from api.documents import MAX_BATCH, SOURCE_FIELDS
from api.http.problem_responses import MAX_ERRORS, field_error, wrong_document
from api.problems import abbreviate, invalid_fields
from api.search.query import QueryOptions, Weighted
from index.collection.records.bounds import VersionName
from index.filters.plain import parse_strictly

_MAX_NAMES: Final = 64
_MAX_EXAMPLES: Final = 16
_STRICT: Final = ConfigDict(strict=True, extra="forbid")
_TEXTS: Final = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class ExactlyOne:
    """Of these fields of an object, exactly one is there and not null; or none, if it is `optional`."""

    names: tuple[str, ...]
    optional: bool = False

    def __get_pydantic_core_schema__(self, kind: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(kind))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        owner = handler.resolve_ref_schema(schema)
        kinds = {name: owner["properties"][name]["anyOf"][0]["type"] for name in self.names}
        one_of = [
            {"title": name, "required": [name], "properties": {name: {"type": kind}}} for name, kind in kinds.items()
        ]
        if self.optional:
            absent = {"enum": [None]}
            one_of.append({"title": "none", "properties": dict.fromkeys(self.names, absent)})
        owner |= {"if": {"oneOf": one_of}, "else": False}  # generators of clients make models of a `oneOf` by itself
        return schema

    def _check(self, fields: dict[str, Any]) -> dict[str, Any]:
        if sum(fields.get(name) is not None for name in self.names) not in ((0, 1) if self.optional else (1,)):
            number = "at most" if self.optional else "exactly"
            raise ValueError(f"{number} one of {', '.join(self.names[:-1])} and {self.names[-1]}")
        return fields


M = TypeVar("M")


class Document(Generic[M]):
    """A kind of document: `fields` of a TypedDict, of some of which it may have or needs exactly one."""

    def __init__(self, kind: type[M], one: ExactlyOne | None = None, *, source: str = "body") -> None:
        self.name = kind.__name__
        self._source = source
        self.fields = frozenset(kind.__annotations__)
        annotation: Any = Annotated[kind, one] if one else kind
        self.adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def read(self, document: object, *other_fields: str, at: str = "") -> M:
        """The document, validated. Raises Problem, of the field `at` if it is known. `other_fields` are allowed ones
        that are read elsewhere.
        """
        # Each mistake would be listed, and take a thousand times its own size.
        if isinstance(document, dict) and len(document) > MAX_ERRORS:
            raise wrong_document(f"{len(document):,} fields")
        try:
            read: M = self.adapter.validate_python(document)
        except ValidationError as error:
            if (count := error.error_count()) > MAX_ERRORS:
                raise wrong_document(f"{count:,} mistakes") from error
            known = {*self.fields, *other_fields}
            wrong = [self._field_error(each, known, at) for each in error.errors(include_url=False)]
            raise invalid_fields(wrong) from error
        return read

    def _field_error(self, detail: ErrorDetails, known: Iterable[str], at: str) -> dict[str, str]:
        location = detail["loc"]
        fields = Example.__annotations__ if location[:1] == ("queries",) else known
        return field_error(detail, at or ".".join(map(str, location)) or self._source, fields)


def read_texts(form: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a form or a URL, those in JSON_TEXT_FIELDS read as JSON. Raises Problem."""
    fields = dict(form)
    wrong = []
    for name, example in JSON_TEXT_FIELDS.items():
        if isinstance(text := fields.get(name), str):
            try:
                fields[name] = parse_strictly(text)
            except ValueError as error:
                wrong.append({"field": name, "expected": f"JSON text such as {example} ({error})", "got": text})
    if wrong:
        raise invalid_fields([{**error, "got": abbreviate(error["got"])} for error in wrong])
    return fields


_Numbers = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(fail_fast=True)]
_Crop = Annotated[
    _Numbers,
    WithJsonSchema(
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 4, "maxItems": 4}
    ),
]
Crop = Annotated[
    _Crop | None,
    Field(
        description="use only this part of the picture: x, y, width and height, as fractions of the upright picture",
        examples=[[0.5, 0, 0.5, 1]],
    ),
]


class _UrlSource(TypedDict, total=False):
    """Queries that can also be URL parameters."""

    url: Annotated[str | None, Field(min_length=1, max_length=4_096, description="an http or https URL of a picture")]
    text: Annotated[
        str | None, Field(max_length=1_000, description="what the picture shows, in words", examples=["a red star"])
    ]
    id: Annotated[
        str | None, Field(max_length=4_096, description="the id of an indexed image, which is left out of the matches")
    ]
    crop: Crop


@with_config(_STRICT)
class QuerySource(_UrlSource, total=False):
    """What to look for."""

    image: Annotated[
        str | None,
        Field(
            description="a picture's file in base64, or a `data:` URL of it",
            json_schema_extra={"contentEncoding": "base64"},
        ),
    ]
    embedding: Annotated[
        _Numbers | None, Field(description="a vector with the model's number of dimensions and any norm")
    ]


@with_config(_STRICT)
class Example(QuerySource, Weighted, total=False):
    """One part of a mix: exactly one of url, image, text, id and embedding."""


@with_config(_STRICT)
class SearchRequest(QuerySource, QueryOptions, total=False):
    """A search: one of url, image, text, id, embedding and queries, with options. With none of them it lists the images
    that pass the filter.
    """

    queries: Annotated[
        list[Annotated[Example, ExactlyOne(SOURCE_FIELDS)]] | None,
        Field(
            min_length=1,
            max_length=_MAX_EXAMPLES,
            description="a mix: the weighted sum of the examples' vectors, each at unit length",
        ),
    ]


@with_config(_STRICT)
class CollectionsSearchRequest(SearchRequest, total=False):
    """A search of several collections, as one if they have one model. It takes no id, because an id belongs to one
    collection.
    """

    collections: Required[
        Annotated[
            list[str],
            Field(
                min_length=1,
                max_length=_MAX_NAMES,
                description="their names, as in `GET /collections`",
            ),
        ]
    ]


@with_config(_TEXTS)
class UploadFields(QueryOptions, total=False):
    """The form fields besides an uploaded `image`."""

    crop: Crop


@with_config(_TEXTS)
class SearchParameters(_UrlSource, QueryOptions, total=False):
    """A search in a URL: at most one of url, text and id, with the options of a form."""


@with_config(_TEXTS)
class FacetParameters(TypedDict, total=False):
    """Which images to count."""

    filter: Annotated[dict[str, Any] | None, Field(description="the filter of a search")]


@with_config(_STRICT)
class BatchRequest(TypedDict):
    """Searches, each with its own result or problem."""

    # Validated one by one, so that an invalid search does not affect the others.
    searches: Annotated[
        list[Annotated[Any, WithJsonSchema({"allOf": [{"$ref": "#/components/schemas/SearchRequest"}]})]],
        Field(min_length=1, max_length=MAX_BATCH),
    ]


_Items = Annotated[list[str], Field(min_length=1, max_length=MAX_BATCH)]


@with_config(_STRICT)
class EmbedRequest(TypedDict, total=False):
    """Items to embed: exactly one of images, texts and urls."""

    images: Annotated[_Items | None, Field(description="pictures' files in base64")]
    texts: _Items | None
    urls: Annotated[_Items | None, Field(description="http or https URLs of pictures")]


@with_config(_STRICT)
class PromoteRequest(TypedDict):
    """The version to make live."""

    version: Annotated[VersionName, Field(examples=["000012"])]


def _one_source(kind: type, *, but: str = "") -> ExactlyOne:
    """At most one of the fields of a search that say what to look for."""
    names = [name for name in (*SOURCE_FIELDS, "queries") if name in kind.__annotations__ and name != but]
    return ExactlyOne(tuple(names), optional=True)


SEARCH: Final = Document(SearchRequest, _one_source(SearchRequest))
BATCH: Final = Document(BatchRequest)
EMBED: Final = Document(EmbedRequest, ExactlyOne(("images", "texts", "urls")))
ITEM: Final = Document(QuerySource)
COLLECTIONS_SEARCH: Final = Document(CollectionsSearchRequest, _one_source(CollectionsSearchRequest, but="id"))
UPLOAD: Final = Document(UploadFields)
SEARCH_PARAMETERS: Final = Document(SearchParameters, _one_source(SearchParameters), source="URL")
FACET_PARAMETERS: Final = Document(FacetParameters)
PROMOTE: Final = Document(PromoteRequest)


def _is_json_text(schema: Mapping[str, Any]) -> bool:
    """Whether a form or URL has a field as JSON text: a list, an object, or one of several types."""
    kinds = [each for each in schema.get("anyOf", [schema]) if each["type"] != "null"]
    return len(kinds) > 1 or kinds[0]["type"] in ("array", "object")


JSON_TEXT_FIELDS: Final = {
    name: " or ".join(map(json.dumps, schema["examples"]))
    for name, schema in SEARCH_PARAMETERS.adapter.json_schema()["properties"].items()
    if _is_json_text(schema)
}
"""Fields that are JSON text in a form or URL, with examples of each."""
