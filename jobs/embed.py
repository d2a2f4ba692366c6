"""The embedding job: a source of images becomes rows of a collection, by Ray Data.

Listing (driver) → fetch and decode (CPU tasks) → `EmbedBlock` actors, which write the rows → the run's manifest as
the commit. Only summaries of blocks come back to the driver, so its memory does not grow with the images.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data

from embedder.fetch import FetchPolicy
from embedder.images import CropSpec, ImageLimits
from embedder.protocol import Embedder
from index.collection import Collection
from index.records import RowFile, RunManifest, RunStart
from index.rows import newest
from jobs.errors import JobError, TooManyRejectsError
from jobs.plan import Plan, fold
from jobs.report import EmbedReport, Progress
from jobs.stages import BlockSummary, DecodeSettings, EmbedBlock, fetch_and_decode

DECODE_BATCH = 128
"""Rows of one decode task. With 32, Ray's own work for each task took a quarter of two cores from the demo's job."""
DECODE_MEMORY = 2**30
"""Bytes that a decode task may take; without a figure Ray's memory monitor kills and retries for ever."""


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How the job runs. `actors` is (least, most); `num_gpus` may be a fraction.

    `block_size` rows are embedded and written together: what a crash can cost each actor. `max_reject_rate` is the
    share of the listed images that may be rejects.
    """

    batch_size: int = 64
    block_size: int = 256
    actors: tuple[int, int] = (1, 1)
    num_gpus: float = 0
    accelerator_type: str | None = None
    decode_threads: int = 2
    draft: bool = True
    policy: FetchPolicy = field(default_factory=FetchPolicy)
    limits: ImageLimits = field(default_factory=ImageLimits)
    max_reject_rate: float = 0.05


def embed(
    plan: Plan,
    collection: Collection,
    *,
    load: Callable[[], Embedder],
    crop: CropSpec,
    options: EmbedOptions,
    progress: Progress,
) -> EmbedReport:
    """Carry a plan out and commit it as one run; Ray must be connected.

    `load` is called in each actor. Raises `TooManyRejectsError` with the run left unfinished: planned anew, the job
    goes on where this one stopped, as it does after a crash.
    """
    report = EmbedReport.of(plan, actors=options.actors[1])
    if plan.done:
        return report
    run = plan.run or collection.start_run(plan.source, plan.model)
    files = list(plan.files)
    if plan.todo.num_rows:
        actor = {
            "load": load,
            "batch_size": options.batch_size,
            "fingerprint": plan.model.fingerprint,
            "location": collection.location,
            "run_id": run.run_id,
            "attempt": plan.attempt,
        }
        for block in _blocks(plan.todo, crop, actor, options):
            files.append(RowFile(path=block.path, rows=block.rows, size=block.size))
            report.add(block)
            progress.advance(report)
    _commit(collection, run, files, plan, report, options.max_reject_rate)
    return report


def _blocks(todo: pa.Table, crop: CropSpec, actor: dict[str, object], options: EmbedOptions) -> Iterator[BlockSummary]:
    """Run the pipeline; a summary of each block as soon as its rows are on disk."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    decode = DecodeSettings(
        crop=crop,
        policy=options.policy,
        limits=options.limits,
        draft=options.draft,
        threads=options.decode_threads,
    )
    least, most = options.actors
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
            num_gpus=options.num_gpus or None,
            accelerator_type=options.accelerator_type,
        )
        .iter_rows()
    )
    for row in rows:
        yield BlockSummary.of(row)


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
    missing = plan.todo.filter(pc.invert(pc.is_in(plan.todo["image_id"], value_set=rows["image_id"])))
    if missing.num_rows:
        raise JobError(
            f"{missing.num_rows} images came back neither embedded nor rejected, the first {missing['image_id'][0]}. "
            "The run stays unfinished; the same command goes on with it. Please report this"
        )
    both = pa.concat_tables([plan.live, rows])
    live = both.take(newest([both["image_id"]])[0])
    ours = live.filter(pc.is_in(live["image_id"], value_set=plan.listing["image_id"]))
    rejects = ours.filter(pc.is_valid(ours["error_reason"]))
    report.reject_reasons = _reasons(rejects)
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


def _reasons(rejects: pa.Table) -> Counter[str]:
    return Counter(map(str, rejects["error_reason"].to_pylist()))


def _too_many(rejects: pa.Table, listed: int, allowed: float) -> str:
    reasons = _reasons(rejects).most_common(3)
    return (
        f"{rejects.num_rows} of {listed} images were rejected ({rejects.num_rows / listed:.1%}; mostly "
        f"{', '.join(f'{reason}: {count}' for reason, count in reasons)}), more than the {allowed:.1%} allowed, so "
        "nothing was published. What was embedded is kept: mend the source, or raise --max-reject-rate, and run the "
        "same command again. `likeness rejects` lists them"
    )
