"""The Ray Data stage that turns crops into embeddings."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from embedder.errors import ModelError
from embedder.protocol import Embedder, ModelIdentity


class EmbedImages:
    """A `map_batches` actor class (batch format "pyarrow"): replaces the column `pixels` by `embedding`.

    `load` is called once, in the actor's own process, so that no loaded model is sent to the worker.
    """

    def __init__(self, load: Callable[[], Embedder]) -> None:
        self._embedder = load()

    @property
    def identity(self) -> ModelIdentity:
        return self._embedder.identity

    def __call__(self, table: pa.Table) -> pa.Table:
        """`table` without `pixels` and with `embedding`; rows and other columns stay in order.

        `pixels` is binary of side·side·3 bytes, null for a rejected row; `embedding` is
        fixed_size_list<float32>[dim], null where `pixels` was null.

        A batch that the model fails on raises ModelError, so that its rows are tried again and none is lost.
        """
        crops = _as_binary(table.column("pixels"))
        kept = pc.is_valid(crops).to_numpy(zero_copy_only=False)
        vectors = np.zeros((len(table), self.identity.dim), np.float32)
        vectors[kept] = self._embedder.embed_images(_stack(crops.drop_null(), self._embedder.crop.side))
        embedding = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.ravel()), self.identity.dim, mask=pa.array(~kept)
        )
        return table.drop_columns("pixels").append_column("embedding", embedding)


def _as_binary(column: pa.ChunkedArray[Any]) -> pa.LargeBinaryArray:
    """One array of large_binary: its 64-bit offsets hold more than the 2 GB of pixels that binary can."""
    # A batch of rejects alone may come typed as null, which casts to anything.
    wide = column.cast(pa.large_binary())
    array = wide.chunk(0) if wide.num_chunks == 1 else wide.combine_chunks()
    return cast(pa.LargeBinaryArray, array)


def _stack(crops: pa.LargeBinaryArray, side: int) -> NDArray[np.uint8]:
    """`(n, side, side, 3)` uint8, a read-only view of the column's own memory; `crops` has no nulls."""
    length = side * side * 3
    if len(crops) == 0:
        return np.empty((0, side, side, 3), np.uint8)
    lengths = np.unique(pc.binary_length(crops).to_numpy())
    if lengths.tolist() != [length]:
        raise ModelError(
            f"expected pixels of {length} bytes, {side} × {side} × 3, got {lengths.tolist()}: cut the "
            "pictures with the crop of the model that embeds them"
        )
    _, offsets, data = crops.buffers()
    # A slice shares its parent's buffers, where nulls take no room: ask where the first row begins.
    first = int(np.frombuffer(offsets, np.int64)[crops.offset])  # type: ignore[call-overload]
    pixels: NDArray[np.uint8] = np.frombuffer(data, np.uint8, len(crops) * length, first)  # type: ignore[call-overload]
    return pixels.reshape(-1, side, side, 3)
