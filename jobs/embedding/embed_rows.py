"""From decoded pictures and a model to rows."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedder.errors import ModelError, Rejected
from embedder.protocol import Embedder
from index.collection.rows import REJECT

_LEAST = 32
"""Crops of a forward pass: of fewer, BLAS rounds otherwise, and a picture's vector would depend on its block's size.
So a single new picture costs as much as 32.
"""
_BROKEN = 8
"""An embedder that fails on every picture of a block of so many is at fault itself."""


def embed_rows(table: pa.Table, embedder: Embedder) -> pa.Table:
    """`table` with `embedding` in place of `pixels`; rows and other columns stay in order.

    `pixels` is fixed_size_binary[side·side·3], null for a rejected row; `embedding` is fixed_size_list<float32>[dim],
    null where `pixels` was null, and in rows that become rejects because the embedder has no vector for them. A batch
    that the model fails on raises ModelError, so that its rows are tried again.
    """
    pixels = table["pixels"]
    kept = np.array(pixels.is_valid())
    dim = embedder.identity.dim
    vectors = np.zeros((len(table), dim), np.float32)
    crops = _stack(pixels.drop_null(), embedder.crop.side)
    rejected: dict[int, Rejected] = {}
    try:
        vectors[kept] = _embedded(embedder, crops)
    except Rejected:
        for crop, row in enumerate(np.flatnonzero(kept).tolist()):
            try:
                vectors[row] = _embedded(embedder, crops[crop : crop + 1])[0]
            except Rejected as error:
                rejected[row] = error
        if len(rejected) == len(crops) >= _BROKEN:
            raise ModelError(
                f"none of {len(crops)} pictures has a vector, the last one because {rejected[max(rejected)]}: mend the "
                "class, and run the same command again"
            ) from None
        kept[list(rejected)] = False
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim, mask=pa.array(~kept))
    return _with_rejects(table.drop_columns("pixels"), rejected).append_column("embedding", embedding)


def _embedded(embedder: Embedder, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    if 0 < len(crops) < _LEAST:
        return embedder.embed_images(np.resize(crops, (_LEAST, *crops.shape[1:])))[: len(crops)]
    return embedder.embed_images(crops)


def _with_rejects(table: pa.Table, rejected: dict[int, Rejected]) -> pa.Table:
    """`table` with the reasons of these rows, which had none."""
    if not rejected:
        return table
    for position, name in enumerate(REJECT):
        values = table[name].to_pylist()
        for row, error in rejected.items():
            values[row] = (error.stage, error.reason, error.message, error.retryable)[position]
        at = table.column_names.index(name)
        table = table.set_column(at, table.field(at), pa.array(values, table.field(at).type))
    return table


def _stack(column: pa.ChunkedArray[Any], side: int) -> NDArray[np.uint8]:
    """`(n, side, side, 3)` uint8, a read-only view of the column's memory; it has no nulls."""
    length = side * side * 3
    if column.type != pa.binary(length):
        raise ModelError(
            f"expected pixels of {length} bytes, {side} × {side} × 3, got {column.type}: cut the pictures with the "
            "crop of the model that embeds them"
        )
    array = column.combine_chunks()
    data: Any = array.buffers()[1] or b""
    # A slice shares its parent's buffer.
    pixels: NDArray[np.uint8] = np.frombuffer(data, np.uint8, len(array) * length, array.offset * length)
    return pixels.reshape(-1, side, side, 3)
