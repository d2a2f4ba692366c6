"""The HTTP interface: a plain FastAPI app over one SearchService."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import Response

from api.body import Upload, read_search
from api.errors import Problem
from api.problems import install_problems, problem_docs, problem_table
from api.schemas import ImageOut, IndexDetailsOut, ProblemOut, SearchRequest, SearchResponse
from api.service import SearchService
from api.settings import RequestLimits

logger = logging.getLogger(__name__)

_DESCRIPTION: Final = f"""Finds images that look alike.

Every error is an `application/problem+json` document (RFC 9457). Its `type` never changes its meaning:

{problem_table()}
"""

# What a picture's file holds was chosen by whoever made it: a browser must never take it for a page of ours.
_PICTURE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=300",
}

_URL_PROBLEMS: Final = (
    *("bad-url", "forbidden-scheme", "forbidden-address", "url-not-usable", "url-unreachable", "url-timeout"),
)
_SEARCH_PROBLEMS: Final = (
    *("malformed-body", "request-timeout", "too-large", "unsupported-media-type", "invalid-request"),
    *("text-not-supported", "unusable-image", *_URL_PROBLEMS, "internal"),
)


def create_app(service: SearchService, *, limits: RequestLimits | None = None) -> FastAPI:
    """The app that answers from `service`; it warms the service up when it starts."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await to_thread.run_sync(service.warm_up)
        except Exception:
            # The process stays up to say so: /readyz keeps callers away, and the log has the cause.
            logger.exception("the warm-up query failed: not ready")
        yield

    app = FastAPI(title="Likeness", version="1", description=_DESCRIPTION, lifespan=lifespan)
    install_problems(app)
    app.include_router(_search_routes(service, limits or RequestLimits()))
    app.include_router(_image_routes(service))
    app.include_router(_state_routes(service))
    _add_schemas(app)
    return app


def _search_routes(service: SearchService, limits: RequestLimits) -> APIRouter:
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


def _image_routes(service: SearchService) -> APIRouter:
    router = APIRouter(prefix="/images", tags=["images"])

    # Above the row's route, whose path would match as well.
    @router.get(
        "/{image_id:path}/picture",
        summary="The picture of an image: its file, or a thumbnail",
        response_class=Response,
        responses={
            200: {"content": {"image/*": {}}, "description": "The picture"},
            **problem_docs(
                "image-not-found", "picture-not-found", "invalid-request", "picture-unavailable", "internal"
            ),
        },
    )
    async def picture(
        image_id: str,
        size: Annotated[
            int | None, Query(ge=16, le=1024, description="a thumbnail of at most this many pixels a side")
        ] = None,
    ) -> Response:
        row = await to_thread.run_sync(service.row, image_id)
        if row is None:
            # An id may itself end in "/picture": then this is the address of its row.
            return await _row_response(service, f"{image_id}/picture", missing=image_id)
        found = await to_thread.run_sync(service.picture, row, size)
        return Response(found.data, media_type=found.media_type, headers=_PICTURE_HEADERS)

    @router.get(
        "/{image_id:path}",
        summary="What the index knows of an image",
        response_model=ImageOut,
        responses=problem_docs("image-not-found", "internal"),
    )
    async def image(image_id: str) -> Response:
        return await _row_response(service, image_id, missing=image_id)

    return router


async def _row_response(service: SearchService, image_id: str, *, missing: str) -> Response:
    row = await to_thread.run_sync(service.row, image_id)
    if row is None:
        raise Problem("image-not-found", f"index version {service.version} has no image {missing!r}")
    return Response(ImageOut.of(row).model_dump_json(), media_type="application/json")


def _state_routes(service: SearchService) -> APIRouter:
    router = APIRouter(tags=["state"])

    @router.get("/", summary="What this server is")
    async def root() -> dict[str, Any]:
        return {
            "name": "likeness",
            "index": {"version": service.version, "ntotal": service.ntotal},
            "model": service.model.model_id,
            "docs": "/docs",
        }

    @router.get("/index", summary="The index version that answers, and how well", response_model=IndexDetailsOut)
    async def index() -> IndexDetailsOut:
        return IndexDetailsOut.of(service.manifest, service.filterable)

    @router.get("/healthz", summary="The process is up")
    async def healthz() -> dict[str, str]:
        return {"status": "up"}

    @router.get("/readyz", summary="A query can be answered", responses=problem_docs("not-ready"))
    async def readyz() -> dict[str, str]:
        if not service.ready:
            raise Problem("not-ready", "the warm-up query has not succeeded; the server's log says why")
        return {"status": "ready", "index": service.version}

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


def _add_schemas(app: FastAPI) -> None:
    """Name in the OpenAPI document the models that no route mentions in its signature."""
    generate: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document["components"]["schemas"]
        for model in (SearchRequest, ProblemOut):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        return document

    app.openapi = openapi  # type: ignore[method-assign]
