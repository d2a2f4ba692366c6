"""The first stage of the embedding pipeline, on CPUs: fetch and decode."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import FetchError, Rejected, folded
from embedder.fetch import Fetcher
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
