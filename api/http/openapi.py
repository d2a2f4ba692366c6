"""Adds to the OpenAPI document what FastAPI does not know: bodies that routes read themselves, examples, limits."""

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

from api import errors
from api.http.middleware.auth import OPEN_PATHS
from api.http.middleware.every_request import API_VERSION, VERSION
from api.http.problems import ProblemOut, problem_docs
from api.http.requests import (
    JSON_TEXT_FIELDS,
    ONE_OF,
    BatchRequest,
    CollectionsSearchRequest,
    EmbedRequest,
    PromoteRequest,
    SearchRequest,
    UploadFields,
)
from api.settings import Access, RequestLimits

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


def json_body(model: type[BaseModel], examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    named_examples = {name: {"value": value} for name, value in examples.items()}
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": named_examples}}}


BATCH_BODY: Final = json_body(
    BatchRequest,
    {"two searches": {"searches": [{"text": "a red star"}, {"url": "https://example.com/cat.jpg", "k": 5}]}},
)
EMBED_BODY: Final = json_body(
    EmbedRequest, {"texts": {"texts": ["a red star", "a blue ring"]}, "URLs": {"urls": ["https://example.com/cat.jpg"]}}
)
COLLECTIONS_BODY: Final = json_body(
    CollectionsSearchRequest,
    {"words": {"collections": ["photos", "scans"], "text": "a red star", "k": 5}},
)
PROMOTE_BODY: Final = json_body(PromoteRequest, {"a version": {"version": "000012"}})


def search_body(limits: RequestLimits) -> dict[str, Any]:
    body = json_body(SearchRequest, _SEARCHES)
    fields = _form_fields(UploadFields, limits)
    # A picture alone has its options in the URL.
    body["content"]["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    body["content"]["multipart/form-data"] = {
        "schema": {
            "type": "object",
            "required": ["image"],
            "additionalProperties": False,
            "properties": {"image": {"type": "string", "format": "binary"}, **fields},
        }
    }
    return body


def parameters_of(model: type[BaseModel], limits: RequestLimits, *, beside_body: bool = False) -> list[dict[str, Any]]:
    """The fields of `model` as query parameters. `beside_body`: without defaults, which forms such as Swagger UI's
    would send beside the same fields of a body.
    """
    fields = _form_fields(model, limits)
    for schema in fields.values() if beside_body else ():
        schema.pop("default", None)
    return [
        {"name": name, "in": "query", "schema": schema, "description": schema.pop("description")}
        for name, schema in fields.items()
    ]


def _form_fields(model: type[BaseModel], limits: RequestLimits) -> dict[str, dict[str, Any]]:
    """The schemas of a form's fields. A form has no null: an unused field is left out, or empty."""
    fields: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    if "k" in fields:
        fields["k"] |= {"maximum": limits.max_k}
    for name, schema in fields.items():
        if name in JSON_TEXT_FIELDS:
            text = f"JSON text such as {JSON_TEXT_FIELDS[name]}: {schema['description']}"
            fields[name] = {"type": "string", "contentMediaType": "application/json", "description": text}
        elif "anyOf" in schema:
            schema |= schema.pop("anyOf")[0]
            del schema["default"]
    return fields


def install_openapi(app: FastAPI, limits: RequestLimits, access: Access) -> None:
    """Add to the OpenAPI document of `app` the models that no route has in its signature, this server's limits, how to
    send a key, and the version header.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(generate(), limits, access)
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any], limits: RequestLimits, access: Access) -> None:
    components = document.setdefault("components", {})
    _add_models(components.setdefault("schemas", {}), limits)
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


def _add_models(schemas: dict[str, Any], limits: RequestLimits) -> None:
    for model in (SearchRequest, CollectionsSearchRequest, BatchRequest, EmbedRequest, PromoteRequest, ProblemOut):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    schemas["BatchRequest"]["properties"]["searches"]["items"] = {"$ref": "#/components/schemas/SearchRequest"}
    for owner, names in ((owner, names) for owner, names in ONE_OF.items() if owner in schemas):
        schemas[owner]["oneOf"] = [_has_only(schemas[owner], name) for name in names]
    for owner in ("SearchRequest", "CollectionsSearchRequest"):
        schemas[owner]["properties"]["k"]["maximum"] = limits.max_k


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


def _has_only(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema of a document with this field and no alternative to it; null counts as absent."""
    kind, _null = schema["properties"][name]["anyOf"]
    return {"title": name, "required": [name], "properties": {name: {"type": kind["type"]}}}
