"""Routes of images: their rows and pictures, and the plan that `likeness duplicates` wrote."""

from typing import Annotated, Final

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from api.documents import ImageOut
from api.http.problem_responses import problem_docs
from api.http.query_runner import QueryRunner
from api.http.responses import etag_response, image_out, json_response
from api.problems import ImageNotFound, PictureNotFound, PictureUnavailable, ShardUnavailable
from api.search.pictures import MAX_SIDE, MIN_SIDE
from api.search.service import row_of_image
from index.analysis.duplicate_plan import PlannedGroup, PlanSummary, read_plan

Id = Annotated[str, Query(alias="id", description="the id of an indexed image")]
Size = Annotated[int | None, Query(ge=MIN_SIDE, le=MAX_SIDE, description="for a thumbnail: pixels per side at most")]

Offset = Annotated[int, Query(ge=0, le=10**9, description="how many groups to skip")]
Limit = Annotated[int, Query(ge=1, le=100, description="how many groups to return at most")]

# Picture files are untrusted: a browser must never treat one as a page of this server.
_PICTURE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=300",
}
# In threads of their own: other routes must not wait for a slow source.
_MAX_READING: Final = 40
_PROBLEMS: Final = (ImageNotFound, ShardUnavailable)


class DuplicatesOut(BaseModel):
    plan: Annotated[PlanSummary | None, Field(description="null if `likeness duplicates` has not written one yet")]
    serving: Annotated[str, Field(description="the index version that this server answers from")]
    groups: list[PlannedGroup]


def image_routes(runner: QueryRunner) -> APIRouter:
    """`GET /image?id=` and `/picture?id=`: as part of a path, an id would lose dots and line breaks."""
    router, reading = APIRouter(tags=["images"]), CapacityLimiter(_MAX_READING)

    @router.get(
        "/picture",
        summary="The picture of an image: its file, or a thumbnail",
        response_class=Response,
        response_description="The picture",
        responses={
            304: {"description": "The caller has the picture already, according to If-None-Match"},
            **problem_docs(*_PROBLEMS, PictureNotFound, PictureUnavailable),
        },
        openapi_extra={"responses": {"200": {"content": {"image/*": {}}}}},
    )
    async def picture(request: Request, image_id: Id, size: Size = None) -> Response:
        service = await runner.service(request)
        row = await to_thread.run_sync(row_of_image, service.engine.searcher, image_id)
        read = await to_thread.run_sync(service.pictures.read, row, size, limiter=reading)
        return etag_response(request, *read, _PICTURE_HEADERS)

    @router.get(
        "/image",
        summary="What the index knows about an image",
        response_model=ImageOut,
        responses=problem_docs(*_PROBLEMS),
    )
    async def image(request: Request, image_id: Id) -> Response:
        searcher = (await runner.service(request)).engine.searcher
        row = await to_thread.run_sync(row_of_image, searcher, image_id)
        return json_response(image_out(row, runner.limits.show_locations))

    return router


def duplicate_routes(runner: QueryRunner) -> APIRouter:
    """`GET /duplicates/plan`. Nothing is computed here, so searches do not wait."""
    router = APIRouter(tags=["images"])

    @router.get(
        "/duplicates/plan", summary="The plan of `likeness duplicates`: which copies to keep and which to remove"
    )
    async def plan(request: Request, offset: Offset = 0, limit: Limit = 20) -> DuplicatesOut:
        service, collection = await runner.with_collection(request)
        summary, groups = await to_thread.run_sync(read_plan, collection, offset, limit) or (None, [])
        if not runner.limits.show_locations:
            groups = [group.without_locations() for group in groups]
        return DuplicatesOut(plan=summary, serving=service.engine.searcher.version, groups=groups)

    return router
