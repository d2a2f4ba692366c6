"""Runs plans: fetch and decode on CPUs → `EmbedBlock`, which embeds and writes rows.

`placement.py` decides where the stages run. They read the images to do from files, and only summaries of blocks come
back, so memory use does not grow with the number of images.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow.compute as pc
from rich.console import Console

from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.catalog.catalog import RunRows
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RowFile
from index.collection.row_files import block_of
from index.collection.rows import is_filtered
from jobs.embedding.commit import WrittenRun
from jobs.embedding.embed_rows import embed_rows
from jobs.embedding.model_source import ModelCache, ModelSource, loaded_memory
from jobs.embedding.placement import Place, choose_place, reason_for_ray, run_blocks
from jobs.embedding.report import BlockSummary, EmbedReport
from jobs.embedding.shared_addresses import find_copies, first_of_each_address
from jobs.embedding.stages import CollectionAt, DecodeSettings, EmbedSettings, MakeRows, Work
from jobs.planning.plan import Plan, write_block
from jobs.progress import rate_bar
from jobs.sources.stored_listing import Listing
from jobs.spec import JobSpec

_MIN_TILES_TO_TIME = 2_000
"""With fewer tiles, timing the model would take about as long as embedding them."""
_TIMED_CROPS = 32
_MIN_IMAGES_TO_CONVERT = 2000
"""With fewer images the model is not converted first; converting ViT-B/32 takes as long as embedding 300."""
# To wait for many answers at a time. A host that never answers costs 22 s; on Ray a task has 1 GiB in all.
_NETWORK: dict[str, Any] = {"threads": 16, "ahead_bytes": 384 << 20}


def write_plans(
    plans: Sequence[Plan],
    collection: Collection,
    spec: JobSpec,
    *,
    console: Console,
    model_cache: ModelCache,
    verbose: bool,
) -> list[WrittenRun]:
    """Write the rows of each plan, in this process or on one Ray cluster; `commit` makes them live.

    `model_cache` may hold their model already. Raises what `write` raises, and `JobError` if the cluster cannot be
    joined.
    """
    resources, written = spec.resources, []
    model, pictures = plans[0].model, sum(plan.todo.num_rows for plan in plans)
    parts, checkpoint = 1 + len(model.boxes), model_cache.find_recorded(model, spec.embedder)
    crop = replace(checkpoint.crop, tiles=model.boxes)
    decode = DecodeSettings(crop=crop, draft=spec.draft, per_host=spec.per_host, limits=spec.limits)
    load = ModelSource.of(model, checkpoint, resources, convert=pictures * parts >= _MIN_IMAGES_TO_CONVERT)
    if model.boxes:
        cost = _tile_cost(pictures, model, None if reason_for_ray(resources) else partial(model_cache.load, load))
        console.print(cost, highlight=False, markup=False, soft_wrap=True)
    try:
        memory = loaded_memory(checkpoint)
        with choose_place("embedding", resources, memory, console, model_cache=model_cache, verbose=verbose) as where:
            for plan in plans:
                with report_bar(console, "embedding", plan) as progress:
                    run = write(
                        plan,
                        collection,
                        load=load,
                        decode=decode,
                        where=where,
                        block_size=-(-resources.block_size // parts),  # as many pixels per block as without tiles
                        progress=progress,
                        share_addresses=True,
                    )
                    written.append(run)
    except KeyboardInterrupt:
        console.print("what was embedded is kept: run the same command again to continue")
        raise
    return written


def _tile_cost(pictures: int, model: ModelRecord, load: Callable[[], Embedder] | None) -> str:
    """A message with the vectors, bytes and seconds that tiles take; without seconds if `load` is None."""
    tiles = pictures * len(model.boxes)
    # Each vector is stored in a row file and again in the index.
    megabytes = 2 * tiles * model.dim * 4 / 1e6
    cost = (
        f"tiles {model.tiles}: {tiles:,} vectors in addition to those of {pictures:,} whole pictures, "
        f"{megabytes:,.1f} MB more on disk"
    )
    if load is None or tiles < _MIN_TILES_TO_TIME:
        return cost
    embedder, seconds = load(), list[float]()
    crops = np.zeros((_TIMED_CROPS, embedder.crop.side, embedder.crop.side, 3), np.uint8)
    for _ in range(2):  # the first one warms up
        began = perf_counter()
        embedder.embed_images(crops)
        seconds.append(perf_counter() - began)
    return f"{cost}, about {tiles * min(seconds) / _TIMED_CROPS:,.0f} s more"


@contextmanager
def report_bar(console: Console, activity: str, plan: Plan) -> Iterator[Callable[[EmbedReport], None]]:
    """A progress bar of a plan's images, which the function that it yields brings up to date with a report."""
    with rate_bar(console, activity, plan.todo.num_rows, "starting") as show:
        yield lambda report: show(report.done, report.rate)


def write(
    plan: Plan,
    collection: Collection,
    *,
    load: Callable[[], Any],
    decode: DecodeSettings,
    where: Place,
    block_size: int = 256,
    make_rows: MakeRows = embed_rows,
    progress: Callable[[EmbedReport], None] = lambda _: None,
    share_addresses: bool = False,
) -> WrittenRun:
    """Write the rows of a plan's images; `progress` is called after each block is on disk.

    `block_size` rows are embedded and written together, so a crash costs at most twice as many; on Ray some more per
    actor.
    With `share_addresses`, one of the images that share an address is embedded, and the others get copies of its row.
    `load` loads the model that `make_rows` gets. Raises `LeaseLostError` once another job has taken over the lease.
    """
    written = WrittenRun.begin(plan, collection)
    if not plan.todo.num_rows:
        return written
    todo: Listing | None = plan.todo
    # For local files two threads do: one reads while the other decodes.
    is_remote = bool(plan.todo.count("contains(uri, '://') AND NOT starts_with(uri, 'file:')"))
    decode = replace(decode, **_NETWORK if is_remote else {}, image_filter=plan.image_filter)
    work = Work(decode=decode, embed=embed_settings(written, collection, load, make_rows), block_size=block_size)
    while todo and todo.num_rows:
        before = len(written.files)
        first, todo = first_of_each_address(todo, plan.image_filter) if share_addresses else (todo, None)
        add_blocks(written, run_blocks(first, work, where), collection, progress)
        if todo:
            todo = _write_copies(written, todo, collection, written.files[before:])
            progress(written.report)
    return written


def add_blocks(
    written: WrittenRun,
    blocks: Iterable[BlockSummary],
    collection: Collection,
    progress: Callable[[EmbedReport], None],
) -> None:
    """Count blocks as they are written; raises like `write`."""
    seen = {block_of(file.path) for file in written.files}
    for block in blocks:
        if block_of(block.path) not in seen:  # Ray may report a retried block twice
            seen.add(block_of(block.path))
            written.add(block)
        progress(written.report)
        collection.raise_if_lease_lost()


def embed_settings(
    written: WrittenRun, collection: Collection, load: Callable[[], Any], make_rows: MakeRows
) -> EmbedSettings:
    """What `EmbedBlock` needs to write rows of this run."""
    return EmbedSettings(
        load=load,
        fingerprint=written.run.model.fingerprint,
        collection=CollectionAt(collection.storage.address),  # including its credentials
        run_id=written.run.run_id,
        attempt=written.plan.attempt,
        make_rows=make_rows,
    )


def _write_copies(written: WrittenRun, todo: Listing, collection: Collection, files: Sequence[RowFile]) -> Listing:
    """Write rows for the images whose addresses these files have; returns the others."""
    plan, report = written.plan, written.report
    blocks, waiting = find_copies(todo, collection.storage, RunRows(run=written.run, files=files), plan.image_filter)
    for rows in blocks:
        collection.raise_if_lease_lost()
        written.files.append(write_block(collection, written.run.run_id, plan.attempt, rows))
        filtered = int(pc.sum(is_filtered(rows)).as_py())
        report.embedded += rows["error_reason"].null_count
        report.filtered_read += filtered
        report.rejected += rows.num_rows - rows["error_reason"].null_count - filtered
    return waiting
