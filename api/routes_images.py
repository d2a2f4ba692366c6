"""Routes of single images: their rows and pictures."""

from typing import Annotated, Final

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.errors import Problem
from api.nearest import row_of_image
from api.problems import problem_docs
from api.schemas import ImageOut
from api.service import SearchService
from index.search import Searcher

# The content of a picture's file is untrusted: a browser must never take it for a page of ours.
_PICTURE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=300",
}


def image_routes(service: SearchService) -> APIRouter:
    """`GET /images/{id}` and its picture."""
    router = APIRouter(prefix="/images", tags=["images"])

    # Before the row's route, whose path would match too.
    @router.get(
        "/{image_id:path}/picture",
        summary="The picture of an image: its file, or a thumbnail",
        response_class=Response,
        responses={
            200: {"content": {"image/*": {}}, "description": "The picture"},
            304: {"description": "The caller has it already, says If-None-Match"},
            **problem_docs(
                *("image-not-found", "picture-not-found", "invalid-request", "picture-unavailable", "internal"),
                "shard-unavailable",
            ),
        },
    )
    async def picture(
        request: Request,
        image_id: str,
        size: Annotated[
            int | None, Query(ge=16, le=1024, description="a thumbnail of at most this many pixels a side")
        ] = None,
    ) -> Response:
        searcher = service.engine.searcher
        row = await to_thread.run_sync(row_of_image, searcher, image_id)
        if row is None:
            # An id may itself end in "/picture": then this is the address of its row.
            return await _row_response(searcher, f"{image_id}/picture", missing=image_id)
        found = await to_thread.run_sync(service.picture, row, size)
        return found.response(request, _PICTURE_HEADERS)

    @router.get(
        "/{image_id:path}",
        summary="What the index knows of an image",
        response_model=ImageOut,
        responses=problem_docs("image-not-found", "internal", "shard-unavailable"),
    )
    async def image(image_id: str) -> Response:
        return await _row_response(service.engine.searcher, image_id, missing=image_id)

    return router


async def _row_response(searcher: Searcher, image_id: str, *, missing: str) -> Response:
    row = await to_thread.run_sync(row_of_image, searcher, image_id)
    if row is None:
        raise Problem("image-not-found", f"index version {searcher.version} has no image {missing!r}")
    return Response(ImageOut.of(row).model_dump_json(), media_type="application/json")
