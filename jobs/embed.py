"""The embedding job: a source of images becomes rows of a collection, by Ray Data.

Listing (driver) → fetch and decode (CPU tasks) → `EmbedBlock` actors, which write the rows → the run's manifest as
the commit. Only summaries of blocks come back to the driver, so its memory does not grow with the images.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data

from embedder.images import CropSpec
from embedder.protocol import Embedder
from index.collection import Collection
from index.records import RowFile, RunManifest, RunStart
from index.rows import newest
from jobs.cluster import DECODE_MEMORY, Pool
from jobs.errors import JobError, TooManyRejectsError
from jobs.plan import Plan, fold, rejects_of
from jobs.report import EmbedReport, Progress, count_reasons
from jobs.request import EmbedOptions
from jobs.stages import BlockSummary, DecodeSettings, EmbedBlock, fetch_and_decode

DECODE_BATCH = 128
"""Rows of one decode task. With 32, Ray's own work for each task took a quarter of two cores from the demo's job."""


def embed(
    plan: Plan,
    collection: Collection,
    *,
    load: Callable[[], Embedder],
    crop: CropSpec,
    options: EmbedOptions,
    pool: Pool,
    progress: Progress,
) -> EmbedReport:
    """Carry a plan out and commit it as one run; Ray must be connected.

    `load` is called in each actor. Raises `JobError`, or `TooManyRejectsError`, with the run left
    unfinished: planned anew, the job goes on where this one stopped, as it does after a crash.
    """
    report = EmbedReport.of(plan)
    if plan.done:
        return report
    run = plan.run or collection.start_run(plan.source, plan.model)
    files = list(plan.files)
    if plan.todo.num_rows:
        actor = {
            "load": load,
            "fingerprint": plan.model.fingerprint,
            "location": collection.location,
            "run_id": run.run_id,
            "attempt": plan.attempt,
        }
        for block in _blocks(plan.todo, crop, actor, options, pool):
            files.append(RowFile(path=block.path, rows=block.rows, size=block.size))
            report.add(block)
            progress.advance(report)
    _commit(collection, run, files, plan, report, options.max_reject_rate)
    return report


def _blocks(
    todo: pa.Table, crop: CropSpec, actor: dict[str, object], options: EmbedOptions, pool: Pool
) -> Iterator[BlockSummary]:
    """Run the pipeline; a summary of each block as soon as its rows are on disk."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    decode = DecodeSettings(crop=crop, draft=options.draft, threads=options.decode_threads)
    least, most = pool.actors
    # No more than a block in one: an actor reports at the end of all that one task gave it.
    step = min(DECODE_BATCH, options.block_size)
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
            batch_size=options.block_size,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
            num_cpus=1,
            num_gpus=pool.num_gpus or None,
            accelerator_type=pool.accelerator_type,
        )
        .iter_rows()
    )
    try:
        for row in rows:
            yield BlockSummary.of(row)
    except ray.exceptions.RayError as error:
        raise JobError(
            f"the job stopped: {_innermost(error)}. What was embedded is kept; the same command goes on with it. "
            "--verbose shows what Ray and its workers print"
        ) from error


def _innermost(error: Exception) -> str:
    """The last line of a remote traceback that names an exception which is not Ray's own; Ray wraps it in several."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b.*:", line) and not line.startswith("ray.")]
    return (named or lines)[-1]


def _commit(
    collection: Collection,
    run: RunStart,
    files: list[RowFile],
    plan: Plan,
    report: EmbedReport,
    max_reject_rate: float,
) -> None:
    """Check that every listed image is accounted for once, and publish the run."""
    rows = fold(collection, files)
    missing = plan.todo.filter(pc.invert(pc.is_in(plan.todo["image_id"], value_set=rows["image_id"]))).num_rows
    if missing or report.embedded + report.rejected != plan.todo.num_rows:
        raise JobError(
            f"of {plan.todo.num_rows} images {report.embedded} came back embedded and {report.rejected} rejected, and "
            f"{missing} are in no file. The run stays unfinished; the same command goes on with it. Please report this"
        )
    both = pa.concat_tables([plan.live, rows])
    live = both.take(newest([both["image_id"]])[0])
    rejects = rejects_of(plan.listing, live)
    report.reject_reasons = count_reasons(rejects)
    if rejects.num_rows > max_reject_rate * plan.listing.num_rows:
        raise TooManyRejectsError(_too_many(rejects, plan.listing.num_rows, max_reject_rate))
    collection.commit_run(
        RunManifest(
            run_id=run.run_id,
            source=run.source,
            model=run.model,
            started_at=run.started_at,
            finished_at=datetime.now(UTC),
            files=files,
            counts={
                "listed": report.listed,
                "already_there": report.already_there,
                "embedded": rows["error_reason"].null_count,
                "rejected": rows.num_rows - rows["error_reason"].null_count,
            },
        )
    )


def _too_many(rejects: pa.Table, listed: int, allowed: float) -> str:
    reasons = count_reasons(rejects).most_common(3)
    return (
        f"{rejects.num_rows} of {listed} images were rejected ({rejects.num_rows / listed:.1%}; mostly "
        f"{', '.join(f'{reason}: {count}' for reason, count in reasons)}), more than the {allowed:.1%} allowed, so "
        "nothing was published. What was embedded is kept: mend the source, or raise --max-reject-rate, and run the "
        "same command again. `likeness rejects` lists them"
    )
