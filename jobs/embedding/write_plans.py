"""From plans to rows on disk, on Ray if there are images to embed, else without it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from embedder.models.checkpoint import Checkpoint
from index.collection import Collection
from jobs.embedding.commit import WrittenRun
from jobs.embedding.model import ModelSource, loaded_memory
from jobs.embedding.report import EmbedReport
from jobs.planning.plan import Plan
from jobs.progress import RateBar
from jobs.spec import JobSpec


def write_plans(
    plans: Sequence[Plan],
    collection: Collection,
    spec: JobSpec,
    checkpoint: Callable[[], Checkpoint],
    console: Console,
    *,
    verbose: bool,
) -> list[WrittenRun]:
    """Write the rows of each plan, on one Ray cluster; `commit` makes them live.

    `checkpoint` is called for the plans' model if there are images to embed. Raises what `write` raises, and `JobError`
    for a cluster that cannot be joined or started.
    """
    if not any(plan.todo.num_rows for plan in plans):
        return [_without_ray(plan, collection) for plan in plans]
    found, resources, model = checkpoint(), spec.resources, plans[0].model
    # Imported late: a mistake in the job should not cost the seconds that Ray takes.
    from jobs.cluster.pool import Pool
    from jobs.cluster.session import ray_cluster
    from jobs.embedding.pipeline import write

    load = ModelSource(
        model=model.id, revision=model.revision, device=resources.device, batch_size=resources.batch_size
    ).for_workers()
    how: dict[str, Any] = {
        "load": load,
        "crop": found.preprocessing.crop,
        "block_size": resources.block_size,
        "draft": spec.draft,
    }
    written = []
    try:
        with ray_cluster(resources.address, verbose=verbose):
            pool = Pool.fitting(
                resources.actors,
                resources.num_gpus,
                resources.accelerator_type,
                resources=resources.actor_resources,
                memory=loaded_memory(found),
            )
            if resources.address is not None and (waits := pool.lacking_now()):
                console.print(waits)
            for plan in plans:
                with RateBar(console, "embedding", plan.todo.num_rows, "starting Ray and the model") as bar:
                    written.append(write(plan, collection, pool=pool, progress=partial(_show, bar), **how))
    except KeyboardInterrupt:
        console.print("what was embedded is kept: the same command goes on with it")
        raise
    return written


def _without_ray(plan: Plan, collection: Collection) -> WrittenRun:
    """The run of a plan with nothing to embed, such as one that was stopped between its last block and its commit."""
    run = plan.run or collection.start_run(plan.source, plan.model)
    return WrittenRun(plan=plan, run=run, files=plan.files, report=EmbedReport.of(plan))


def _show(bar: RateBar, report: EmbedReport) -> None:
    bar.show(report.embedded + report.rejected, report.rate)
