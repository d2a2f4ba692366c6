"""From decoded pictures and a model to rows."""

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
"""Crops of a forward pass: of fewer, BLAS rounds otherwise, and a picture's vector would depend on its block's size.
So a single new picture costs as much as 32.
"""
_BROKEN = 8
"""An embedder that fails on every picture of a block of so many is at fault itself."""


def embed_rows(table: pa.Table, embedder: Embedder) -> pa.Table:
    """`table` with `embedding` in place of `pixels`; rows and other columns stay in order.

    `pixels` is fixed_size_binary[side·side·3], null for a rejected row; `embedding` is fixed_size_list<float32>[dim],
    null where `pixels` was null, and in rows that become rejects because the embedder has no vector for them. A batch
    that the model fails on raises ModelError, so that its rows are tried again. If there are the pixels of tiles behind
    those of the picture, there are `tiles` too, their vectors; one that the embedder has none for has the picture's.
    """
    pixels, side = table["pixels"], embedder.crop.side
    parts, rest = divmod(pixels.type.byte_width, side**2 * 3)
    if rest or not parts:
        raise ModelError(
            f"expected pixels of {side**2 * 3} bytes, {side} × {side} × 3, got {pixels.type}: cut the pictures with "
            "the crop of the model that embeds them"
        )
    kept = np.array(pixels.is_valid())
    dim = embedder.identity.dim
    vectors = np.zeros((len(table), parts, dim), np.float32)
    crops = crops_of(pixels.drop_null(), side)
    rejected: dict[int, Rejected] = {}
    try:
        vectors[kept] = _embedded(embedder, crops).reshape(-1, parts, dim)
    except Rejected:
        for crop, (row, part) in enumerate(product(np.flatnonzero(kept).tolist(), range(parts))):
            try:
                vectors[row, part] = _embedded(embedder, crops[crop : crop + 1])[0]
            except Rejected as error:
                vectors[row, part] = vectors[row, 0]
                if part == 0:
                    rejected[row] = error
        if len(rejected) == kept.sum() >= _BROKEN:
            raise ModelError(
                f"none of {len(rejected)} pictures has a vector, the last one because {rejected[max(rejected)]}: mend "
                "the class, and run the same command again"
            ) from None
        kept[list(rejected)] = False
    rows = table.drop_columns("pixels").append_column(EMBEDDING, embedding_column(vectors[:, 0], ~kept))
    if parts > 1:
        rows = rows.append_column(TILES, embedding_column(vectors[:, 1:].reshape(len(table), -1), ~kept))
    reasons = {row: (each.stage, each.reason, each.message, each.retryable) for row, each in rejected.items()}
    return refuse(rows, reasons) if reasons else rows


def _embedded(embedder: Embedder, crops: NDArray[np.uint8]) -> NDArray[np.float32]:
    if 0 < len(crops) < _MIN_CROPS:
        return embedder.embed_images(np.resize(crops, (_MIN_CROPS, *crops.shape[1:])))[: len(crops)]
    return embedder.embed_images(crops)


def crops_of(pixels: pa.ChunkedArray[Any], side: int | None = None) -> NDArray[np.uint8]:
    """`(n, side, side, 3)` uint8, a read-only view of the column's memory, if that is in one piece; it has no nulls.

    `side` None: a row has one crop.
    """
    array: Any = pixels.combine_chunks()
    length = array.type.byte_width
    # A slice shares its parent's buffer.
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8, len(array) * length, array.offset * length)
    side = side or isqrt(length // 3)
    return data.reshape(-1, side, side, 3)
