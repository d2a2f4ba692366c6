"""Queries to an index: their kinds, their limits, and vectors that are mixed from examples.

How far a search has to look, and what its scores mean, depends on the kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, TypeGuard, get_args

import numpy as np
import numpy.typing as npt

from index.arrays import Vectors
from index.errors import QueryError

QueryKind = Literal["image", "mix", "contrast", "text"]
"""One image; a mix of several; a mix in which some have a negative weight; text."""

KINDS: Final[tuple[QueryKind, ...]] = get_args(QueryKind)

Source = Literal["image", "text", "vector"]
"""What a part of a query was made from. A vector that a caller sends may be of anything."""

MAX_K = 10_000
"""Maximum of `k + offset`."""

MAX_DIVERSE = 1_000
"""Maximum of `k + offset` with `diversity`, whose cost grows with its square."""

_CANCELLED = 1e-4  # relative to the weights; a shorter sum is mostly rounding of its float32 terms


def kind_of(parts: Sequence[tuple[Source, float]]) -> QueryKind | None:
    """The kind of a query of these parts, each with its weight. None for queries of which no kind is measured: those
    with a caller's vector, with text and images, with text of negative weight, or without a positive weight.
    """
    weights = [weight for _, weight in parts]
    sources = {source for source, _ in parts}
    if max(weights, default=0) <= 0:
        return None
    if sources == {"image"}:
        return "contrast" if min(weights) < 0 else "mix" if len(weights) > 1 else "image"
    return "text" if sources == {"text"} and min(weights) > 0 else None


class SearchOptions(TypedDict, total=False):
    """The keyword arguments of `Searcher.search`."""

    offset: int
    min_score: float | None
    filter: Mapping[str, Any] | None
    distinct: float | None
    diversity: float | None
    exclude: Iterable[str]
    fields: Sequence[str] | None
    kind: QueryKind | None


@dataclass(frozen=True, kw_only=True)
class QueryLimits:
    """Which of a query's neighbours to return: `k` after the first `offset`, of those that meet the conditions."""

    k: int
    offset: int
    min_score: float
    distinct: float | None
    diversity: float
    exclude: frozenset[str]

    @classmethod
    def checked(
        cls,
        k: object,
        offset: object,
        min_score: float | None,
        distinct: float | None,
        diversity: float | None,
        exclude: Iterable[str],
    ) -> QueryLimits:
        """QueryError names the first option that is invalid."""
        if not _is_whole(k) or not 1 <= k <= MAX_K:
            raise QueryError(f"k is {k!r}: expected a whole number from 1 to {MAX_K:,}")
        if not _is_whole(offset) or not 0 <= offset <= MAX_K - k:
            raise QueryError(f"offset is {offset!r}: expected a whole number from 0, and k + offset up to {MAX_K:,}")
        if diversity is not None and not _is_share(diversity):
            raise QueryError(f"diversity is {diversity!r}: expected a number from 0 to 1")
        if diversity and k + offset > MAX_DIVERSE:
            raise QueryError(f"k + offset is {k + offset:,}: expected {MAX_DIVERSE:,} at most with diversity")
        if isinstance(exclude, str):  # whose characters would be taken for ids
            raise QueryError(f"exclude is {exclude!r}: expected a set or a list of ids")
        return cls(
            k=int(k),
            offset=int(offset),
            min_score=-math.inf if min_score is None else checked_cosine("min_score", min_score),
            distinct=None if distinct is None else checked_cosine("distinct", distinct),
            diversity=float(diversity or 0),
            exclude=frozenset(exclude),
        )

    @property
    def depth(self) -> int:
        return self.k + self.offset


def checked_cosine(name: str, value: object) -> float:
    """`value` as a float. QueryError if it is not a number from -1 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not -1 <= value <= 1:
        raise QueryError(f"{name} is {value!r}: expected a cosine, from -1 to 1")
    return float(value)


def unit_vectors(vectors: npt.ArrayLike, dim: int) -> Vectors:
    """A normalised copy, `(n, dim)` float32. QueryError for another shape or a vector without a direction."""
    queries = np.array(vectors, dtype=np.float32, order="C")  # a copy: the caller's array may be read-only
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise QueryError(f"got vectors of shape {queries.shape}: the index takes (n, {dim})")
    norms = np.linalg.norm(queries, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.isfinite(norms[:, 0]) & (norms[:, 0] > 0)))
    if len(wrong):
        raise QueryError(f"vector {wrong[0]} is zero or not finite: expected a direction to search in")
    queries /= norms
    return queries


def mix(vectors: npt.ArrayLike, weights: Sequence[float]) -> Vectors:
    """The direction of the weighted sum of `(n, dim)` vectors, normalised first; `(dim,)` float32, unit norm.

    A negative weight moves it away from a vector. QueryError when there is nothing to mix, or the vectors cancel out.
    """
    examples = np.asarray(vectors, np.float64)
    if examples.ndim != 2 or len(examples) != len(weights) or not len(weights):
        raise QueryError(
            f"got {len(weights)} weights for vectors of shape {examples.shape}: expected one for each of (n, dim)"
        )
    factors = np.asarray(weights, np.float64)
    if not np.isfinite(factors).all():
        raise QueryError(f"the weights are {list(weights)}: expected numbers")
    total = factors @ unit_vectors(examples, examples.shape[1]).astype(np.float64)
    norm = np.linalg.norm(total)
    if norm <= _CANCELLED * np.abs(factors).sum():
        raise QueryError("the examples cancel each other out: leave one out, or change a weight")
    direction: Vectors = (total / norm).astype(np.float32)
    return direction


def _is_share(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0 <= value <= 1)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
