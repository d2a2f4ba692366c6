"""Queries to an index: their kinds, and vectors that are mixed from examples.

How far a search has to look, and what its scores mean, depends on the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from index.arrays import Vectors
from index.errors import QueryError

QueryKind = Literal["image", "mix", "contrast", "text"]
"""One image; a mix of several; a mix in which some have a negative weight; text."""

KINDS: Final[tuple[QueryKind, ...]] = get_args(QueryKind)

Source = Literal["image", "text", "vector"]
"""What a part of a query was made from. A vector that a caller sends may be of anything."""

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
