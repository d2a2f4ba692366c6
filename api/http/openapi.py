"""Describes to OpenAPI what routes do not declare by their types: bodies that they read themselves, with examples, and
what all routes have in common.
"""

from functools import cache
from typing import Any, Final

from fastapi import FastAPI, Security
from fastapi.params import Depends
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import TypeAdapter

from api.http.middleware.every_request import API_VERSION, VERSION
from api.http.parameters import check_parameters
from api.http.problem_responses import problem_docs
from api.http.requests import BATCH, COLLECTIONS_SEARCH, EMBED, JSON_TEXT_FIELDS, PROMOTE, SEARCH, UPLOAD, Document
from api.problems import COMMON_PROBLEMS, GUARDED_PROBLEMS, KEY_PROBLEMS, Problem

_PICTURE: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
# Except those with a URL or an id, the examples work on every server.
_SEARCHES: Final[dict[str, dict[str, Any]]] = {
    "by URL": {"url": "https://example.com/cat.jpg", "k": 5},
    "by a picture's bytes": {"image": _PICTURE},
    "by text": {"text": "a striped red star"},
    "more like an image of the index": {"id": "shapes/star-0001.png", "distinct": True},
    "with a filter, the second page": {
        "text": "a red star",
        "filter": {"format": {"$in": ["jpeg", "png"]}, "width": {"$gte": 64}},
        "min_score": -0.2,
        "k": 20,
        "offset": 20,
        "fields": [],
    },
    "a mix": {
        "queries": [{"image": _PICTURE}, {"text": "at night", "weight": 0.5}, {"text": "indoors", "weight": -0.3}]
    },
}


def json_body(document: Document[Any], examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    named_examples = {name: {"value": value} for name, value in examples.items()}
    schema = {"$ref": f"#/components/schemas/{document.name}"}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": named_examples}}}


BATCH_BODY: Final = json_body(
    BATCH,
    {"two searches": {"searches": [{"text": "a red star"}, {"url": "https://example.com/cat.jpg", "k": 5}]}},
)
EMBED_BODY: Final = json_body(
    EMBED, {"texts": {"texts": ["a red star", "a blue ring"]}, "URLs": {"urls": ["https://example.com/cat.jpg"]}}
)
COLLECTIONS_BODY: Final = json_body(
    COLLECTIONS_SEARCH,
    {"words": {"collections": ["photos", "scans"], "text": "a red star", "k": 5}},
)
PROMOTE_BODY: Final = json_body(PROMOTE, {"a version": {"version": "000012"}})


def _form_fields(document: Document[Any]) -> dict[str, dict[str, Any]]:
    """The schemas of a form's fields. A form has no null: an unused field is left out, or empty."""
    fields: dict[str, dict[str, Any]] = document.adapter.json_schema()["properties"]
    for name, schema in fields.items():
        if name in JSON_TEXT_FIELDS:
            text = f"JSON text such as {JSON_TEXT_FIELDS[name]}: {schema['description']}"
            # No contentMediaType, for which Swagger UI would show a file chooser.
            fields[name] = {"type": "string", "description": text}
        elif "anyOf" in schema:
            schema |= schema.pop("anyOf")[0]
    return fields


_FILE: Final = {"type": "string", "format": "binary"}
_FORM: Final = {
    "type": "object",
    "required": ["image"],
    "additionalProperties": False,
    "properties": {"image": _FILE, **_form_fields(UPLOAD)},
}
SEARCH_BODY: Final = json_body(SEARCH, _SEARCHES)
# A picture alone has its options in the URL.
SEARCH_BODY["content"] |= {"image/*": {"schema": _FILE}, "multipart/form-data": {"schema": _FORM}}


def parameters_of(document: Document[Any]) -> list[dict[str, Any]]:
    """The fields of a document as query parameters."""
    return [
        {"name": name, "in": "query", "schema": schema, "description": schema.pop("description")}
        for name, schema in _form_fields(document).items()
    ]


# The middleware checks the key.
_KEY: Final = (
    Security(HTTPBearer(scheme_name="bearer", auto_error=False)),
    Security(APIKeyHeader(name="X-API-Key", scheme_name="header", auto_error=False)),
)


def guarded_routes(*, needs_key: bool) -> dict[str, Any]:
    """The arguments of `include_router` for routes that are limited, and may need a key."""
    if needs_key:
        return open_routes(*GUARDED_PROBLEMS, *KEY_PROBLEMS, dependencies=_KEY)
    return open_routes(*GUARDED_PROBLEMS)


def open_routes(*problems: type[Problem], dependencies: tuple[Depends, ...] = ()) -> dict[str, Any]:
    """The same for routes that anybody may call, which have these problems and dependencies besides those of all."""
    version = {"schema": {"type": "string", "enum": [VERSION]}, "description": "the API version of this answer"}
    answer = {"headers": {API_VERSION: {**version, "required": True}}}
    return {
        "responses": {200: answer, **problem_docs(*COMMON_PROBLEMS, *problems)},
        "dependencies": [Depends(check_parameters), *dependencies],
    }


def install_openapi(app: FastAPI) -> None:
    """Add the schemas of bodies, which FastAPI does not know, to the OpenAPI document of `app`."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document["components"]["schemas"] |= _body_schemas()
        return document

    app.openapi = openapi  # type: ignore[method-assign]


@cache
def _body_schemas() -> dict[str, Any]:
    bodies = (SEARCH, COLLECTIONS_SEARCH, BATCH, EMBED, PROMOTE)
    _, schemas = TypeAdapter.json_schemas(
        [(body.name, "validation", body.adapter) for body in bodies], ref_template="#/components/schemas/{model}"
    )
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions
