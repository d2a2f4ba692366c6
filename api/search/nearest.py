"""From the vectors of a query to its matches: the part of a search that needs no model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from api.errors import Problem, abbreviate, invalid, invalid_fields
from api.search.query import Query
from index.collection.rows import FIXED
from index.errors import FilterError, QueryError
from index.match import Match
from index.queries import SearchOptions, mix
from index.search import Searcher
from index.search.sharded_index import ShardsLostError

Vector = NDArray[np.float32]


def nearest(searcher: Searcher, query: Query, vectors: Sequence[Vector]) -> list[Match]:
    """The nearest to the mix of `vectors`, one for each part. Images of the index that are parts are left out.

    Matches have a percentile if the query is a single picture. Problem names the refused field.
    """
    check_fields(searcher, query.fields)
    ids = {part.image_id for part in query.parts if part.image_id is not None}
    options: SearchOptions = {**query.options, "exclude": {*query.options.get("exclude", ()), *ids}}
    try:
        direction = mix(np.stack(vectors), [part.weight for part in query.parts])
    except QueryError as error:
        expected = "examples that do not cancel each other out: leave one out, or change a weight"
        raise invalid("queries", expected, [part.weight for part in query.parts]) from error
    try:
        matches = searcher.search(direction[np.newaxis], query.k, **options)[0]
    except FilterError as error:
        raise invalid_fields([{"field": "filter", "expected": error.expected, "got": error.got}]) from error
    except QueryError as error:
        raise _refused("body", str(error), {"k": query.k}) from error
    if len(query.parts) == 1 and query.parts[0].is_picture:
        matches = [replace(each, percentile=searcher.percentile(each.score)) for each in matches]
    if query.fields is not None:
        matches = [replace(each, metadata=_chosen(each.metadata, query.fields)) for each in matches]
    return matches


def nearest_allowing_partial(searcher: Searcher, query: Query, vectors: Sequence[Vector]) -> tuple[list[Match], int]:
    """Like `nearest`, with the number of images searched: fewer than all if the query allows it and shards are lost.

    Results of a lost shard are discarded: the answer is as if there were only the others. Problem `shard-unavailable`
    when the query does not allow this, or when no shard answers.
    """
    while True:
        try:
            return nearest(searcher, query, vectors), searcher.searched
        except ShardsLostError as error:
            if not (query.allow_partial and len(error.rest)):
                raise _unavailable(error) from error
            searcher = Searcher(searcher.manifest, error.rest)


def row_of_image(searcher: Searcher, image_id: str) -> dict[str, Any] | None:
    """Like `Searcher.row`. Problem `shard-unavailable` when the row may be in a shard that does not answer."""
    try:
        return searcher.row(image_id)
    except ShardsLostError as error:
        raise _unavailable(error) from error


def vector_of_image(searcher: Searcher, image_id: str, at: str) -> Vector:
    """The vector of an image of the index. Problem when there is no image of that id; `at` is as in `Part`.

    Problem `shard-unavailable` when it may be in a shard that does not answer.
    """
    try:
        return searcher.vector(image_id)
    except ShardsLostError as error:
        raise _unavailable(error) from error
    except QueryError as error:
        raise invalid(at.format("id"), f"an image of index version {searcher.version}", image_id) from error


def check_fields(searcher: Searcher, wanted: Sequence[str] | None) -> None:
    """Problem names the `wanted` fields that are no metadata columns. None: all are wanted."""
    known = sorted(searcher.filterable.keys() - FIXED)
    wrong = [name for name in wanted or () if name not in known]
    if wrong:
        expected = f"only {', '.join(known)}" if known else "none, for the images have no metadata"
        raise invalid_fields([{"field": "fields", "expected": expected, "got": abbreviate(name)} for name in wrong])


def _unavailable(error: ShardsLostError) -> Problem:
    return Problem("shard-unavailable", f"{error}: try again soon", retry_after_s=2)


def _refused(field: str, said: str, got: object) -> Problem:
    """The problem of a query that `index` refuses; its message says what was expected."""
    errors = [{"field": field, "expected": said, "got": abbreviate(got)}]
    return Problem("invalid-request", f"{field}: {said}", errors=errors)


def _chosen(metadata: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name in fields}
