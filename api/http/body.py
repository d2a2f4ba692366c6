"""Reads bodies of requests, JSON, multipart or a picture, up to the allowed size, and turns them into queries."""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import anyio
import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.types import Message

from api import errors
from api.documents import decode_base64
from api.errors import Problem, abbreviate, invalid, invalid_fields
from api.http.parameters import merged, single
from api.http.problems import MAX_ERRORS, field_error, invalid_document, wrong_document
from api.http.requests import (
    BatchRequest,
    EmbedRequest,
    Example,
    Options,
    QuerySource,
    SearchParameters,
    SearchRequest,
    UploadFields,
)
from api.search.query import Part, Query
from api.settings import RequestLimits
from index.queries import MAX_DIVERSE, MAX_K, SearchOptions

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

# Bytes for boundaries, part headers and fields, besides the file itself.
_MULTIPART_OVERHEAD = 64 * 2**10
# A smaller body is parsed in less than a millisecond, and handing it to a thread would cost about as much.
_LARGE_BODY = 64 * 2**10


class BodyReader:
    """Reads bodies on an event loop; parses large ones in a thread, one after another, to not block the loop."""

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._parsing = CapacityLimiter(1)

    async def search(self, request: Request) -> Query:
        """The query in the body, with options from the URL; for a GET, the query in its URL.

        Raises Problem if the body is too large, too slow, of another type or not valid.
        """
        if request.method != "POST":
            parameters = validate(dict(request.query_params), SearchParameters)
            return self._query((self._part(parameters.source, "{}"),), parameters)
        media_type = _media_type(request)
        if media_type == "multipart/form-data":
            return await self._with_timeout(self._read_multipart(request))
        options = validate(dict(request.query_params), UploadFields)
        if media_type.startswith("image/"):
            return await self._with_timeout(self._read_picture(request, options))
        parse = partial(self.parse_search, options=options.model_dump(exclude_unset=True))
        return await self.json(request, parse, "application/json, image/…, or multipart/form-data with an image")

    async def json(self, request: Request, parse: Callable[[Any], T], expected: str = "application/json") -> T:
        """The result of `parse` for the JSON document in the body. Raises Problem like `search`."""
        if (media_type := _media_type(request)) != "application/json":
            got = abbreviate(media_type) if media_type else "no content type"
            raise errors.UnsupportedMediaType(f"expected {expected}; got {got}")
        body = await self._with_timeout(_with_limit(request, self._limits.max_json_bytes, "JSON body").body())

        def parse_body() -> T:
            return parse(_document(body, self._limits))

        if len(body) <= _LARGE_BODY:
            return parse_body()
        return await to_thread.run_sync(parse_body, limiter=self._parsing)

    def parse_search(
        self, document: object, *, model: type[SearchRequest] = SearchRequest, options: Mapping[str, Any] | None = None
    ) -> Query:
        """The query of a search request, with `options` from its URL. Raises Problem."""
        search = validate(merged(document, options) if options and isinstance(document, dict) else document, model)
        if search.queries is None:
            return self._query((self._part(search, "{}"),), search)
        if search.crop is not None:
            raise invalid("crop", "a crop beside each picture of `queries`", search.crop)
        parts = (self._part(example, f"queries.{number}.{{}}") for number, example in enumerate(search.queries))
        return self._query(tuple(parts), search)

    def parse_batch(self, document: object) -> list[Query | Problem]:
        """The query of each search of a batch, or the problem with it."""
        return [_or_problem(partial(self.parse_search, each)) for each in validate(document, BatchRequest).searches]

    def parse_embed_items(self, document: object) -> list[Part | Problem]:
        """The part for each item to embed, or the problem with it."""
        name, values = next((name, values) for name, values in validate(document, EmbedRequest) if values is not None)
        return [
            _or_problem(partial(self._part_of_item, name, value, f"{name}.{number}"))
            for number, value in enumerate(values)
        ]

    async def _with_timeout(self, reading: Awaitable[T]) -> T:
        timeout_s = self._limits.body_timeout_s
        try:
            with anyio.fail_after(timeout_s):
                return await reading
        except TimeoutError as error:
            raise errors.RequestTimeout(f"expected the body within {timeout_s:g} s") from error

    async def _read_picture(self, request: Request, options: UploadFields) -> Query:
        data = await _with_limit(request, self._limits.max_upload_bytes, "image").body()
        return self._upload(data, options)

    async def _read_multipart(self, request: Request) -> Query:
        max_bytes = self._limits.max_upload_bytes
        capped = _with_limit(request, max_bytes, "image", overhead=_MULTIPART_OVERHEAD)
        max_fields = len(UploadFields.model_fields) + 1
        async with capped.form(max_files=1, max_fields=max_fields, max_part_size=_MULTIPART_OVERHEAD) as form:
            fields = merged(single(form.multi_items()), request.query_params)
            image = fields.pop("image", None)
            options = validate(fields, UploadFields, "image")
            if not isinstance(image, UploadFile):
                got = "none" if image is None else "text without a file name"
                raise invalid_fields([{"field": "image", "expected": "a file", "got": got}])
            if (image.size or 0) > max_bytes:
                raise _too_large("image", max_bytes)
            return self._upload(await image.read(), options)

    def _upload(self, data: bytes, options: UploadFields) -> Query:
        crop = None if options.crop is None else tuple(options.crop)
        return self._query((Part(data=data, crop=crop),), options)

    def _query(self, parts: tuple[Part, ...], options: Options) -> Query:
        if not 1 <= options.k <= self._limits.max_k:
            raise invalid("k", f"a whole number from 1 to {self._limits.max_k}", options.k)
        if options.k + options.offset > MAX_K:
            raise invalid("offset", f"at most {MAX_K - options.k}, as k + offset is limited to {MAX_K}", options.offset)
        if options.diversity and options.k + options.offset > MAX_DIVERSE:
            expected = f"k + offset of at most {MAX_DIVERSE:,} with it"
            raise invalid("diversity", expected, {"k": options.k, "offset": options.offset})
        return Query(
            parts=parts,
            k=options.k,
            options=cast(SearchOptions, options.model_dump(include=set(SearchOptions.__annotations__))),
            min_percentile=options.min_percentile,
            allow_partial=options.allow_partial,
        )

    def _part(self, source: QuerySource, at: str) -> Part:
        return Part(
            data=None if source.image is None else self._decode_base64(source.image, at.format("image")),
            url=source.url,
            text=source.text,
            image_id=source.id,
            vector=None if source.embedding is None else np.asarray(source.embedding, np.float64),
            crop=None if source.crop is None else tuple(source.crop),
            weight=source.weight if isinstance(source, Example) else 1.0,
            field_path=at,
        )

    def _part_of_item(self, name: str, value: str, at: str) -> Part:
        try:
            return self._part(QuerySource(**{name.removesuffix("s"): value}), at)
        except ValidationError as error:
            raise invalid_fields([field_error(detail, at) for detail in error.errors()]) from error

    def _decode_base64(self, text: str, field: str) -> bytes:
        try:
            data = decode_base64(text)
        except ValueError as error:
            raise invalid(field, f"a picture's file in base64 ({error})", text) from error
        if len(data) > self._limits.max_upload_bytes:
            raise _too_large(field, self._limits.max_upload_bytes)
        return data


def validate(document: object, model: type[M], *other_fields: str) -> M:
    """The document as this model. Raises Problem. `other_fields` are allowed ones that are read elsewhere."""
    # Each mistake would be listed, and take a thousand times its own size.
    if isinstance(document, dict) and len(document) > MAX_ERRORS:
        raise wrong_document(f"{len(document):,} fields")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise invalid_document(error, model, *other_fields) from error


def _media_type(request: Request) -> str:
    """The body's media type, in lower case. Raises Problem for a compressed body."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise errors.UnsupportedMediaType(f"expected a body without Content-Encoding, got {abbreviate(encoding)}")
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _document(body: bytes, limits: RequestLimits) -> Any:
    # Each value but the first follows a comma or a member's name.
    if body.count(b",") > limits.max_json_values:
        expected = f"expected a JSON body of at most {limits.max_json_values:,} values"
        raise errors.TooLarge(f"{expected}, got more: send it in parts")
    if not body.strip():
        raise errors.MalformedBody("expected a JSON object, got an empty body")
    try:
        encoding = json.detect_encoding(body[:4])  # of a byte order mark, as Windows writes it
        return from_json(body if encoding == "utf-8" else body.decode(encoding))
    except ValueError as error:
        raise errors.MalformedBody(f"expected a JSON object: {error}") from error


def _with_limit(request: Request, max_bytes: int, content: str, *, overhead: int = 0) -> Request:
    """`request` with a body that raises Problem once it exceeds `max_bytes` plus `overhead`; `content` names it."""
    declared, received = request.headers.get("content-length", ""), 0
    # Python refuses to parse numbers of thousands of digits.
    if declared.isdecimal() and int(declared[:20]) > max_bytes + overhead:
        raise _too_large(content, max_bytes)

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > max_bytes + overhead:
            raise _too_large(content, max_bytes)
        return message

    return Request(request.scope, receive)


def _too_large(content: str, max_bytes: int) -> Problem:
    return errors.TooLarge(f"expected {content} of at most {max_bytes:,} bytes, got more")


def _or_problem(read: Callable[[], T]) -> T | Problem:
    try:
        return read()
    except Problem as problem:
        return problem
