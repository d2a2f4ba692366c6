"""What FastAPI cannot know for the OpenAPI document: bodies that routes read by hand, with examples."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

from api.asked import BatchRequest, EmbedRequest, PromoteRequest, SearchRequest, UploadFields
from api.schemas import ProblemOut
from api.settings import RequestLimits

_SEARCHES: Final[dict[str, dict[str, Any]]] = {
    "by URL": {"url": "https://example.com/cat.jpg", "k": 5},
    "by a picture's bytes": {
        "image": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
    },
    "by text": {"text": "a striped red star"},
    "more like an image of the index": {"id": "shapes/star-0001.png", "distinct": True},
    "with a filter, the second page": {
        "text": "a red star",
        "filter": {"label": "star", "width": {"$gte": 640}},
        "min_score": 0.2,
        "k": 20,
        "offset": 20,
        "fields": ["label"],
    },
    "a mix": {
        "queries": [
            {"url": "https://example.com/cat.jpg"},
            {"text": "at night", "weight": 0.5},
            {"id": "cats/0001.jpg", "weight": -0.3},
        ]
    },
}


def json_body(model: type[BaseModel], examples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The request body that is this model as JSON."""
    shown = {name: {"value": value} for name, value in examples.items()}
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": shown}}}


BATCH_BODY: Final = json_body(
    BatchRequest,
    {"two searches": {"searches": [{"text": "a red star"}, {"url": "https://example.com/cat.jpg", "k": 5}]}},
)
EMBED_BODY: Final = json_body(
    EmbedRequest,
    {"texts": {"texts": ["a red star", "a blue ring"]}, "URLs": {"urls": ["https://example.com/cat.jpg"]}},
)
PROMOTE_BODY: Final = json_body(PromoteRequest, {"a version": {"version": "000012"}})


def search_body(limits: RequestLimits) -> dict[str, Any]:
    """The body of a search, which may be of two types."""
    body = json_body(SearchRequest, _SEARCHES)
    fields = UploadFields.model_json_schema()["properties"]
    fields["k"] |= {"maximum": limits.max_k}
    # In a form these are JSON text.
    for name in ("filter", "fields", "distinct"):
        fields[name] = {
            "type": "string",
            "contentMediaType": "application/json",
            "description": f"JSON text: {fields[name]['description']}",
        }
    body["content"]["multipart/form-data"] = {
        "schema": {
            "type": "object",
            "required": ["image"],
            "additionalProperties": False,
            "properties": {"image": {"type": "string", "format": "binary"}, **fields},
        }
    }
    return body


def add_schemas(app: FastAPI) -> None:
    """Name in the OpenAPI document the models that no route mentions in its signature."""
    generate: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document["components"]["schemas"]
        for model in (SearchRequest, BatchRequest, EmbedRequest, PromoteRequest, ProblemOut):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        schemas["BatchRequest"]["properties"]["searches"]["items"] = {"$ref": "#/components/schemas/SearchRequest"}
        return document

    app.openapi = openapi  # type: ignore[method-assign]
