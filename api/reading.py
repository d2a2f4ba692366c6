"""Turns request documents into queries: decodes base64 pictures and checks the limits that a schema cannot know."""

import base64
import binascii
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from api.asked import EmbedRequest, Example, Options, SearchRequest, UploadFields, What
from api.errors import Problem, invalid
from api.query import Part, Query
from api.settings import RequestLimits
from index.queries import MAX_K, SearchOptions


def query_of(asked: SearchRequest, limits: RequestLimits) -> Query:
    """The query of a search. Raises Problem when it exceeds a limit, or is not base64."""
    if asked.queries is None:
        return _query((_part(asked, "{}", limits),), asked, limits)
    if len(asked.queries) > limits.max_examples:
        raise invalid("queries", f"at most {limits.max_examples} examples", f"{len(asked.queries)}")
    parts = (_part(example, f"queries.{number}.{{}}", limits) for number, example in enumerate(asked.queries))
    return _query(tuple(parts), asked, limits)


def query_of_upload(data: bytes, fields: UploadFields, limits: RequestLimits) -> Query:
    """The query of an uploaded picture. Raises Problem when it exceeds a limit."""
    return _query((Part(data=data),), fields, limits)


def parts_of(asked: EmbedRequest, limits: RequestLimits) -> "list[Part | Problem]":
    """For each item to embed, its part, or the problem with it."""
    name, values = next((name, values) for name, values in asked if values is not None)
    check_count(name, len(values), limits)
    return [_part_or_problem(name, number, value, limits) for number, value in enumerate(values)]


def check_count(field: str, count: int, limits: RequestLimits) -> None:
    """Raises Problem when a batch holds more than it may."""
    if count > limits.max_batch:
        raise invalid(field, f"at most {limits.max_batch}", count)


def too_large(what: str, max_bytes: int) -> Problem:
    """The problem of something over its limit."""
    return Problem("too-large", f"expected {what} of at most {max_bytes:,} bytes, got more")


def _part_or_problem(name: str, number: int, value: str, limits: RequestLimits) -> "Part | Problem":
    try:
        return _part(What(**{name.removesuffix("s"): value}), f"{name}.{number}", limits)
    except Problem as problem:
        return problem
    except ValidationError:
        return invalid(f"{name}.{number}", "at least 1 character", value)


def _query(parts: tuple[Part, ...], asked: Options, limits: RequestLimits) -> Query:
    if asked.k > limits.max_k:
        raise invalid("k", f"a whole number from 1 to {limits.max_k}", asked.k)
    if asked.k + asked.offset > MAX_K:
        raise invalid("offset", f"at most {MAX_K - asked.k}, for k + offset may be {MAX_K}", asked.offset)
    options = SearchOptions(
        offset=asked.offset, min_score=asked.min_score, filter=asked.filter, distinct=asked.distinct
    )
    fields = None if asked.fields is None else tuple(asked.fields)
    return Query(parts=parts, k=asked.k, options=options, fields=fields, allow_partial=asked.allow_partial)


def _part(what: What, at: str, limits: RequestLimits) -> Part:
    for name, value, longest in (
        ("url", what.url, limits.max_url_length),
        ("text", what.text, limits.max_text_length),
        ("id", what.id, limits.max_id_length),
    ):
        if value is not None and len(value) > longest:
            raise invalid(at.format(name), f"at most {longest} characters", f"{len(value)} characters")
    return Part(
        data=None if what.image is None else _decoded(what.image, at.format("image"), limits),
        url=what.url,
        text=what.text,
        image_id=what.id,
        vector=None if what.embedding is None else _direction(what.embedding, at.format("embedding")),
        weight=what.weight if isinstance(what, Example) else 1.0,
        at=at,
    )


def _decoded(text: str, field: str, limits: RequestLimits) -> bytes:
    if len(text) * 3 // 4 - 2 > limits.max_upload_bytes:
        raise too_large(field, limits.max_upload_bytes)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(field, f"base64 ({error})", text[:20]) from error


def _direction(numbers: list[Any], field: str) -> NDArray[np.float32]:
    """The vector at unit length, computed in float64: squares of float32 values may not fit in a float32."""
    vector = np.asarray(numbers, np.float64)
    largest = np.abs(vector).max(initial=0.0)
    if not largest:
        raise invalid(field, "numbers, not all of them zero", f"{len(numbers)} zeros")
    vector /= largest
    return (vector / np.linalg.norm(vector)).astype(np.float32)
