"""Converts imported vectors to float32 of unit norm, and gives a reason for each unusable one."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Vectors

Floats = npt.NDArray[np.floating[Any]]
Problems = dict[int, tuple[str, str]]
"""By row number: the reason, and a message that says what was expected."""

_NORM_TOLERANCE = 1e-6  # vectors of models have norms this close to 1, and keep their bits
_MIN_NORM = 1e-12  # float32 holds no direction below this norm


def matrix_of(lists: Any, dim: int) -> tuple[Floats, Problems]:
    """Convert an array of lists to `(n, dim)`. Null lists, those of another length and null values become zeros."""
    lengths = pc.list_value_length(lists)
    valid = pc.equal(lengths, pa.scalar(dim, lengths.type)).fill_null(False).to_numpy(zero_copy_only=False)
    problems: Problems = {}
    for row in np.flatnonzero(~valid).tolist():
        if not lists[row].is_valid:
            problems[row] = ("no_vector", f"expected a vector of {dim} numbers, got null")
        else:
            problems[row] = ("wrong_length", f"expected a vector of {dim} numbers, got {lengths[row]}")
    values = (lists if valid.all() else lists.filter(pa.array(valid))).flatten()
    if values.null_count:
        nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) // dim
        for row in np.flatnonzero(valid)[np.unique(nulls)].tolist():
            problems[row] = ("null_value", f"expected {dim} numbers, but some are null")
        values = values.fill_null(0)
    vectors = values.to_numpy(zero_copy_only=False).reshape(-1, dim)
    if len(vectors) < len(lists):
        matrix = np.zeros((len(lists), dim), vectors.dtype)
        matrix[valid] = vectors
        return matrix, problems
    return vectors, problems


def unit_rows(vectors: Floats, problems: Problems) -> tuple[Vectors, int]:
    """Normalise rows, and count those that had another norm. Rows without a direction are added to `problems`.

    A vector that already has unit norm keeps its bits.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        unit = vectors.astype(np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", unit, unit, dtype=np.float64))
    finite = np.isfinite(norms)
    for row in np.flatnonzero(~finite | (norms < _MIN_NORM)).tolist():
        if row in problems:
            continue
        if finite[row]:
            problems[row] = ("zero_vector", f"expected a direction, got a vector of norm {norms[row]:g}")
        else:
            column = int(np.flatnonzero(~np.isfinite(unit[row]))[0])
            message = f"expected finite float32 values, but value {column} is {vectors[row, column]}"
            problems[row] = ("not_finite", message)
    other_norm = np.abs(norms - 1) > _NORM_TOLERANCE
    other_norm[list(problems)] = False
    unit[other_norm] /= norms[other_norm, np.newaxis]
    return unit, int(other_norm.sum())
