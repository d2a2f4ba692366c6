"""Runs blocks in this process, on Ray, or here until the rest turns out to take hours."""

from __future__ import annotations  # of Ray's pool only the type is imported

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from embedder.machine import usable_cpus
from index.collection.catalog.catalog import FIRST_SEQ
from index.collection.stored_rows import StoredRows
from jobs.embedding.ahead import decoded_ahead
from jobs.embedding.model_source import ModelCache
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import STORED, EmbedBlock, EmbedSettings, Work, drop_fetcher, stop_decoders
from jobs.errors import JobError
from jobs.sources.stored_listing import Listing
from jobs.spec import Resources

if TYPE_CHECKING:
    from jobs.cluster.pool import Pool  # importing Ray takes a second

_MIN_HOURS_FOR_RAY = 1.0
"""Above this, Ray takes over: on two cores it is no faster, but a worker that dies does not end the job."""
_TOO_LONG = f"more than {_MIN_HOURS_FOR_RAY:g} h"
_FORECAST_AFTER_S = 60.0
_MIN_BLOCKS = 3
"""One is embedded while two are decoded; with one, decoders would idle while they wait for its last pictures."""


@dataclass(kw_only=True)
class Place:
    """Where blocks are made: on the connected Ray, with the actors of `pool`; if that is None, in this process,
    which keeps the model in `model_cache`. If the rest would take more than an hour, `move` is called once: it starts
    Ray, or returns None if that fails.
    """

    pool: Pool | None = None
    model_cache: ModelCache = field(default_factory=ModelCache)
    move: Callable[[], Pool | None] | None = None


def run_blocks(todo: Listing, work: Work, where: Place) -> Iterator[BlockSummary]:
    """Run the stages over a listing; yields the summary of each block once its rows are on disk. On Ray, the error of a
    worker is a JobError; here it is what loading and embedding raise.
    """
    done = first = 0
    began = 0.0
    if where.pool is None:
        with closing(blocks_here(todo, work, where.model_cache)) as blocks:
            for block in blocks:
                done += block.rows
                yield block
                began, first = began or block.ended_at, first or done  # the first block warms up
                seconds = block.ended_at - began
                hours = (todo.num_rows - done) * seconds / max(1, done - first) / 3600
                if where.move and seconds >= _FORECAST_AFTER_S and hours > _MIN_HOURS_FOR_RAY:
                    where.pool, where.move = where.move(), None
                    if where.pool:
                        break
    if where.pool:
        from jobs.embedding.on_ray import blocks_on_ray  # importing Ray takes a second

        rest = todo.changed(f"FROM {{listing}} WHERE seq >= {FIRST_SEQ + done}") if done else todo
        yield from blocks_on_ray(rest, work, where.pool)


def blocks_here(todo: Listing, work: Work, model_cache: ModelCache) -> Generator[BlockSummary]:
    """Blocks in the order of the listing, without Ray: child processes decode ahead, and the caller's thread runs the
    forward pass. Raises what loading and embedding raise.
    """
    cores = usable_cpus()
    settings = replace(work.decode, threads=work.decode.threads * cores, decoders=cores)
    embed = replace(work.embed, load=partial(model_cache.load, work.embed.load))  # loads once for all plans
    count = max(_MIN_BLOCKS, settings.tables_ahead(work.block_size))
    try:
        with decoded_ahead(todo.tables(work.block_size), settings, count) as blocks:
            yield from EmbedBlock(embed).each(blocks)  # the model loads while the first blocks are decoded
    finally:
        stop_decoders(settings)
        drop_fetcher()


def run_stored_blocks(blocks: Iterable[StoredRows], embed: EmbedSettings, where: Place) -> Iterator[BlockSummary]:
    """Like `run_blocks`, of rows whose stored vectors `embed` uses; these do not move to Ray later."""
    if where.pool:
        from jobs.embedding.on_ray import stored_blocks_on_ray  # importing Ray takes a second

        yield from stored_blocks_on_ray(blocks, embed, where.pool)
    else:
        yield from EmbedBlock(embed).each(rows.read(STORED) for rows in blocks)


@contextmanager
def choose_place(
    activity: str,
    resources: Resources,
    memory: int,
    console: Console,
    *,
    model_cache: ModelCache,
    verbose: bool = False,
) -> Iterator[Place]:
    """Where a job runs, printed with the reason; Ray is stopped at the end. Each actor reserves `memory` bytes."""

    def say(where: str) -> None:
        console.print(f"{activity} {where}", highlight=False, markup=False, soft_wrap=True)

    with ExitStack() as started:
        start_ray = partial(_start_ray, started, resources, memory, console, verbose=verbose)

        def move() -> Pool | None:
            say(f"the rest would take {_TOO_LONG}: continuing on Ray")
            try:
                pool = start_ray()
            except JobError as error:
                say(f"remains in this process: {error}")
                return None
            model_cache.forget()  # the actors need the memory
            return pool

        if reason := reason_for_ray(resources):
            say(f"on Ray: {reason}")
            yield Place(pool=start_ray())  # before a run begins, so nothing is left behind if Ray does not start
        else:
            may_move = resources.on is None
            say("in this process" + (f", and on Ray if {_TOO_LONG} is left" if may_move else ""))
            yield Place(model_cache=model_cache, move=move if may_move else None)


def _start_ray(started: ExitStack, resources: Resources, memory: int, console: Console, *, verbose: bool) -> Pool:
    # Imported late: importing Ray takes a second.
    from jobs.cluster.growth import wait_for_pool
    from jobs.cluster.pool import Pool
    from jobs.cluster.session import ray_cluster

    with console.status("starting Ray: about ten seconds, or minutes on a busy machine"):
        started.enter_context(ray_cluster(resources.address, verbose=verbose))
    smallest = Pool(
        actors=resources.actors or (1, 1),
        num_cpus=resources.cpus_per_actor or 1,
        num_gpus=resources.num_gpus or 0,
        accelerator_type=resources.accelerator_type,
        resources=resources.actor_resources,
        memory=memory,
    )
    make_pool = partial(smallest.for_cluster, resources.actors, resources.num_gpus)
    if resources.address is None:
        return make_pool()
    return wait_for_pool(make_pool, smallest.demand, resources.wait_for_nodes, console)


def reason_for_ray(resources: Resources) -> str | None:
    """Why a job with these resources runs on Ray; None if it runs in this process."""
    if resources.on:
        return "as requested" if resources.on == "ray" else None
    if resources.ray_only:
        return f"the job names {' and '.join(resources.ray_only)}"
    if resources.device in (None, "cuda") and (gpus := _count_gpus()) > 1:
        return f"there are {gpus} GPUs"
    return None


def _count_gpus() -> int:
    """How many Nvidia GPUs this process may use. Asking torch would take seconds to import it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) if visible is None else len(visible.split(","))
