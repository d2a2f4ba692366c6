"""Turns decoded pictures into rows with a model."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from itertools import product
from math import isqrt
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedder.errors import ModelError, Rejected
from embedder.protocol import Embedder
from index.collection.rows import EMBEDDING, TILES, embedding_column
from jobs.sources.listing import refuse

_MIN_CROPS = 32
"""Minimum crops of a forward pass. BLAS rounds smaller batches differently, so a picture's vector would depend on the
size of its block. A single new picture therefore costs as much as 32.
"""
_MIN_FAILURES = 8
"""If an embedder fails on every picture of a block of at least this size, the embedder itself is taken to be broken."""


def embed_rows(table: pa.Table, embedder: Embedder) -> pa.Table:
    """`table` with `embedding` in place of `pixels`; rows and other columns stay in order.

    `pixels` is fixed_size_binary[side·side·3], null for a rejected row. `embedding` is fixed_size_list<float32>[dim],
    null where `pixels` was null and for rows that become rejects because the embedder has no vector for them. Raises
    ModelError for a batch that the model fails on, so its rows are tried again. If the pixels of tiles follow those of
    the picture, the column `tiles` holds their vectors; a tile without a vector gets the picture's.
    """
    pixels, side = table["pixels"], embedder.crop.side
    parts, rest = divmod(pixels.type.byte_width, side**2 * 3)
    if rest or not parts:
        raise ModelError(
            f"expected pixels of {side**2 * 3} bytes, {side} × {side} × 3, got {pixels.type}: crop the pictures as "
            "the model that embeds them requires"
        )
    valid = np.array(pixels.is_valid())
    dim = embedder.identity.dim
    vectors = np.zeros((len(table), parts, dim), np.float32)
    crops = crops_of(pixels.drop_null(), side)
    rejected: dict[int, Rejected] = {}
    try:
        vectors[valid] = _embed_padded(embedder, crops).reshape(-1, parts, dim)
    except Rejected:
        for crop, (row, part) in enumerate(product(np.flatnonzero(valid).tolist(), range(parts))):
            try:
                vectors[row, part] = _embed_padded(embedder, crops[crop : crop + 1])[0]
            except Rejected as error:
                vectors[row, part] = vectors[row, 0]
                if part == 0:
                    rejected[row] = error
        if len(rejected) == valid.sum() >= _MIN_FAILURES:
            raise ModelError(
                f"none of {len(rejected)} pictures has a vector, the last one because {rejected[max(rejected)]}: fix "
                "the class, and run the same command again"
            ) from None
        valid[list(rejected)] = False
    rows = table.drop_columns("pixels").append_column(EMBEDDING, embedding_column(vectors[:, 0], ~valid))
    if parts > 1:
        rows = rows.append_column(TILES, embedding_column(vectors[:, 1:].reshape(len(table), -1), ~valid))
    reasons = {row: (each.stage, each.reason, each.message, each.retryable) for row, each in rejected.items()}
    return refuse(rows, reasons) if reasons else rows


def _embed_padded(embedder: Embedder, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    if 0 < len(crops) < _MIN_CROPS:
        return embedder.embed_images(np.resize(crops, (_MIN_CROPS, *crops.shape[1:])))[: len(crops)]
    return embedder.embed_images(crops)


def crops_of(pixels: pa.ChunkedArray[Any], side: int | None = None) -> NDArray[np.uint8]:
    """`(n, side, side, 3)` uint8: a read-only view of the column's memory if that is contiguous, else a copy.

    The column has no nulls. With `side` None each row has one crop.
    """
    array: Any = pixels.combine_chunks()
    length = array.type.byte_width
    # A slice shares its parent's buffer, hence the offset.
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8, len(array) * length, array.offset * length)
    side = side or isqrt(length // 3)
    return data.reshape(-1, side, side, 3)
