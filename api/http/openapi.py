"""Adds to the OpenAPI document what FastAPI does not know: bodies that routes read themselves, examples, limits."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from pydantic import TypeAdapter

from api import errors
from api.http.middleware.auth import OPEN_PATHS
from api.http.middleware.every_request import API_VERSION, VERSION
from api.http.problem_documents import ProblemOut, problem_docs
from api.http.requests import BATCH, COLLECTIONS_SEARCH, EMBED, JSON_TEXT_FIELDS, PROMOTE, SEARCH, UPLOAD, Document
from api.settings import Access

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
            fields[name] = {"type": "string", "contentMediaType": "application/json", "description": text}
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


def install_openapi(app: FastAPI, access: Access) -> None:
    """Add to the OpenAPI document of `app` the models that no route has in its signature, how to send a key, and the
    version header.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(generate(), access)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any], access: Access) -> None:
    components = document.setdefault("components", {})
    bodies = [each.adapter for each in (SEARCH, COLLECTIONS_SEARCH, BATCH, EMBED, PROMOTE)]
    _, schemas = TypeAdapter.json_schemas(
        [(number, "validation", adapter) for number, adapter in enumerate([*bodies, TypeAdapter(ProblemOut)])],
        ref_template="#/components/schemas/{model}",
    )
    components.setdefault("schemas", {}).update(schemas["$defs"])
    needs_key = access.keys is not None
    if needs_key:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    keys = (errors.Unauthorized, errors.Forbidden) if needs_key else ()
    refusals = problem_docs(
        errors.RateLimited, errors.Overloaded, errors.AnswerTimeout, errors.CollectionUnavailable, *keys
    )
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path not in OPEN_PATHS:
                _add_responses(operation, refusals)
                if needs_key:
                    operation["security"] = [{"bearer": []}, {"header": []}]
            _add_version(operation)


def _add_version(operation: dict[str, Any]) -> None:
    schema = {"type": "string", "enum": [VERSION]}
    operation.setdefault("parameters", []).append(
        {
            "name": API_VERSION,
            "in": "header",
            "schema": schema,
            "description": "the API version that the client was written for",
        }
    )
    _add_responses(operation, problem_docs(errors.UnknownApiVersion))
    header = {"schema": schema, "description": "the API version of this answer", "required": True}
    operation["responses"]["200"].setdefault("headers", {})[API_VERSION] = header


def _add_responses(operation: dict[str, Any], responses: Mapping[int | str, dict[str, Any]]) -> None:
    for status, response in responses.items():
        operation["responses"].setdefault(str(status), response)
