"""Reads the body of a request, JSON or multipart, up to the allowed size."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.types import Message, Receive

from api.errors import Problem, abbreviate, invalid_fields
from api.http.field_errors import problem_of_invalid
from api.http.middleware.admission import admit_body
from api.http.parse import query_of_upload, search_of, too_large
from api.http.requests import UploadFields
from api.search.query import Query
from api.settings import RequestLimits

T = TypeVar("T")

# Bytes for boundaries, part headers and fields, besides the file itself.
_MULTIPART_OVERHEAD = 64 * 2**10
# A smaller body is parsed in less than a millisecond, and a thread for it would cost about as much.
_LARGE = 64 * 2**10


class BodyReader:
    """Reads bodies for an event loop, which runs on while a large one is parsed: in a thread, one after another."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._parsing = CapacityLimiter(1)

    async def search(self, request: Request, dim: int) -> Query:
        """The query in the body; `dim` is the length of the index's vectors.

        Raises Problem when the body is too large, too slow, of another type or not valid.
        """
        _check_not_compressed(request)
        media_type = _media_type(request)
        if media_type == "multipart/form-data":
            return await _in_time(_read_multipart(request, self._limits), self._limits)
        if media_type == "application/json":
            return await self.json(request, partial(search_of, dim=dim, limits=self._limits))
        raise _unsupported("application/json, or multipart/form-data with an image", media_type)

    async def json(self, request: Request, parse: Callable[[Any], T]) -> T:
        """What `parse` makes of the JSON document in the body. Raises Problem as `search` does."""
        _check_not_compressed(request)
        media_type = _media_type(request)
        if media_type != "application/json":
            raise _unsupported("application/json", media_type)
        body = await _in_time(_capped(request, self._limits.max_json_bytes, "JSON body").body(), self._limits)
        admit_body(request)

        def parsed() -> T:
            return parse(_document(body, self._limits))

        if len(body) <= _LARGE:
            return parsed()
        return await to_thread.run_sync(parsed, limiter=self._parsing)


def _document(body: bytes, limits: RequestLimits) -> Any:
    # Each value but the first follows a comma or the name of a member.
    if body.count(b",") > limits.max_json_values:
        raise Problem(
            "too-large",
            f"expected a JSON body of at most {limits.max_json_values:,} values, got more: send it in parts",
        )
    if not body.strip():
        raise Problem("malformed-body", "expected a JSON object, got an empty body")
    try:
        return from_json(body)
    except ValueError as error:
        raise Problem("malformed-body", f"expected a JSON object: {error}") from error


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
        raise Problem("unsupported-media-type", f"expected a body without Content-Encoding, got {abbreviate(encoding)}")


def _unsupported(expected: str, media_type: str) -> Problem:
    got = abbreviate(media_type) if media_type else "no content type"
    return Problem("unsupported-media-type", f"expected {expected}; got {got}")


async def _read_multipart(request: Request, limits: RequestLimits) -> Query:
    capped = _capped(request, limits.max_upload_bytes, "image", overhead=_MULTIPART_OVERHEAD)
    async with capped.form(max_files=1, max_fields=8, max_part_size=_MULTIPART_OVERHEAD) as form:
        image = form.get("image")
        fields = _upload_fields(form)
        if not isinstance(image, UploadFile):
            got = "none" if image is None else "text without a file name"
            raise invalid_fields([{"field": "image", "expected": "a file", "got": got}])
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
    # Python refuses to read numbers of thousands of digits.
    if declared.isdecimal() and int(declared[:20]) > max_bytes + overhead:
        raise too_large(what, max_bytes)
    return Request(request.scope, _counted(request.receive, max_bytes + overhead, partial(too_large, what, max_bytes)))


def _counted(receive: Receive, max_bytes: int, problem: Callable[[], Problem]) -> Receive:
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise problem()
        return message

    return counted
