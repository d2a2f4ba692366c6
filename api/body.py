"""Reads the body of a search: JSON or multipart, never more of it than is allowed."""

from dataclasses import dataclass

import anyio
from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import FormData, UploadFile
from starlette.types import Message, Receive

from api.errors import Problem, invalid, invalid_fields, shortened
from api.schemas import SearchRequest, UploadFields
from api.settings import RequestLimits

# Boundaries, part headers and the field k, on top of the file itself.
_MULTIPART_OVERHEAD = 16 * 2**10


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Search by the picture in `data`."""

    data: bytes
    k: int


async def read_search(request: Request, limits: RequestLimits) -> SearchRequest | Upload:
    """What is asked for. Raises Problem: the body is too large, too slow, of another type or not valid."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        with anyio.fail_after(limits.body_timeout_s):
            if media_type == "application/json":
                return await _read_json(request, limits)
            if media_type == "multipart/form-data":
                return await _read_multipart(request, limits)
    except TimeoutError as error:
        raise Problem("request-timeout", f"expected the body within {limits.body_timeout_s:g} s") from error
    raise Problem(
        "unsupported-media-type",
        "expected application/json with url or text, or multipart/form-data with an image; "
        f"got {shortened(media_type) if media_type else 'no content type'}",
    )


async def _read_json(request: Request, limits: RequestLimits) -> SearchRequest:
    body = await _capped(request, limits.max_json_bytes, "JSON body").body()
    try:
        asked = SearchRequest.model_validate_json(body)
    except ValidationError as error:
        raise _problem_of(error, SearchRequest) from error
    for field, value, longest in (
        ("url", asked.url, limits.max_url_length),
        ("text", asked.text, limits.max_text_length),
    ):
        if value is not None and len(value) > longest:
            raise invalid(field, f"at most {longest} characters", f"{len(value)} characters")
    _check_k(asked.k, limits)
    return asked


async def _read_multipart(request: Request, limits: RequestLimits) -> Upload:
    capped = _capped(request, limits.max_upload_bytes, "image", overhead=_MULTIPART_OVERHEAD)
    async with capped.form(max_files=1, max_fields=8, max_part_size=_MULTIPART_OVERHEAD) as form:
        image = form.get("image")
        fields = _upload_fields(form)
        _check_k(fields.k, limits)
        if not isinstance(image, UploadFile):
            raise invalid("image", "a file", "none" if image is None else "text without a file name")
        if (image.size or 0) > limits.max_upload_bytes:
            raise _too_large("image", limits.max_upload_bytes)
        return Upload(data=await image.read(), k=fields.k)


def _upload_fields(form: FormData) -> UploadFields:
    try:
        return UploadFields.model_validate({name: value for name, value in form.items() if name != "image"})
    except ValidationError as error:
        raise _problem_of(error, UploadFields, "image") from error


def _check_k(k: int, limits: RequestLimits) -> None:
    if k > limits.max_k:
        raise invalid("k", f"a whole number from 1 to {limits.max_k}", k)


def _capped(request: Request, max_bytes: int, what: str, *, overhead: int = 0) -> Request:
    """`request` again, with a body that raises as soon as it has passed `max_bytes` and `overhead`."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes + overhead:
        raise _too_large(what, max_bytes)
    return Request(request.scope, _counted(request.receive, max_bytes + overhead, _too_large(what, max_bytes)))


def _counted(receive: Receive, max_bytes: int, too_large: Problem) -> Receive:
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise too_large
        return message

    return counted


def _too_large(what: str, max_bytes: int) -> Problem:
    return Problem("too-large", f"expected {what} of at most {max_bytes:,} bytes, got more")


def _problem_of(error: ValidationError, model: type[BaseModel], *more: str) -> Problem:
    details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        return Problem("malformed-body", f"expected a JSON object: {details[0]['msg']}")
    return invalid_fields([_explained(detail, [*model.model_fields, *more]) for detail in details])


def _explained(detail: ErrorDetails, known: list[str]) -> dict[str, str]:
    """What was wrong with one field, in words that do not need pydantic's manual."""
    field = ".".join(map(str, detail["loc"])) or "body"
    match detail["type"]:
        case "extra_forbidden":
            return {"field": field, "expected": f"only {', '.join(sorted(known))}", "got": "an unknown field"}
        case "value_error":
            return {"field": field, "expected": str(detail["ctx"]["error"]), "got": _given(detail["input"])}
        case _:
            expected = detail["msg"].removeprefix("Input should be ")
            return {"field": field, "expected": expected, "got": shortened(detail["input"])}


def _given(body: object) -> str:
    names = sorted(body) if isinstance(body, dict) else []
    return "both" if {"url", "text"} <= set(names) else "neither"
