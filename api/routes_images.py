"""Routes of single images: their rows and pictures."""

from typing import Annotated, Final

from anyio import to_thread
from fastapi import APIRouter, Query
from fastapi.responses import Response

from api.errors import Problem
from api.problems import problem_docs
from api.schemas import ImageOut
from api.service import SearchService

# What a picture's file holds was chosen by whoever made it: a browser must never take it for a page of ours.
_PICTURE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=300",
}


def image_routes(service: SearchService) -> APIRouter:
    """`GET /images/{id}` and its picture."""
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
