"""The stages of the embedding pipeline: fetch and decode on CPUs, then embed and write blocks of rows in actors."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from embedder.errors import FetchError, ModelError, Rejected, folded
from embedder.fetch import Fetcher
from embedder.images import CropSpec
from embedder.images.decoder_pool import DecodePool
from embedder.protocol import Embedder
from index.collection import Collection
from index.storage.bucket import without_secrets
from index.storage.picture_reader import PictureReader
from jobs.embedding.report import BlockSummary
from jobs.embedding.worker_metrics import worker_metrics
from jobs.errors import OtherModelError
from jobs.planning.plan import block_name

_MAX_DECODERS = 2  # of a task, which reserves one CPU; more threads than that wait for the network
_PASSING = ("not_found", "permission_denied")
"""Reasons why a file cannot be read now: a lost disk, an expired token. There is no notice when it is back."""
SECONDS = ("fetch_seconds", "decode_seconds")
"""Columns of `fetch_and_decode` that are summed for each block and not written."""


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    crop: CropSpec
    draft: bool
    threads: int = 2


_OUTCOME: dict[str, pa.DataType] = {
    "content_hash": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "format": pa.string(),
    "error_stage": pa.string(),
    "error_reason": pa.string(),
    "error_message": pa.string(),
    "retryable": pa.bool_(),
    "fetch_seconds": pa.float64(),
    "decode_seconds": pa.float64(),
}


def fetch_and_decode(table: pa.Table, *, settings: DecodeSettings) -> pa.Table:
    """A batch of a listing with `pixels` (fixed_size_binary, null for a reject), facts about the file, and reasons."""
    fetcher, decoders = _fetcher(), _decoders(min(settings.threads, _MAX_DECODERS))
    with ThreadPoolExecutor(settings.threads) as pool:
        outcomes = list(pool.map(lambda uri: _outcome(uri, fetcher, decoders, settings), table["uri"].to_pylist()))
    _count(outcomes)
    pixels = pa.binary(settings.crop.side**2 * 3)
    found = pa.Table.from_pylist(outcomes, pa.schema({"size": pa.int64(), **_OUTCOME, "pixels": pixels}))
    # Facts from the listing stay; a list of URLs has no sizes.
    sizes = pc.coalesce(table["size"], found["size"])
    table = table.set_column(table.column_names.index("size"), "size", sizes)
    for name in (*_OUTCOME, "pixels"):
        table = table.append_column(name, found[name])
    return table


def _count(outcomes: Sequence[Mapping[str, Any]]) -> None:
    metrics, stages = worker_metrics(), [outcome.get("error_stage") for outcome in outcomes]
    metrics.stage("fetch", len(stages) - stages.count("fetch"), sum(each["fetch_seconds"] for each in outcomes))
    metrics.stage("decode", stages.count(None), sum(each["decode_seconds"] for each in outcomes))
    for outcome in outcomes:
        if reason := outcome.get("error_reason"):
            metrics.rejects.inc(1, {"reason": folded(reason)})


@cache
def _fetcher() -> Fetcher:
    """One per worker process: connections are kept between batches. The operator's own sources are trusted."""
    return Fetcher(buckets=PictureReader())


_decoders = cache(DecodePool)
"""One per worker process, kept between batches."""


def _outcome(uri: str | None, fetcher: Fetcher, decoders: DecodePool, settings: DecodeSettings) -> dict[str, Any]:
    """A row's picture, or the reason why there is none, by column."""
    started, fetched = time.perf_counter(), None
    outcome: dict[str, Any] = {}
    try:
        if uri is None:
            raise FetchError("no_uri", "the list has no uri for this row")
        data = fetcher.fetch(uri)
        fetched = time.perf_counter()
        outcome |= {"content_hash": hashlib.sha256(data).hexdigest(), "size": len(data)}
        image = decoders.decode(data, settings.crop, draft=settings.draft)
        outcome |= {"pixels": image.pixels.tobytes(), "width": image.width, "height": image.height}
        outcome["format"] = image.format
    except Rejected as error:
        outcome |= {"error_stage": error.stage, "error_reason": error.reason, "error_message": error.message}
        outcome["retryable"] = error.retryable or error.reason in _PASSING
    ended = time.perf_counter()
    return outcome | {"fetch_seconds": (fetched or ended) - started, "decode_seconds": ended - (fetched or ended)}


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
        seconds = {name: pc.sum(table[name]).as_py() for name in SECONDS}
        started_at, started = time.time(), time.perf_counter()
        rows = embed_rows(table.drop_columns(list(SECONDS)), self._embedder)
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
    vectors[kept] = embedder.embed_images(_stack(pixels.drop_null(), embedder.crop.side))
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim, mask=pa.array(~kept))
    return table.drop_columns("pixels").append_column("embedding", embedding)


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
