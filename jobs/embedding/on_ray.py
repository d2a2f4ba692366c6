"""Runs the stages with Ray Data: tasks fetch and decode, actors embed, and both report to Ray's own metrics."""

import re
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data

from embedder.errors import reason_label
from index.collection.rows import FILTERED
from jobs.cluster.pool import DECODE_MEMORY, Pool
from jobs.cluster.session import missing_package_message
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import DecodeSettings, EmbedBlock, EmbedSettings, fetch_and_decode
from jobs.embedding.worker_metrics import worker_metrics
from jobs.errors import JobError

DECODE_BATCH = 128
"""Rows of one decode task. With 32, Ray's overhead per task took a quarter of two cores from the demo's job."""


def blocks_on_ray(
    pool: Pool, todo: pa.Table, decode: DecodeSettings, embed: EmbedSettings, block_size: int
) -> Iterator[BlockSummary]:
    """`jobs.embedding.placement.Blocks` on the connected Ray, with the actors of `pool`. Raises JobError."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    least, most = pool.actors
    # At most one block per task, because an actor reports only at the end of a task.
    step = min(DECODE_BATCH, block_size)
    slices: list[pa.Table | bytes] = [todo.slice(start, step) for start in range(0, todo.num_rows, step)]
    rows = (
        ray.data.from_arrow(slices)
        .map_batches(
            decode_images,  # type: ignore[arg-type]  # Ray's type leaves fn_kwargs out
            fn_kwargs={"settings": decode},
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
            memory=DECODE_MEMORY,
        )
        .map_batches(
            EmbedImages,
            fn_constructor_args=(embed,),
            batch_size=block_size,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
            **pool.reserved,
        )
        .iter_rows()
    )
    try:
        for row in rows:
            yield BlockSummary(**row)
    except ray.exceptions.RayError as error:
        raise JobError(
            f"the job stopped: {missing_package_message(error) or _innermost(error)}. What was embedded is kept; run "
            "the same command again to continue. --verbose shows what Ray and its workers print"
        ) from error


def _innermost(error: Exception) -> str:
    """The last exception of a remote traceback that is not Ray's own; Ray wraps it in several others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*:", line) and not line.startswith("ray.")]
    return (named or lines)[-1]


def decode_images(table: pa.Table, *, settings: DecodeSettings) -> pa.Table:
    decoded, metrics = fetch_and_decode(table, settings=settings), worker_metrics()
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

    def __call__(self, table: pa.Table) -> pa.Table:
        since = self._ended or time.perf_counter()
        block, metrics = self._embed(table), worker_metrics()
        self._ended = time.perf_counter()
        metrics.stage("embed", block.embedded, block.model_seconds)
        metrics.stage("write", block.rows, block.write_seconds)
        metrics.idle.set(max(0.0, 1 - block.model_seconds / (self._ended - since)))
        return pa.Table.from_pylist([vars(block)])
