"""Turns request documents into queries: decodes base64 pictures and checks the limits that a schema cannot know."""

import base64
import binascii
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from api.errors import Problem, invalid
from api.http.field_errors import MAX_ERRORS, not_as_described, problem_of_invalid
from api.http.requests import BatchRequest, EmbedRequest, Example, Options, QuerySource, SearchRequest, UploadFields
from api.search.query import Part, Query
from api.settings import RequestLimits
from index.queries import MAX_K, SearchOptions

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")


def valid(document: object, model: type[M]) -> M:
    """The document as this model. Raises Problem."""
    # Each mistake would be listed, and take a thousand times its own size.
    if isinstance(document, dict) and len(document) > MAX_ERRORS:
        raise not_as_described(f"{len(document):,} fields")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise problem_of_invalid(error, model) from error


def search_of(document: object, *, dim: int, limits: RequestLimits) -> Query:
    """The query of a search; `dim` is the length of the index's vectors. Raises Problem."""
    _check_lengths(document, dim, limits)
    asked = valid(document, SearchRequest)
    if asked.queries is None:
        return _query((_part(asked, "{}", limits),), asked, limits)
    parts = (_part(example, f"queries.{number}.{{}}", limits) for number, example in enumerate(asked.queries))
    return _query(tuple(parts), asked, limits)


def searches_of(document: object, *, dim: int, limits: RequestLimits) -> "list[Query | Problem]":
    """For each search of a batch its query, or the problem with it."""
    _check_counts(document, limits, "searches")
    searches = valid(document, BatchRequest).searches
    return [_or_problem(search_of, each, dim=dim, limits=limits) for each in searches]


def parts_of(document: object, *, limits: RequestLimits) -> "list[Part | Problem]":
    """For each item to embed its part, or the problem with it."""
    _check_counts(document, limits, "images", "texts", "urls")
    name, values = next((name, values) for name, values in valid(document, EmbedRequest) if values is not None)
    return [_or_problem(_part_of_item, name, value, f"{name}.{number}", limits) for number, value in enumerate(values)]


def query_of_upload(data: bytes, fields: UploadFields, limits: RequestLimits) -> Query:
    """The query of an uploaded picture. Raises Problem when it exceeds a limit."""
    return _query((Part(data=data),), fields, limits)


def too_large(what: str, max_bytes: int) -> Problem:
    return Problem("too-large", f"expected {what} of at most {max_bytes:,} bytes, got more")


def _or_problem(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Problem:
    try:
        return read(*args, **kwargs)
    except Problem as problem:
        return problem


def _check_lengths(document: object, dim: int, limits: RequestLimits) -> None:
    """Raises Problem for lists of a search that are too long, before their elements are read one by one."""
    if not isinstance(document, dict):
        return
    _check_vector(document, "embedding", dim)
    queries = document.get("queries")
    if isinstance(queries, list):
        if len(queries) > limits.max_examples:
            raise invalid("queries", f"at most {limits.max_examples} examples", len(queries))
        for number, example in enumerate(queries):
            _check_vector(example, f"queries.{number}.embedding", dim)


def _check_vector(holder: object, field: str, dim: int) -> None:
    vector = holder.get("embedding") if isinstance(holder, dict) else None
    if isinstance(vector, list) and (not vector or len(vector) > dim):
        raise invalid(field, f"{dim} numbers, as the model of the index makes", len(vector))


def _check_counts(document: object, limits: RequestLimits, *fields: str) -> None:
    """Raises Problem when a batch, whose items are in one of `fields`, holds more than it may."""
    for field in fields:
        items = document.get(field) if isinstance(document, dict) else None
        if isinstance(items, list) and len(items) > limits.max_batch:
            raise invalid(field, f"at most {limits.max_batch}", len(items))


def _part_of_item(name: str, value: str, at: str, limits: RequestLimits) -> Part:
    try:
        return _part(QuerySource(**{name.removesuffix("s"): value}), at, limits)
    except ValidationError as error:
        raise invalid(at, "text that is not empty", value) from error


def _query(parts: tuple[Part, ...], asked: Options, limits: RequestLimits) -> Query:
    if not 1 <= asked.k <= limits.max_k:
        raise invalid("k", f"a whole number from 1 to {limits.max_k}", asked.k)
    if asked.k + asked.offset > MAX_K:
        raise invalid("offset", f"at most {MAX_K - asked.k}, for k + offset may be {MAX_K}", asked.offset)
    options = SearchOptions(
        offset=asked.offset, min_score=asked.min_score, filter=asked.filter, distinct=asked.distinct
    )
    fields = None if asked.fields is None else tuple(asked.fields)
    return Query(
        parts=parts,
        k=asked.k,
        options=options,
        fields=fields,
        allow_partial=asked.allow_partial,
    )


def _part(what: QuerySource, at: str, limits: RequestLimits) -> Part:
    for name, value, longest in (
        ("url", what.url, limits.max_url_length),
        ("text", what.text, limits.max_text_length),
        ("id", what.id, limits.max_id_length),
    ):
        if value is not None and len(value) > longest:
            raise invalid(at.format(name), f"at most {longest} characters", len(value))
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
        raise invalid(field, f"a picture's file in base64 ({error})", text) from error


def _direction(numbers: list[Any], field: str) -> NDArray[np.float32]:
    """The vector at unit length, computed in float64: squares of float32 values may not fit in a float32."""
    vector = np.asarray(numbers, np.float64)
    largest = np.abs(vector).max(initial=0.0)
    if not largest:
        raise invalid(field, "numbers, not all of them zero", numbers)
    vector /= largest
    return (vector / np.linalg.norm(vector)).astype(np.float32)
