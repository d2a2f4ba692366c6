"""From plans to rows on disk, by Ray Data: fetch and decode (CPU tasks) → `EmbedBlock` actors, which write the rows.

Only summaries of blocks come back to the driver, so its memory does not grow with the images.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from rich.console import Console

from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.protocol import Embedder
from index.collection import Collection
from jobs.cluster.pool import DECODE_MEMORY, Pool
from jobs.cluster.session import lacking, ray_cluster
from jobs.embedding.commit import WrittenRun
from jobs.embedding.model import ModelSource, loaded_memory
from jobs.embedding.report import BlockSummary, EmbedReport
from jobs.embedding.stages import CollectionAt, DecodeSettings, EmbedBlock, fetch_and_decode
from jobs.errors import JobError
from jobs.planning.plan import Plan, block_of
from jobs.progress import rate_bar
from jobs.spec import JobSpec

DECODE_BATCH = 128
"""Rows of one decode task. With 32, Ray's own work for each task took a quarter of two cores from the demo's job."""


def write_plans(
    plans: Sequence[Plan],
    collection: Collection,
    spec: JobSpec,
    checkpoint: Checkpoint,
    console: Console,
    *,
    verbose: bool,
) -> list[WrittenRun]:
    """Write the rows of each plan, on one Ray cluster; `commit` makes them live.

    `checkpoint` is the plans' model. Raises what `write` raises, and `JobError` for a cluster that cannot be joined.
    """
    resources, model, written = spec.resources, plans[0].model, []
    load = ModelSource(
        model=model.id, revision=model.revision, device=resources.device, batch_size=resources.batch_size
    ).for_workers()
    try:
        with ray_cluster(resources.address, verbose=verbose):
            pool = Pool.fitting(
                resources.actors,
                resources.num_gpus,
                resources.accelerator_type,
                resources=resources.actor_resources,
                memory=loaded_memory(checkpoint),
            )
            if resources.address is not None and (waits := pool.lacking_now()):
                console.print(waits)
            for plan in plans:
                with rate_bar(console, "embedding", plan.todo.num_rows, "starting Ray and the model") as show:
                    run = write(
                        plan,
                        collection,
                        load=load,
                        crop=checkpoint.preprocessing.crop,
                        pool=pool,
                        block_size=resources.block_size,
                        draft=spec.draft,
                        progress=partial(_show, show),
                    )
                    written.append(run)
    except KeyboardInterrupt:
        console.print("what was embedded is kept: the same command goes on with it")
        raise
    return written


def _show(show: Callable[[int, str], None], report: EmbedReport) -> None:
    show(report.embedded + report.rejected, report.rate)


def write(
    plan: Plan,
    collection: Collection,
    *,
    load: Callable[[], Embedder],
    crop: CropSpec,
    pool: Pool,
    block_size: int = 256,
    draft: bool = True,
    progress: Callable[[EmbedReport], None] = lambda _: None,
) -> WrittenRun:
    """Write the rows of a plan's images; `progress` is called for each block that is on disk.

    `block_size` rows are embedded and written together; a crash can cost each actor so many. `draft` allows large JPEGs
    to be decoded at reduced scale. `LeaseLostError` once another job writes.
    """
    written = WrittenRun.begin(plan, collection)
    if plan.todo.num_rows == 0:
        return written
    seen = {block_of(file.path) for file in plan.files}
    actor = {
        "load": load,
        "fingerprint": plan.model.fingerprint,
        "collection": CollectionAt(collection.storage.address),  # with the credentials that were in it
        "run_id": written.run.run_id,
        "attempt": plan.attempt,
    }
    decode = DecodeSettings(crop=crop, draft=draft, threads=_decode_threads(plan.todo))
    for block in _blocks(plan.todo, decode, actor, block_size, pool):
        if block_of(block.path) not in seen:  # Ray may report a retried block twice
            seen.add(block_of(block.path))
            written.files.append(block.file)
            written.report.add(block)
        progress(written.report)
        collection.check_lease_lately()  # otherwise a job that lost its lease would compute to its end
    return written


def _decode_threads(todo: pa.Table) -> int:
    """Threads of a decode task: for local files two (one reads, the other decodes), more to wait for the network."""
    remote = pc.match_substring_regex(todo["uri"].drop_null(), "^(https?|s3|gs|az)://")
    return 16 if pc.any(remote).as_py() else 2


def _blocks(
    todo: pa.Table, decode: DecodeSettings, actor: dict[str, object], block_size: int, pool: Pool
) -> Iterator[BlockSummary]:
    """Run the pipeline; a summary of each block as soon as its rows are on disk."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    least, most = pool.actors
    # At most one block per task: an actor reports only at the end of a task.
    step = min(DECODE_BATCH, block_size)
    slices: list[pa.Table | bytes] = [todo.slice(start, step) for start in range(0, todo.num_rows, step)]
    rows = (
        ray.data.from_arrow(slices)
        .map_batches(
            fetch_and_decode,  # type: ignore[arg-type]  # Ray's type leaves fn_kwargs out
            fn_kwargs={"settings": decode},
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
            memory=DECODE_MEMORY,
        )
        .map_batches(
            EmbedBlock,
            fn_constructor_kwargs=actor,
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
            f"the job stopped: {lacking(error) or _innermost(error)}. What was embedded is kept; the same command goes "
            "on with it. --verbose shows what Ray and its workers print"
        ) from error


def _innermost(error: Exception) -> str:
    """The last line of a remote traceback with an exception that is not Ray's own; Ray wraps it in several others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*:", line) and not line.startswith("ray.")]
    return (named or lines)[-1]
