"""Runs the stages with Ray Data: tasks fetch and decode, actors embed, and both report to Ray's own metrics.

Each task and each block between the stages costs this process some milliseconds, however many images it has. So a task
reads up to 2,048 images itself, from files that are in the folder of the run meanwhile; and an actor that has a GPU, or
another device, gets several blocks in a call. `ray.data.read_parquet` would be one more stage, with blocks of whole
files, and would need the credentials of a bucket in arguments that Ray logs.
"""

import asyncio
import pickle
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray
import ray.data
from ray.util.metrics import Counter, Gauge

from embedder.errors import reason_label
from index.collection.layout import TODO, run_path
from index.collection.row_files import parquet_of
from index.collection.rows import FILTERED, in_parts
from index.collection.stored_rows import StoredRows
from index.storage import Storage
from jobs.cluster.pool import DECODE_MEMORY, Pool
from jobs.cluster.session import missing_package_message
from jobs.embedding.ahead import decoded_ahead
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import (
    STORED,
    CollectionAt,
    DecodeSettings,
    EmbedBlock,
    EmbedSettings,
    Work,
)
from jobs.errors import JobError
from jobs.sources.stored_listing import Listing

DECODE_BATCH = 128
"""Rows that a task decodes at a time."""
_TASK_ROWS = 2048
_TASKS_PER_CPU = 4
_FILE_ROWS = 1 << 16  # of the images to do
_PICKLED = "rows"
_OUTCOME_BYTES = 256  # of a row's columns but its pixels and those of the listing
_BYTES = 160 << 20  # of a block between the stages: four of 256 pictures of 224 × 224


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """A row group of a file, with the images of one task."""

    path: str
    number: int

    def read(self, storage: Storage) -> pa.Table:
        with (
            storage.open_input(self.path) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as parquet,
        ):
            return parquet.read_row_group(self.number)


def blocks_on_ray(todo: Listing, work: Work, pool: Pool) -> Iterator[BlockSummary]:
    """Blocks made on the connected Ray, with the actors of `pool`. Raises JobError."""
    with _stored(work.embed) as folder:
        groups, size = store_groups(todo, _rows_of_task(todo, work.block_size), work.embed.collection().storage, folder)
        _set_context(_bytes_between(pool, size // max(1, todo.num_rows), work))
        tasks: list[pa.Table | bytes] = [pa.Table.from_pylist([asdict(group)]) for group in groups]
        decoded = ray.data.from_arrow(tasks).map_batches(
            decode_images,  # type: ignore[arg-type]  # Ray's type leaves fn_kwargs out
            fn_kwargs={
                "collection": work.embed.collection,
                "folder": folder,
                "settings": work.decode,
                "block_size": work.block_size,
            },
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
            memory=DECODE_MEMORY,
        )
        yield from _embed(decoded, EmbedImages, work.embed, work.block_size, pool)


def stored_blocks_on_ray(blocks: Iterable[StoredRows], embed: EmbedSettings, pool: Pool) -> Iterator[BlockSummary]:
    """Like `blocks_on_ray`, of rows whose vectors the actors read themselves, with all CPUs of their nodes."""
    _set_context(_BYTES)
    tasks: list[pa.Table | bytes] = [pa.table({_PICKLED: [pickle.dumps(rows)]}) for rows in blocks]
    threads = max(1, _cpus() // pool.actors[1])
    # faiss and OpenBLAS read this when they are loaded, before an actor could set it.
    environment = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads)}}}
    yield from _embed(ray.data.from_arrow(tasks), EmbedStored, embed, 1, pool, **environment)


def _set_context(block_bytes: int) -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = block_bytes


def _embed(
    rows: ray.data.Dataset, actor: type[Any], embed: EmbedSettings, batch_size: int, pool: Pool, **options: Any
) -> Iterator[BlockSummary]:
    """What the actors make of some rows; `options` are Ray's for an actor."""
    least, most = pool.actors
    summaries = rows.map_batches(
        actor,
        fn_constructor_args=(embed,),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
        **pool.reserved,
        **options,
    ).iter_batches(batch_size=None, batch_format="pyarrow")
    try:
        for table in summaries:
            for row in table.to_pylist():  # type: ignore[union-attr]  # Ray's type leaves `batch_format` out
                yield BlockSummary(**row)
    except ray.exceptions.RayError as error:
        raise JobError(
            f"the job stopped: {missing_package_message(error) or _innermost(error)}. What was embedded is kept; "
            "run the same command again to continue. --verbose shows what Ray and its workers print"
        ) from error


def _cpus() -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]


@contextmanager
def _stored(embed: EmbedSettings) -> Iterator[str]:
    """A folder of the collection for the images to do, where workers read them; removed at the end."""
    storage = embed.collection().storage
    for entry in storage.list(run_path(embed.run_id)):
        if entry.name.startswith(TODO):
            storage.delete(entry.path)  # of a job that was killed
    # A job that lost its lease must not remove the files of the one that resumed its run.
    folder = run_path(embed.run_id, f"{TODO}{secrets.token_hex(4)}")
    try:
        yield folder
    finally:
        with suppress(OSError):  # `prune` removes what is left
            storage.delete(folder)


def store_groups(todo: Listing, rows: int, storage: Storage, folder: str) -> tuple[list[RowGroup], int]:
    """Write the images to files of a folder, in row groups of `rows`; returns these, and the bytes of all in memory."""
    groups, size = list[RowGroup](), 0
    for number, part in enumerate(in_parts(todo.tables(rows), _FILE_ROWS)):
        path, listed = f"{number:06}.parquet", pa.concat_tables(part).select(todo.schema.names)
        storage.write_atomic(f"{folder}/{path}", parquet_of(listed, rows))
        groups += [RowGroup(path=path, number=group) for group in range(-(-listed.num_rows // rows))]
        size += listed.nbytes
    return groups, size


def _rows_of_task(todo: Listing, block_size: int) -> int:
    """So many that each CPU gets some tasks, if there are enough; and whole blocks, if they fit."""
    unit = block_size if block_size <= _TASK_ROWS else DECODE_BATCH
    return min(_TASK_ROWS, -(-todo.num_rows // (_TASKS_PER_CPU * _cpus()) // unit) * unit)


def _bytes_between(pool: Pool, row_bytes: int, work: Work) -> int:
    """The size at which Ray Data ends a block between the stages: that of whole blocks of rows, or an equal part of one
    that is too large; `row_bytes` are those of a listed image. An actor reports at the end of a call, and without a
    device one block may take it half a minute.
    """
    if work.decode.crop is None:
        return _BYTES  # files may have any size
    row = prod(work.decode.crop.shape) + row_bytes + _OUTCOME_BYTES
    size, has_device = work.block_size * row, bool(pool.num_gpus or pool.resources)
    parts, blocks = -(-size // _BYTES), max(1, _BYTES // size) if has_device else 1
    return int(0.9 * size * blocks / parts)  # it ends one that is larger, and splits one that is half as large again


def _innermost(error: Exception) -> str:
    """The last exception of a remote traceback that is not Ray's own; Ray wraps it in several others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*:", line) and not line.startswith("ray.")]
    return (named or lines)[-1]


def decode_images(
    groups: pa.Table,
    *,
    collection: CollectionAt,
    folder: str,
    settings: DecodeSettings,
    block_size: int,
) -> Iterator[pa.Table]:
    """Fetch and decode the images of `RowGroup`s whose files are in a folder of the collection."""
    storage = collection().storage.subfolder(folder)

    def batches() -> Iterator[pa.Table]:
        for group in groups.to_pylist():
            table = RowGroup(**group).read(storage)
            for block in range(0, table.num_rows, block_size):
                rows = table.slice(block, block_size)
                for start in range(0, rows.num_rows, DECODE_BATCH):
                    yield rows.slice(start, DECODE_BATCH)

    with decoded_ahead(batches(), settings, settings.tables_ahead(DECODE_BATCH)) as decoded:
        yield from map(_counted, decoded)


class _WorkerMetrics:
    """This process's metrics, which Ray's nodes export for Prometheus. Ray prefixes their names with `ray_` and adds
    `_total` to counters. Work that it retries is counted again, because it was done again.
    """

    def __init__(self) -> None:
        self.rows = Counter("likeness_job_rows", "Images that a stage of embedding has finished.", tag_keys=("stage",))
        self.rejects = Counter("likeness_job_rejects", "Images that cannot be used.", tag_keys=("reason",))
        self.seconds = Counter("likeness_job_stage_seconds", "Seconds spent in each stage.", tag_keys=("stage",))
        self.idle = Gauge(
            "likeness_job_actor_idle_share",
            "Share of time, over its last block, in which an actor and its GPU (if any) embedded nothing.",
        )

    def stage(self, name: str, rows: int, seconds: float) -> None:
        """Count the rows and seconds of a stage. Ray refuses to count zero."""
        if rows:
            self.rows.inc(rows, {"stage": name})
        if seconds > 0:
            self.seconds.inc(seconds, {"stage": name})


_worker_metrics = cache(_WorkerMetrics)


def _counted(decoded: pa.Table) -> pa.Table:
    """The same table, counted in Ray's metrics."""
    metrics = _worker_metrics()
    stages = decoded["error_stage"].to_pylist()
    metrics.stage("fetch", len(stages) - stages.count("fetch"), pc.sum(decoded["fetch_seconds"]).as_py())
    metrics.stage("decode", stages.count(None) + stages.count("filter"), pc.sum(decoded["decode_seconds"]).as_py())
    for reason in decoded["error_reason"].drop_null().to_pylist():
        if reason != FILTERED:
            metrics.rejects.inc(1, {"reason": reason_label(str(reason))})
    return decoded


class EmbedImages:
    """Ray Data's actor: constructs `EmbedBlock` in its own process, so no loaded model has to be sent to it."""

    def __init__(self, settings: EmbedSettings) -> None:
        self._embed = EmbedBlock(settings)
        self._ended: float | None = None

    async def __call__(self, table: pa.Table) -> pa.Table:
        """Embed a block, one at a time. Ray begins the next ones of a task while it is written."""
        since, metrics = self._ended or time.perf_counter(), _worker_metrics()
        rows, facts = self._embed.make(table)
        self._ended = time.perf_counter()
        metrics.idle.set(max(0.0, 1 - facts["model_seconds"] / (self._ended - since)))
        block = await asyncio.to_thread(self._embed.write, rows, facts)
        metrics.stage("embed", block.embedded, block.model_seconds)
        metrics.stage("write", block.rows, block.write_seconds)
        return pa.Table.from_pylist([vars(block)])


class EmbedStored(EmbedImages):
    """The same for stored rows, pickled: in Ray Data's arguments it could log the credentials of a bucket."""

    async def __call__(self, table: pa.Table) -> pa.Table:
        rows: StoredRows = pickle.loads(table[_PICKLED][0].as_py())
        return await super().__call__(rows.read(STORED))
