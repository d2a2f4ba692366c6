"""From plans to rows on disk: fetch and decode on CPUs → `EmbedBlock`, which writes the rows.

`placement.py` decides where the stages run. Only summaries of blocks come back, so memory does not grow with the
images.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.models.own import OwnModel
from index.collection import Collection
from jobs.embedding.commit import WrittenRun
from jobs.embedding.embed_rows import embed_rows
from jobs.embedding.model_source import KeptModel, ModelSource, loaded_memory
from jobs.embedding.placement import Blocks, placed, why_ray
from jobs.embedding.report import EmbedReport
from jobs.embedding.stages import CollectionAt, DecodeSettings, EmbedSettings, MakeRows
from jobs.embedding.tile_cost import tile_cost
from jobs.planning.plan import Plan, block_of
from jobs.progress import rate_bar
from jobs.spec import JobSpec

_WORTH_CONVERTING = 2000
"""Minimum images for converting the model first: converting ViT-B/32 takes as long as embedding 300."""


def write_plans(
    plans: Sequence[Plan],
    collection: Collection,
    spec: JobSpec,
    found: Checkpoint | OwnModel,
    console: Console,
    kept: KeptModel,
    *,
    verbose: bool,
) -> list[WrittenRun]:
    """Write the rows of each plan, in this process or on one Ray cluster; `commit` makes them live.

    `found` is the plans' model, which `kept` (`KeptModel`) may have loaded. Raises what `write` raises, and `JobError`
    for a cluster that cannot be joined.
    """
    resources, written = spec.resources, []
    model, pictures = plans[0].model, sum(plan.todo.num_rows for plan in plans)
    parts = 1 + len(model.boxes)
    load = ModelSource.of(model, found, resources, convert=pictures * parts >= _WORTH_CONVERTING)
    if model.boxes:
        cost = tile_cost(pictures, model, None if why_ray(resources) else partial(kept, load))
        console.print(cost, highlight=False, markup=False, soft_wrap=True)
    try:
        with placed("embedding", resources, loaded_memory(found), console, kept, verbose=verbose) as blocks:
            for plan in plans:
                with rate_bar(console, "embedding", plan.todo.num_rows, "starting") as show:
                    run = write(
                        plan,
                        collection,
                        load=load,
                        crop=replace(found.crop, tiles=model.boxes),
                        blocks=blocks,
                        block_size=-(-resources.block_size // parts),  # of as many pixels as without tiles
                        draft=spec.draft,
                        progress=partial(_show, show),
                    )
                    written.append(run)
    except KeyboardInterrupt:
        console.print("what was embedded is kept: run the same command again to continue")
        raise
    return written


def _show(show: Callable[[int, str], None], report: EmbedReport) -> None:
    show(report.done, report.rate)


def write(
    plan: Plan,
    collection: Collection,
    *,
    load: Callable[[], Any],
    crop: CropSpec | None,
    blocks: Blocks,
    block_size: int = 256,
    draft: bool = True,
    rows: MakeRows = embed_rows,
    progress: Callable[[EmbedReport], None] = lambda _: None,
) -> WrittenRun:
    """Write the rows of a plan's images; `progress` is called for each block that is on disk.

    `block_size` rows are embedded and written together; a crash can cost so many, on Ray each actor. `draft` allows
    large JPEGs to be decoded at reduced scale. `rows` makes them, with what `load` loads.
    `LeaseLostError` once another job writes.
    """
    written = WrittenRun.begin(plan, collection)
    if plan.todo.num_rows == 0:
        return written
    seen = {block_of(file.path) for file in plan.files}
    embed = EmbedSettings(
        load=load,
        fingerprint=plan.model.fingerprint,
        collection=CollectionAt(collection.storage.address),  # with the credentials that were in it
        run_id=written.run.run_id,
        attempt=plan.attempt,
        rows=rows,
    )
    decode = DecodeSettings(crop=crop, draft=draft, threads=_decode_threads(plan.todo), images=plan.images)
    for block in blocks(plan.todo, decode, embed, block_size):
        if block_of(block.path) not in seen:  # Ray may report a retried block twice
            seen.add(block_of(block.path))
            written.files.append(block.file)
            written.report.add(block)
        progress(written.report)
        collection.check_lease_if_overdue()  # otherwise a job that lost its lease would compute to its end
    return written


def _decode_threads(todo: pa.Table) -> int:
    """Threads of a decode task: for local files two (one reads, the other decodes), more to wait for the network."""
    remote = pc.match_substring_regex(todo["uri"].drop_null(), "^(https?|s3|gs|az)://")
    return 16 if pc.any(remote).as_py() else 2
