"""A query, once its request has been read, and its result."""

import base64
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from datetime import time as time_of_day
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from api.observe.request_record import notes
from embedder.identity import ModelIdentity
from index.match import Match
from index.queries import SearchOptions

DISTINCT: Final = 0.98
"""The cosine from which on images count as duplicates if a caller names none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One thing to be like, or unlike if `weight` is negative: the first of these fields that is given.

    `data` is a picture's file, `url` its address, `image_id` an image of the index, and `vector` `(dim,)` of any length
    but zero. `at` tells messages the place of a field in the request, for example "queries.2.{}".
    """

    data: bytes | None = None
    url: str | None = None
    text: str | None = None
    image_id: str | None = None
    vector: NDArray[np.float32] | None = None
    weight: float = 1.0
    at: str = "{}"

    @property
    def is_picture(self) -> bool:
        """Whether the part is a picture, so that scores are on the scale of pictures."""
        return self.text is None and self.vector is None and self.weight > 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """The mix of `parts`, and how many and which neighbours of it to return. `fields` None: all metadata columns.

    `allow_partial`: if a part of the index does not answer, answer from the others.
    """

    parts: tuple[Part, ...]
    k: int = 10
    options: SearchOptions = field(default_factory=SearchOptions)
    fields: tuple[str, ...] | None = None
    allow_partial: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Matches, best first, with the index version and model.

    `searched` of the `ntotal` images were searched: fewer than all if a part of the index did not answer and the caller
    allowed that. `timing_ms`: fetch, decode and embed, if the query needed them, search and total.
    """

    matches: list[Match]
    version: str
    ntotal: int
    searched: int
    model: ModelIdentity
    timing_ms: Mapping[str, float]


class Stopwatch:
    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the block's time to a stage."""
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            notes().stages.append((name, seconds))

    def milliseconds(self) -> dict[str, float]:
        """By stage, and `total` since the watch was made."""
        total = time.perf_counter() - self._started
        return {name: seconds * 1e3 for name, seconds in (*self._seconds.items(), ("total", total))}


def plain(value: Any) -> Any:
    """A value of a metadata column as JSON can hold it: no NaN, bytes as base64, times in ISO 8601."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case datetime() | date() | time_of_day():
            return value.isoformat()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return str(value)
