"""From plans to rows on disk, on Ray if there are images to embed, else without it."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from embedder.images import CropSpec
from index.collection import Collection
from jobs.embedding.commit import WrittenRun
from jobs.embedding.report import EmbedReport, ProgressBar
from jobs.embedding.request import JobRequest, ModelSource
from jobs.planning.plan import Plan


def carry_out(
    request: JobRequest,
    plans: Sequence[Plan],
    collection: Collection,
    console: Console,
    *,
    load: ModelSource,
    crop: CropSpec | None,
) -> list[WrittenRun]:
    """Write the rows of each plan, on one Ray cluster; `commit` makes them live. `crop` None: nothing to embed.

    Raises what `jobs.embedding.pipeline.write` raises, and `JobError` for a cluster that cannot be joined or started.
    """
    if crop is None:
        # A run that was stopped between its last block and its commit needs no Ray.
        return [
            WrittenRun(
                plan=plan,
                run=plan.run or collection.start_run(plan.source, plan.model),
                files=plan.files,
                report=EmbedReport.of(plan),
            )
            for plan in plans
        ]
    # Imported late: a mistake in the request should not cost the seconds that Ray takes.
    from jobs.cluster.session import Pool, ray_cluster
    from jobs.embedding.pipeline import write

    written = []
    try:
        with ray_cluster(request.address, verbose=request.verbose):
            pool = Pool.fitting(
                request.actors,
                request.num_gpus,
                request.accelerator_type,
                resources=request.actor_resources,
                memory=load.memory,
            )
            if request.address is not None and (waits := pool.lacking_now()):
                console.print(waits)
            for plan in plans:
                options = replace(request.options, decode_threads=_decode_threads(plan.todo))
                with ProgressBar(console, total=plan.todo.num_rows) as progress:
                    written.append(
                        write(
                            plan,
                            collection,
                            load=load.for_workers(),
                            crop=crop,
                            options=options,
                            pool=pool,
                            progress=progress,
                        )
                    )
    except KeyboardInterrupt:
        console.print("what was embedded is kept: the same command goes on with it")
        raise
    return written


def _decode_threads(todo: pa.Table) -> int:
    """Threads of a decode task: for local files two (one reads, the other decodes), more to wait for the network."""
    remote = pc.match_substring_regex(todo["uri"].drop_null(), "^(https?|s3|gs|az)://")
    return 16 if pc.any(remote).as_py() else 2
