"""Reads the body of a request, JSON or multipart, up to the allowed size."""

from collections.abc import Awaitable
from typing import TypeVar

import anyio
from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import FormData, UploadFile
from starlette.types import Message, Receive

from api.asked import Example, SearchRequest, UploadFields
from api.errors import Problem, invalid, invalid_fields, shortened
from api.query import Query
from api.reading import query_of, query_of_upload, too_large
from api.settings import RequestLimits

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

# Bytes for boundaries, part headers and fields, besides the file itself.
_MULTIPART_OVERHEAD = 64 * 2**10
_MOST_ERRORS = 100


async def read_search(request: Request, limits: RequestLimits) -> Query:
    """The query in the body. Raises Problem when the body is too large, too slow, of another type or not valid."""
    _check_not_compressed(request)
    media_type = _media_type(request)
    if media_type == "multipart/form-data":
        return await _in_time(_read_multipart(request, limits), limits)
    if media_type == "application/json":
        return query_of(await read_json(request, SearchRequest, limits), limits)
    raise _unsupported("application/json, or multipart/form-data with an image", media_type)


async def read_json(request: Request, model: type[M], limits: RequestLimits) -> M:
    """The body as this model. Raises Problem as `read_search` does."""
    _check_not_compressed(request)
    media_type = _media_type(request)
    if media_type != "application/json":
        raise _unsupported("application/json", media_type)
    body = await _in_time(_capped(request, limits.max_json_bytes, "JSON body").body(), limits)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise problem_of_invalid(error, model) from error


def problem_of_invalid(error: ValidationError, model: type[BaseModel], *more: str) -> Problem:
    """The problem of an invalid document, field by field. `more` are known fields besides the model's."""
    if (count := error.error_count()) > _MOST_ERRORS:  # each would be listed, and take a thousand times its own size
        mistakes = {"field": "body", "expected": "a document as the API describes it", "got": f"{count:,} mistakes"}
        return invalid_fields([mistakes])
    details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        return Problem("malformed-body", f"expected a JSON object: {details[0]['msg']}")
    return invalid_fields([_explained(detail, [*model.model_fields, *more]) for detail in details])


async def _in_time(reading: Awaitable[T], limits: RequestLimits) -> T:
    try:
        with anyio.fail_after(limits.body_timeout_s):
            return await reading
    except TimeoutError as error:
        raise Problem("request-timeout", f"expected the body within {limits.body_timeout_s:g} s") from error


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_not_compressed(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Problem("unsupported-media-type", f"expected a body without Content-Encoding, got {shortened(encoding)}")


def _unsupported(expected: str, media_type: str) -> Problem:
    got = shortened(media_type) if media_type else "no content type"
    return Problem("unsupported-media-type", f"expected {expected}; got {got}")


async def _read_multipart(request: Request, limits: RequestLimits) -> Query:
    capped = _capped(request, limits.max_upload_bytes, "image", overhead=_MULTIPART_OVERHEAD)
    async with capped.form(max_files=1, max_fields=8, max_part_size=_MULTIPART_OVERHEAD) as form:
        image = form.get("image")
        fields = _upload_fields(form)
        if not isinstance(image, UploadFile):
            raise invalid("image", "a file", "none" if image is None else "text without a file name")
        if (image.size or 0) > limits.max_upload_bytes:
            raise too_large("image", limits.max_upload_bytes)
        return query_of_upload(await image.read(), fields, limits)


def _upload_fields(form: FormData) -> UploadFields:
    try:
        return UploadFields.model_validate({name: value for name, value in form.items() if name != "image"})
    except ValidationError as error:
        raise problem_of_invalid(error, UploadFields, "image") from error


def _capped(request: Request, max_bytes: int, what: str, *, overhead: int = 0) -> Request:
    """`request` with a body that raises as soon as it exceeds `max_bytes` plus `overhead`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes + overhead:
        raise too_large(what, max_bytes)
    return Request(request.scope, _counted(request.receive, max_bytes + overhead, too_large(what, max_bytes)))


def _counted(receive: Receive, max_bytes: int, over: Problem) -> Receive:
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise over
        return message

    return counted


def _explained(detail: ErrorDetails, known: list[str]) -> dict[str, str]:
    """The error of one field, in words that do not require pydantic's manual."""
    field = ".".join(map(str, detail["loc"])) or "body"
    match detail["type"]:
        case "extra_forbidden":
            names = Example.model_fields if detail["loc"][0] == "queries" else known
            return {"field": field, "expected": f"only {', '.join(sorted(names))}", "got": "an unknown field"}
        case "value_error":
            got = detail["input"]
            return {"field": field, "expected": str(detail["ctx"]["error"]), "got": _names(got)}
        case "model_type":
            return {"field": field, "expected": "an object", "got": shortened(detail["input"])}
        case _:
            expected = detail["msg"].removeprefix("Input should be ")
            return {"field": field, "expected": expected, "got": shortened(detail["input"])}


def _names(given: object) -> str:
    """The names in a document; its values may be long, and are not at fault."""
    if not isinstance(given, dict):
        return shortened(given)
    return ", ".join(shortened(name) for name in given) or "nothing"
