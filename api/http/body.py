"""Reads bodies of requests, JSON, multipart or a picture, up to the allowed size, and turns them into queries."""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio
import numpy as np
from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Message

from api import problems
from api.documents import SOURCE_FIELDS, decode_base64
from api.http.parameters import merged, single
from api.http.requests import (
    BATCH,
    EMBED,
    ITEM,
    SEARCH,
    SEARCH_PARAMETERS,
    UPLOAD,
    EmbedRequest,
    SearchRequest,
    UploadFields,
    read_texts,
)
from api.problems import Problem, abbreviate, invalid, invalid_fields
from api.search.page import naming_option
from api.search.query import Part, Query, fields_in, options_in
from api.settings import RequestLimits
from index.filters.plain import parse_strictly
from index.search_options import checked_k

T = TypeVar("T")

# Bytes for boundaries, part headers and fields, besides the file itself.
_MULTIPART_OVERHEAD = 64 * 2**10
# A smaller body is parsed in less than a millisecond, and handing it to a thread would cost about as much.
_LARGE_BODY = 64 * 2**10


class _Form(MultiPartParser):
    """A form, whose `parse` raises Problem if it is broken or was cut off, which Starlette takes for fewer fields."""

    _has_end = False

    def on_end(self) -> None:
        self._has_end = True

    async def parse(self) -> FormData:
        try:
            form = await super().parse()
        except MultiPartException as error:
            raise problems.MalformedBody(error.message) from error
        if self._has_end:
            return form
        await form.close()
        raise problems.MalformedBody("expected a form up to its closing boundary, got one that was cut off")


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
            parameters = SEARCH_PARAMETERS.read(read_texts(request.query_params))
            return self._query(self._parts(parameters), parameters)
        media_type = _media_type(request)
        if media_type == "multipart/form-data":
            return await self._with_timeout(self._read_multipart(request))
        options = UPLOAD.read(read_texts(request.query_params))
        if media_type.startswith("image/"):
            limited = _with_limit(request, self._limits.max_upload_bytes, "image")
            return self._upload(await self._with_timeout(limited.body()), options)
        parse = partial(self.parse_search, options=options)
        return await self.json(request, parse, "application/json, image/…, or multipart/form-data with an image")

    async def json(self, request: Request, parse: Callable[[Any], T], expected: str = "application/json") -> T:
        """The result of `parse` for the JSON document in the body. Raises Problem like `search`."""
        if (media_type := _media_type(request)) != "application/json":
            got = abbreviate(media_type) if media_type else "no content type"
            raise problems.UnsupportedMediaType(f"expected {expected}; got {got}")
        body = await self._with_timeout(_with_limit(request, self._limits.max_json_bytes, "JSON body").body())

        def parse_body() -> T:
            return parse(_document(body, self._limits))

        if len(body) <= _LARGE_BODY:
            return parse_body()
        return await to_thread.run_sync(parse_body, limiter=self._parsing)

    def parse_search(self, document: object, options: Mapping[str, Any] | None = None) -> Query:
        """The query of a search request, with `options` from its URL. Raises Problem."""
        return self.query_of(
            SEARCH.read(merged(document, options) if options and isinstance(document, dict) else document)
        )

    def query_of(self, search: SearchRequest) -> Query:
        """The query of a valid request. Raises Problem."""
        if (queries := search.get("queries")) is None:
            return self._query(self._parts(search), search)
        if (crop := search.get("crop")) is not None:
            raise invalid("crop", "a crop beside each picture of `queries`", crop)
        parts = (self._part(example, f"queries.{number}.{{}}") for number, example in enumerate(queries))
        return self._query(tuple(parts), search)

    def parse_batch(self, document: object) -> list[Query | Problem]:
        """The query of each search of a batch, or the problem with it."""
        return [_or_problem(partial(self.parse_search, each)) for each in BATCH.read(document)["searches"]]

    def parse_embed_items(self, document: object) -> list[Part | Problem]:
        """The part for each item to embed, or the problem with it."""
        [(name, values)] = fields_in(EmbedRequest, EMBED.read(document)).items()
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
            raise problems.RequestTimeout(f"expected the body within {timeout_s:g} s") from error

    async def _read_multipart(self, request: Request) -> Query:
        max_bytes = self._limits.max_upload_bytes
        capped = _with_limit(request, max_bytes, "image", overhead=_MULTIPART_OVERHEAD)
        max_fields = len(UPLOAD.fields) + 1
        form = await _Form(
            capped.headers, capped.stream(), max_files=1, max_fields=max_fields, max_part_size=_MULTIPART_OVERHEAD
        ).parse()
        try:
            # Browsers send an empty field for an input that nobody filled in.
            filled = {name: value for name, value in single(form.multi_items()).items() if value != ""}
            fields = merged(filled, request.query_params)
            image = fields.pop("image", None)
            options = UPLOAD.read(read_texts(fields), "image")
            if not isinstance(image, UploadFile):
                got = "none" if image is None else "text without a file name"
                raise invalid_fields([{"field": "image", "expected": "a file", "got": got}])
            if (image.size or 0) > max_bytes:
                raise _too_large("image", max_bytes)
            return self._upload(await image.read(), options)
        finally:
            await form.close()

    def _upload(self, data: bytes, options: UploadFields) -> Query:
        return self._query((Part(data=data, crop=_crop(options)),), options)

    def _query(self, parts: tuple[Part, ...], fields: Mapping[str, Any]) -> Query:
        options = options_in(fields)
        with naming_option():
            checked_k(options.get("k"), self._limits.max_k)
            return Query(parts=parts, options=options)

    def _parts(self, source: Mapping[str, Any]) -> tuple[Part, ...]:
        """The part of a query that is no mix, or none."""
        if any(source.get(name) is not None for name in SOURCE_FIELDS):
            return (self._part(source, "{}"),)
        if (crop := source.get("crop")) is not None:
            raise invalid("crop", "a picture to take it from: image, url or id", crop)
        return ()

    def _part(self, source: Mapping[str, Any], at: str) -> Part:
        image, embedding = source.get("image"), source.get("embedding")
        return Part(
            data=None if image is None else self._decode_base64(image, at.format("image")),
            url=source.get("url"),
            text=source.get("text"),
            image_id=source.get("id"),
            vector=None if embedding is None else np.asarray(embedding, np.float64),
            crop=_crop(source),
            weight=1.0 if (weight := source.get("weight")) is None else weight,
            field_path=at,
        )

    def _part_of_item(self, name: str, value: str, at: str) -> Part:
        return self._part(ITEM.read({name.removesuffix("s"): value}, at=at), at)

    def _decode_base64(self, text: str, field: str) -> bytes:
        try:
            data = decode_base64(text)
        except ValueError as error:
            raise invalid(field, f"a picture's file in base64 ({error})", text) from error
        if len(data) > self._limits.max_upload_bytes:
            raise _too_large(field, self._limits.max_upload_bytes)
        return data


def _crop(source: Mapping[str, Any]) -> tuple[float, ...] | None:
    return None if (crop := source.get("crop")) is None else tuple(crop)


def _media_type(request: Request) -> str:
    """The body's media type, in lower case. Raises Problem for a compressed body."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise problems.UnsupportedMediaType(f"expected a body without Content-Encoding, got {abbreviate(encoding)}")
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _document(body: bytes, limits: RequestLimits) -> Any:
    # Each value but the first follows a comma or a member's name.
    if body.count(b",") > limits.max_json_values:
        expected = f"expected a JSON body of at most {limits.max_json_values:,} values"
        raise problems.TooLarge(f"{expected}, got more: send it in parts")
    if not body.strip():
        raise problems.MalformedBody("expected a JSON object, got an empty body")
    try:
        encoding = json.detect_encoding(body[:4])  # of a byte order mark, as Windows writes it
        return parse_strictly(body if encoding == "utf-8" else body.decode(encoding))
    except ValueError as error:
        raise problems.MalformedBody(f"expected a JSON object: {error}") from error


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
    return problems.TooLarge(f"expected {content} of at most {max_bytes:,} bytes, got more")


def _or_problem(read: Callable[[], T]) -> T | Problem:
    try:
        return read()
    except Problem as problem:
        return problem
