"""The first stage of the embedding pipeline, on CPUs: fetch and decode."""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from embedder.errors import FetchError, Rejected, folded
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.images import CropSpec
from embedder.images.decoder_pool import DecodePool
from index.storage.picture_reader import PictureReader
from jobs.embedding.worker_metrics import worker_metrics

_MAX_DECODERS = 2  # of a task, which reserves one CPU; more threads than that wait for the network
_PASSING = ("not_found", "permission_denied")
"""Reasons why a file cannot be read now: a lost disk, an expired token. There is no notice when it is back."""


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """The settings of the fetch and decode stage, sent to the workers."""

    crop: CropSpec
    draft: bool
    threads: int = 2


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
    _count(outcomes)
    for name, type_ in _OUTCOME_TYPES.items():
        table = table.append_column(name, pa.array([getattr(o, name) for o in outcomes], type_))
    # Facts from the listing stay; a list of URLs has no sizes.
    sizes = [size if size is not None else o.bytes_read for size, o in zip(listed_sizes, outcomes, strict=True)]
    table = table.set_column(table.column_names.index("size"), "size", pa.array(sizes, pa.int64()))
    side = settings.crop.side
    return table.append_column("pixels", pa.array([o.pixels for o in outcomes], pa.binary(side * side * 3)))


def _count(outcomes: Sequence[_Outcome]) -> None:
    metrics, stages = worker_metrics(), [outcome.error_stage for outcome in outcomes]
    metrics.stage("fetch", len(stages) - stages.count("fetch"), sum(each.fetch_seconds for each in outcomes))
    metrics.stage("decode", stages.count(None), sum(each.decode_seconds for each in outcomes))
    for reason in (each.error_reason for each in outcomes if each.error_reason):
        metrics.rejects.inc(1, {"reason": folded(reason)})


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
