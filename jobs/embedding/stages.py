"""The stages of the embedding pipeline: fetch and decode on CPUs, then embed and write blocks of rows."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import FetchError, Rejected
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.images import CropSpec
from embedder.images.decode import DecodedImage
from embedder.images.decoder_pool import DecodePool
from embedder.images.decoder_process import IsAwaited
from embedder.images.limits import BOMB, DEFAULT_LIMITS, TOO_MANY_PIXELS, ImageLimits
from embedder.images.quality import MEASURED_CROP, measure
from index.collection import Collection
from index.collection.rows import EMBEDDING, FILTERED, in_files
from index.storage.bucket_address import without_secrets
from index.storage.picture_reader import PictureReader
from jobs.embedding.embed_rows import embed_rows
from jobs.embedding.report import BlockSummary
from jobs.errors import OtherModelError
from jobs.planning.image_filter import EVERY_IMAGE, EXIF_TYPES, MEASURE_TYPES, ImageFilter
from jobs.planning.plan import write_block
from jobs.sources.listing import FILE_FACTS, LISTING, REFUSAL, with_columns, with_outcome
from jobs.values import PER_HOST

_PIXEL_LIMITS = (TOO_MANY_PIXELS, BOMB)
_RETRY_LATER = ("not_found", "permission_denied", *_PIXEL_LIMITS)
"""Reasons that may pass without any change to the file, such as a lost disk, an expired token or a limit."""
_POLL_S = 0.2
_MAX_TABLES_AHEAD = 16
# Times `per_host`: after as many, a host that never answered is left alone. They take 40 s, as a short fault may.
_MAX_TIMEOUTS = 8
SECONDS = ("fetch_seconds", "decode_seconds")
"""Columns of `fetch_and_decode` that are summed per block and not written."""


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """How `fetch_and_decode` works: in `threads` that fetch, at most `per_host` from one host, and `decoders`
    (processes) that decode. Up to `ahead_bytes` of pixels wait until earlier pictures have come.

    With `crop` None files are passed on undecoded. `draft` allows large JPEGs to be decoded at reduced scale. Decoded
    pictures that `image_filter` leaves out are not embedded.
    """

    crop: CropSpec | None
    draft: bool = True
    threads: int = 2
    decoders: int = 2
    per_host: int = PER_HOST
    ahead_bytes: int = 0
    image_filter: ImageFilter = EVERY_IMAGE
    limits: ImageLimits = DEFAULT_LIMITS

    def tables_ahead(self, rows: int) -> int:
        """How many tables of so many rows may be decoded at a time; one if their size is not known."""
        size = rows * prod(self.crop.shape) if self.crop else self.ahead_bytes
        return max(1, min(_MAX_TABLES_AHEAD, self.ahead_bytes // max(1, size)))


_OUTCOME: dict[str, pa.DataType] = {
    **{field.name: field.type for field in in_files(pa.schema([*FILE_FACTS, *REFUSAL]))},
    **dict.fromkeys(SECONDS, pa.float64()),
}

_VALIDATORS: dict[str, pa.DataType] = {name: LISTING.field(name).type for name in ("etag", "modified")}


def fetch_and_decode(
    table: pa.Table,
    *,
    settings: DecodeSettings,
    threads: ThreadPoolExecutor | None = None,
    is_awaited: IsAwaited = lambda: True,
) -> pa.Table:
    """A batch of a listing with the columns of `_OUTCOME`, and `pixels` (fixed_size_binary, of `CropSpec.shape`) or,
    without a crop, `file` (large_binary); these are null for rejects. `threads` may be shared with other batches.

    Raises CancelledError soon after `is_awaited` returns False.
    """
    fetcher, crop, image_filter = _fetcher(settings.per_host), settings.crop, settings.image_filter
    measures, exif = image_filter.measures, bool(image_filter.settings.exif)
    decode = partial(_decoders(settings.decoders).decode, limits=settings.limits, draft=settings.draft, exif=exif)

    def outcome(uri: str | None) -> dict[str, Any]:
        if not is_awaited():
            raise CancelledError
        return _outcome(uri, fetcher, decode if crop else None, crop, measured=bool(measures))

    pool = threads or ThreadPoolExecutor(settings.threads)
    try:
        futures = [pool.submit(outcome, uri) for uri in table["uri"].to_pylist()]
        while (state := wait(futures, _POLL_S, FIRST_EXCEPTION)).not_done:
            if not is_awaited():
                raise CancelledError
            for future in state.done:
                future.result()  # raises the first exception now
        outcomes = [future.result() for future in futures]
    finally:
        if not threads:
            pool.shutdown(wait=False, cancel_futures=True)  # does not wait for slow hosts
    content = {"pixels": pa.binary(prod(crop.shape))} if crop else {"file": pa.large_binary()}
    measured = {name: MEASURE_TYPES[name] for name in measures}
    columns = {**_OUTCOME, **(EXIF_TYPES if exif else {}), **content}
    found = pa.Table.from_pylist(outcomes, pa.schema({"size": pa.int64(), **_VALIDATORS, **columns, **measured}))
    table = with_outcome(table, found, columns)
    if image_filter.conditions:
        table = _leave_out(table, found.select(list(measured)), image_filter)
    # After the filter, which sees these as the listing has them, today and when it is compared with the rows.
    known = {name: pc.coalesce(found[name], table[name].cast(kind)) for name, kind in _VALIDATORS.items()}
    return with_columns(table, known)


def _leave_out(table: pa.Table, measured: pa.Table, image_filter: ImageFilter) -> pa.Table:
    """`table` with a reason instead of pixels for each picture that is left out."""
    failed, _ = image_filter.judge(with_columns(table, {name: measured[name] for name in measured.column_names}))
    out = pc.is_valid(failed)  # includes broken pictures, as the next job would judge them by their rows
    if not pc.any(out).as_py():
        return table
    pixels = pc.if_else(out, pa.scalar(None, table["pixels"].type), table["pixels"])
    return image_filter.leave_out(with_columns(table, {"pixels": pixels}), failed)


@cache
def _fetcher(per_host: int) -> Fetcher:
    """One per worker process, to keep connections between batches. The operator's own sources are trusted."""
    policy = FetchPolicy(per_host=per_host, max_timeouts=_MAX_TIMEOUTS * per_host)
    return Fetcher(policy, buckets=PictureReader())


_decoders = cache(DecodePool)
"""One per worker process, kept between batches."""


def stop_decoders(settings: DecodeSettings) -> None:
    """Kill this process's decoding processes, even while they work; the next batch starts others."""
    _decoders(settings.decoders).close()


def drop_fetcher() -> None:
    """Forget what was read of Parquet files: the next job of `likeness watch` may find them rewritten."""
    _fetcher.cache_clear()


def _outcome(
    uri: str | None,
    fetcher: Fetcher,
    decode: Callable[[bytes, CropSpec], DecodedImage] | None,
    crop: CropSpec | None,
    *,
    measured: bool,
) -> dict[str, Any]:
    """A row's picture or file, or the reason why there is none, by column name; with `measured`, also its measures."""
    started, fetched = time.perf_counter(), None
    outcome: dict[str, Any] = {}
    try:
        if uri is None:
            raise FetchError("no_uri", "the list has no uri for this row")
        download = fetcher.download(uri)
        data, validators = download.data or b"", download.validators
        fetched = time.perf_counter()
        outcome |= {"content_hash": hashlib.sha256(data).hexdigest(), "size": len(data)}
        outcome |= {"etag": validators.etag, "modified": validators.modified}
        if decode is None or crop is None:
            outcome["file"] = data
        else:
            image = decode(data, crop)
            if measured:
                outcome |= measure(decode(data, MEASURED_CROP).pixels)
            outcome |= {"pixels": image.pixels.data, "width": image.width, "height": image.height}
            outcome |= {"format": image.format, **image.exif}
    except Rejected as error:
        more = ""
        if error.reason in _PIXEL_LIMITS:
            above = f" above {DEFAULT_LIMITS.max_pixels:,}" if error.reason == BOMB else ""
            more = f", or raise --max-pixels{above} (max_pixels in a job's file)"
        outcome |= {"error_stage": error.stage, "error_reason": error.reason, "error_message": error.message + more}
        outcome["retryable"] = error.retryable or error.reason in _RETRY_LATER
    ended = time.perf_counter()
    return outcome | {"fetch_seconds": (fetched or ended) - started, "decode_seconds": ended - (fetched or ended)}


STORED = ("image_id", "content_hash", EMBEDDING)
"""The columns of stored rows that `EmbedBlock` gets instead of pictures."""


class CollectionAt:
    """Opens a collection on a worker. Its repr hides credentials, because Ray Data logs its operators' arguments."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self) -> Collection:
        return Collection.open(self._address)

    def __repr__(self) -> str:
        return f"CollectionAt({without_secrets(self._address)!r})"


MakeRows = Callable[[pa.Table, Any], pa.Table]
"""Makes rows from decoded pictures and a model: `embed_rows`, or an annotation's function with its predictor."""


@dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    """What `EmbedBlock` needs: `load` loads a model whose `identity` has this fingerprint, and `make_rows` uses it to
    make rows of an attempt at a run of the collection.
    """

    load: Callable[[], Any]
    fingerprint: str
    collection: CollectionAt
    run_id: str
    attempt: int
    make_rows: MakeRows = embed_rows


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is done with images: `block_size` rows are embedded and written together."""

    decode: DecodeSettings
    embed: EmbedSettings
    block_size: int


class EmbedBlock:
    """Embeds a block of rows and writes it as one file of the run, so it is never embedded again."""

    def __init__(self, settings: EmbedSettings) -> None:
        self._settings, self._model = settings, settings.load()
        identity = self._model.identity
        if identity.fingerprint != settings.fingerprint:
            raise OtherModelError(
                f"this worker loaded {identity.model_id} with fingerprint {identity.fingerprint[:12]}, but the job "
                f"began with {settings.fingerprint[:12]}: put the same model files on every machine"
            )
        self._collection = settings.collection()
        self._name = f"{platform.node()}:{os.getpid()}"

    def each(self, tables: Iterable[pa.Table]) -> Iterator[BlockSummary]:
        """Blocks in order, each written while the next one is embedded: a bucket takes as long as a GPU."""
        with ThreadPoolExecutor(1, "likeness-write") as writer:
            before: Future[BlockSummary] | None = None
            for table in tables:
                block = writer.submit(self.write, *self.make(table))
                if before:
                    yield before.result()
                before = block
            if before:
                yield before.result()

    def make(self, table: pa.Table) -> tuple[pa.Table, dict[str, float]]:
        """The rows of a block, and those facts of its summary that are known before it is written."""
        seconds = {name: pc.sum(table[name]).as_py() for name in SECONDS if name in table.column_names}
        started_at, started = time.time(), time.perf_counter()
        rows = self._settings.make_rows(table.drop_columns(list(seconds)), self._model)
        return rows, {**seconds, "started_at": started_at, "model_seconds": time.perf_counter() - started}

    def write(self, rows: pa.Table, facts: dict[str, float]) -> BlockSummary:
        """Write an embedded block; any thread may."""
        started = time.perf_counter()
        file = write_block(self._collection, self._settings.run_id, self._settings.attempt, rows)
        filtered = rows["error_reason"].to_pylist().count(FILTERED)
        return BlockSummary(
            path=file.path,
            actor=self._name,
            rows=file.rows,
            size=file.size,
            sha256=file.sha256,
            embedded=rows["error_reason"].null_count,
            rejected=rows.num_rows - rows["error_reason"].null_count - filtered,
            filtered=filtered,
            ended_at=time.time(),
            write_seconds=time.perf_counter() - started,
            **facts,
        )
