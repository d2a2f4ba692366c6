"""Normalises imported vectors to float32 of unit norm, and gives a reason for each unusable row."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Vectors

Floats = npt.NDArray[np.floating[Any]]
Problems = dict[int, tuple[str, str]]
"""Of rows: the reason, and what was expected and what came."""

_UNIT = 1e-6  # how far from 1 the norm of a model's own vectors may be: their bits stay
_SMALLEST = 1e-12  # a norm below which float32 holds no direction


def matrix_of(lists: Any, dim: int) -> tuple[Floats, Problems]:
    """An array of lists as `(n, dim)`, with zeros in place of those that are null, of another length or have nulls."""
    lengths = pc.list_value_length(lists)
    good = pc.equal(lengths, pa.scalar(dim, lengths.type)).fill_null(False).to_numpy(zero_copy_only=False)
    problems: Problems = {}
    for row in np.flatnonzero(~good).tolist():
        if not lists[row].is_valid:
            problems[row] = ("no_vector", f"expected a vector of {dim} numbers, got null")
        else:
            problems[row] = ("wrong_length", f"expected a vector of {dim} numbers, got {lengths[row]} of them")
    kept = lists if good.all() else lists.filter(pa.array(good))
    values = kept.flatten()
    if values.null_count:
        nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) // dim
        for row in np.flatnonzero(good)[np.unique(nulls)].tolist():
            problems[row] = ("null_value", f"expected {dim} numbers, some of them are null")
        values = values.fill_null(0)
    vectors = values.to_numpy(zero_copy_only=False).reshape(-1, dim)
    if len(vectors) < len(lists):
        whole = np.zeros((len(lists), dim), vectors.dtype)
        whole[good] = vectors
        vectors = whole
    return vectors, problems


def unit_rows(vectors: Floats, problems: Problems) -> tuple[Vectors, int]:
    """Rows of unit norm, and how many others were of another norm; `problems` gets those that have no direction.

    A vector that has unit norm already keeps its bits.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = vectors.astype(np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", found, found, dtype=np.float64))
    finite = np.isfinite(norms)
    for row in np.flatnonzero(~finite | (norms < _SMALLEST)).tolist():
        if row in problems:
            continue
        if finite[row]:
            problems[row] = ("zero_vector", f"expected a direction, got a vector of norm {norms[row]:g}")
        else:
            at = int(np.flatnonzero(~np.isfinite(found[row]))[0])
            problems[row] = ("not_finite", f"expected finite float32 values, value {at} is {vectors[row, at]}")
    off = np.abs(norms - 1) > _UNIT
    off[list(problems)] = False
    found[off] /= norms[off, np.newaxis]
    return found, int(off.sum())
