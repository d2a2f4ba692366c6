"""Routes that search."""

from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request

from api.body import Upload, read_search
from api.problems import problem_docs
from api.schemas import SearchRequest, SearchResponse
from api.service import SearchService
from api.settings import RequestLimits

_URL_PROBLEMS: Final = (
    *("bad-url", "forbidden-scheme", "forbidden-address", "url-not-usable", "url-unreachable", "url-timeout"),
)
_SEARCH_PROBLEMS: Final = (
    *("malformed-body", "request-timeout", "too-large", "unsupported-media-type", "invalid-request"),
    *("text-not-supported", "unusable-image", *_URL_PROBLEMS, "internal"),
)


def search_routes(service: SearchService, limits: RequestLimits) -> APIRouter:
    """`POST /search`."""
    router = APIRouter(tags=["search"])
    fetching, working = CapacityLimiter(limits.max_url_fetches), CapacityLimiter(limits.max_searches)

    @router.post(
        "/search",
        summary="The nearest images to a picture or a text",
        response_model=SearchResponse,
        responses=problem_docs(*_SEARCH_PROBLEMS),
        openapi_extra={"requestBody": _search_body(limits)},
    )
    async def search(request: Request) -> SearchResponse:
        match await read_search(request, limits):
            case Upload(data=data, k=k):
                found = await to_thread.run_sync(service.search_by_bytes, data, k, limiter=working)
            case SearchRequest(url=str(url), k=k):
                found = await to_thread.run_sync(service.search_by_url, url, k, limiter=fetching)
            case SearchRequest(text=text, k=k):
                found = await to_thread.run_sync(service.search_by_text, text or "", k, limiter=working)
        return SearchResponse.of(found)

    return router


def _search_body(limits: RequestLimits) -> dict[str, Any]:
    """The request body in OpenAPI's terms: the route reads it by hand, since it may be of two types."""
    k = {"type": "integer", "minimum": 1, "maximum": limits.max_k, "default": 10}
    upload = {
        "type": "object",
        "required": ["image"],
        "additionalProperties": False,
        "properties": {"image": {"type": "string", "format": "binary"}, "k": k},
    }
    examples = {
        "by URL": {"value": {"url": "https://example.com/cat.jpg", "k": 5}},
        "by text": {"value": {"text": "a striped red star", "k": 5}},
    }
    return {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/SearchRequest"},
                "examples": examples,
            },
            "multipart/form-data": {"schema": upload},
        },
    }
