"""The second stage of the embedding pipeline, in actors: embed a block of rows and write it."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from embedder.errors import ModelError
from embedder.protocol import Embedder
from index.collection import Collection
from index.storage.bucket import without_secrets
from jobs.embedding.report import BlockSummary
from jobs.embedding.worker_metrics import worker_metrics
from jobs.errors import OtherModelError
from jobs.planning.plan import block_name

_SECONDS = ("fetch_seconds", "decode_seconds")


class CollectionAt:
    """Opens a collection on a worker. Ray Data logs its operators' arguments, and this one shows no credentials."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self) -> Collection:
        return Collection.open(self._address)

    def __repr__(self) -> str:
        return f"CollectionAt({without_secrets(self._address)!r})"


class EmbedBlock:
    """The actor: embeds a block of rows and writes it as one file of the run, so that it is never embedded again.

    `load` is called in the actor's own process, so that no loaded model is sent to it.
    """

    def __init__(
        self, *, load: Callable[[], Embedder], fingerprint: str, collection: CollectionAt, run_id: str, attempt: int
    ) -> None:
        self._embedder = load()
        identity = self._embedder.identity
        if identity.fingerprint != fingerprint:
            raise OtherModelError(
                f"this worker loaded {identity.model_id} with fingerprint {identity.fingerprint[:12]}, the job began "
                f"with {fingerprint[:12]}: put the same model files on every machine"
            )
        self._collection = collection()
        self._run_id = run_id
        self._attempt = attempt
        self._name = f"{platform.node()}:{os.getpid()}"
        self._ended: float | None = None

    def __call__(self, table: pa.Table) -> pa.Table:
        seconds = {name: pc.sum(table[name]).as_py() for name in _SECONDS}
        started_at, started = time.time(), time.perf_counter()
        rows = embed_rows(table.drop_columns(list(_SECONDS)), self._embedder)
        ids = [str(image_id) for image_id in rows["image_id"].to_pylist()]
        embedded = time.perf_counter()
        file = self._collection.write_rows(self._run_id, block_name(self._attempt, ids), rows)
        rejected = rows.num_rows - rows["error_reason"].null_count
        ended = time.perf_counter()
        summary = BlockSummary(
            path=file.path,
            actor=self._name,
            rows=file.rows,
            size=file.size,
            sha256=file.sha256,
            embedded=rows.num_rows - rejected,
            rejected=rejected,
            started_at=started_at,
            ended_at=time.time(),
            model_seconds=embedded - started,
            write_seconds=ended - embedded,
            **seconds,
        )
        self._count(summary, started, ended)
        return pa.Table.from_pylist([vars(summary)])

    def _count(self, block: BlockSummary, started: float, ended: float) -> None:
        metrics, since = worker_metrics(), self._ended or started
        metrics.stage("embed", block.embedded, block.model_seconds)
        metrics.stage("write", block.rows, block.write_seconds)
        metrics.idle.set(max(0.0, 1 - block.model_seconds / (ended - since)))
        self._ended = ended


def embed_rows(table: pa.Table, embedder: Embedder) -> pa.Table:
    """`table` with `embedding` in place of `pixels`; rows and other columns stay in order.

    `pixels` is fixed_size_binary[side·side·3], null for a rejected row; `embedding` is fixed_size_list<float32>[dim],
    null where `pixels` was null. A batch that the model fails on raises ModelError, so that its rows are tried again.
    """
    pixels = table["pixels"]
    kept = pixels.is_valid().to_numpy()
    dim = embedder.identity.dim
    vectors = np.zeros((len(table), dim), np.float32)
    vectors[kept] = embedder.embed_images(_stack(pixels, embedder.crop.side)[kept])
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim, mask=pa.array(~kept))
    return table.drop_columns("pixels").append_column("embedding", embedding)


def _stack(column: pa.ChunkedArray[Any], side: int) -> NDArray[np.uint8]:
    """`(n, side, side, 3)` uint8, a read-only view of the column's memory; a row that is null holds anything."""
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
