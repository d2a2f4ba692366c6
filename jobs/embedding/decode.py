"""The stages of the embedding pipeline, as Ray Data's workers run them: fetch and decode, then embed and write."""

import hashlib
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import FetchError, Rejected
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.images import CropSpec
from embedder.images.decoder_pool import DecodePool
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.records import RowFile
from index.storage.bucket import without_secrets
from index.storage.picture_reader import PictureReader
from jobs.embedding.actor import EmbedImages
from jobs.errors import OtherModelError
from jobs.planning.block_names import block_name

_SECONDS = ("fetch_seconds", "decode_seconds")
_MAX_DECODERS = 2  # of a task, which reserves one CPU; more threads than that wait for the network
_PASSING = ("not_found", "permission_denied")
"""Reasons why a file cannot be read now: a lost disk, an expired token. There is no notice when it is back."""


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """The settings of the fetch and decode stage, sent to the workers."""

    crop: CropSpec
    draft: bool
    threads: int


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """One row's picture or the reason why there is none. Field names are those of the row's columns."""

    pixels: bytes | None = None
    content_hash: str | None = None
    bytes_read: int | None = None
    width: int | None = None
    height: int | None = None
    format: str | None = None
    error_stage: str | None = None
    error_reason: str | None = None
    error_message: str | None = None
    retryable: bool | None = None
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0


_OUTCOME_TYPES: dict[str, pa.DataType] = {
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
    listed_sizes = table["size"].to_pylist()
    with ThreadPoolExecutor(settings.threads) as pool:
        outcomes = list(pool.map(lambda uri: _outcome(uri, fetcher, decoders, settings), table["uri"].to_pylist()))
    for name, type_ in _OUTCOME_TYPES.items():
        table = table.append_column(name, pa.array([getattr(o, name) for o in outcomes], type_))
    # Facts from the listing stay; a list of URLs has no sizes.
    sizes = [size if size is not None else o.bytes_read for size, o in zip(listed_sizes, outcomes, strict=True)]
    table = table.set_column(table.column_names.index("size"), "size", pa.array(sizes, pa.int64()))
    side = settings.crop.side
    return table.append_column("pixels", pa.array([o.pixels for o in outcomes], pa.binary(side * side * 3)))


@cache
def _fetcher() -> Fetcher:
    """One per worker process: connections are kept between batches. The operator's own sources are trusted."""
    return Fetcher(FetchPolicy(), buckets=PictureReader())


@cache
def _decoders(count: int) -> DecodePool:
    """One per worker process, kept between batches."""
    return DecodePool(count)


def _outcome(uri: str | None, fetcher: Fetcher, decoders: DecodePool, settings: DecodeSettings) -> _Outcome:
    started = time.perf_counter()
    fetched: float | None = None
    digest = None
    size = None
    try:
        if uri is None:
            raise FetchError("no_uri", "the list has no uri for this row")
        data = fetcher.fetch(uri)
        fetched = time.perf_counter()
        digest, size = hashlib.sha256(data).hexdigest(), len(data)
        image = decoders.decode(data, settings.crop, draft=settings.draft)
    except Rejected as error:
        ended = time.perf_counter()
        return _Outcome(
            content_hash=digest,
            bytes_read=size,
            error_stage=error.stage,
            error_reason=error.reason,
            error_message=error.message,
            retryable=error.retryable or error.reason in _PASSING,
            fetch_seconds=(fetched or ended) - started,
            decode_seconds=ended - (fetched or ended),
        )
    return _Outcome(
        pixels=image.pixels.tobytes(),
        content_hash=digest,
        bytes_read=size,
        width=image.width,
        height=image.height,
        format=image.format,
        fetch_seconds=fetched - started,
        decode_seconds=time.perf_counter() - fetched,
    )


@dataclass(frozen=True, kw_only=True)
class BlockSummary:
    """The result of one block of rows, which is all that the driver gets of it. `*_at` are Unix times."""

    path: str
    actor: str
    rows: int
    size: int
    sha256: str
    embedded: int
    rejected: int
    started_at: float
    ended_at: float
    fetch_seconds: float
    decode_seconds: float
    model_seconds: float
    write_seconds: float

    @classmethod
    def of(cls, row: dict[str, Any]) -> "BlockSummary":
        return cls(**{field.name: row[field.name] for field in fields(cls)})

    @property
    def file(self) -> RowFile:
        """The manifest's entry for its file."""
        return RowFile(path=self.path, rows=self.rows, size=self.size, sha256=self.sha256)


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

    Both happen in one call, so a crash costs at most the current block. `attempt` is the number of the run's attempt.
    """

    def __init__(
        self,
        *,
        load: Callable[[], Embedder],
        fingerprint: str,
        collection: CollectionAt,
        run_id: str,
        attempt: int,
    ) -> None:
        self._embed = EmbedImages(load)
        if self._embed.identity.fingerprint != fingerprint:
            raise OtherModelError(
                f"this worker loaded {self._embed.identity.model_id} with fingerprint "
                f"{self._embed.identity.fingerprint[:12]}, the job began with {fingerprint[:12]}: "
                "put the same model files on every machine"
            )
        self._collection = collection()
        self._run_id = run_id
        self._attempt = attempt
        self._name = f"{platform.node()}:{os.getpid()}"

    def __call__(self, table: pa.Table) -> pa.Table:
        seconds = {name: pc.sum(table[name]).as_py() for name in _SECONDS}
        started_at, started = time.time(), time.perf_counter()
        rows = self._embed(table.drop_columns(list(_SECONDS)))
        ids = [str(image_id) for image_id in rows["image_id"].to_pylist()]
        embedded = time.perf_counter()
        file = self._collection.write_rows(self._run_id, block_name(self._attempt, ids), rows)
        rejected = rows.num_rows - rows["error_reason"].null_count
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
            write_seconds=time.perf_counter() - embedded,
            **seconds,
        )
        return pa.Table.from_pylist([vars(summary)])
