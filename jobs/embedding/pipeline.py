"""From plans to rows on disk: fetch and decode on CPUs → `EmbedBlock`, which writes the rows.

Both stages run in this process, or on Ray. Only summaries of blocks come back, so memory does not grow with the images.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.models.own import OwnModel
from index.collection import Collection
from jobs.embedding.commit import WrittenRun
from jobs.embedding.embed_rows import embed_rows
from jobs.embedding.here import blocks_here
from jobs.embedding.model_source import KeptModel, ModelSource, loaded_memory
from jobs.embedding.report import BlockSummary, EmbedReport
from jobs.embedding.stages import CollectionAt, DecodeSettings, MakeRows
from jobs.embedding.tile_cost import tile_cost
from jobs.errors import JobError
from jobs.planning.plan import Plan, block_of
from jobs.progress import rate_bar
from jobs.spec import JobSpec, Resources

_WORTH_RAY_HOURS = 1.0
"""Beyond this Ray takes over: with two cores it is no faster, but a worker that dies does not end the job."""
_FORECAST_AFTER_S = 60.0
_WORTH_CONVERTING = 2000
"""Images from which on a model is converted for the processors first: with ViT-B/32 that takes as long as 300."""


class Blocks(Protocol):
    """Runs the stages over a listing, `embed` are EmbedBlock's arguments: each block once its rows are on disk."""

    def __call__(
        self, todo: pa.Table, decode: DecodeSettings, embed: Mapping[str, Any], block_size: int, /
    ) -> Iterator[BlockSummary]: ...


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
        cost = tile_cost(pictures, model, None if _why_ray(resources) else partial(kept, load))
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
        console.print("what was embedded is kept: the same command goes on with it")
        raise
    return written


@contextmanager
def placed(
    doing: str,
    resources: Resources,
    memory: int,
    console: Console,
    kept: KeptModel | None = None,
    *,
    verbose: bool = False,
) -> Iterator[Blocks]:
    """Blocks in this process or on a Ray that ends with it, whose actors have so many bytes of `memory`."""
    with ExitStack() as started:
        start_ray = partial(_start_ray, started, resources, memory, console, verbose=verbose)
        yield Placement(resources, start_ray, console, doing, kept)


def _start_ray(until: ExitStack, resources: Resources, memory: int, console: Console, *, verbose: bool) -> Blocks:
    # Late: importing Ray takes a second, and starting it ten.
    from jobs.cluster.growth import fitting_in_time
    from jobs.cluster.pool import Pool
    from jobs.cluster.session import ray_cluster
    from jobs.embedding.on_ray import blocks_on_ray

    with console.status("starting Ray: about ten seconds, on a busy machine minutes"):
        until.enter_context(ray_cluster(resources.address, verbose=verbose))
    actor: dict[str, Any] = {
        "num_cpus": resources.cpus_per_actor or 1,
        "accelerator_type": resources.accelerator_type,
        "resources": resources.actor_resources,
        "memory": memory,
    }
    fitting = partial(Pool.fitting, resources.actors, resources.num_gpus, **actor)
    if resources.address is None:
        return partial(blocks_on_ray, fitting())
    least = Pool(actors=resources.actors or (1, 1), num_gpus=resources.num_gpus or 0, **actor)
    return partial(blocks_on_ray, fitting_in_time(fitting, least.demand, resources.wait_for_nodes, console))


class Placement:
    """`Blocks` in this process, until it is seen that hours are left, or on Ray. Says where, and why."""

    def __init__(
        self,
        resources: Resources,
        start_ray: Callable[[], Blocks],
        console: Console,
        doing: str = "embedding",
        kept: KeptModel | None = None,
    ) -> None:
        self._doing = doing
        self._start_ray, self._console = start_ray, console
        self._load = kept or KeptModel()
        self._may_move = resources.on is None
        self._ray: Blocks | None = None
        if why := _why_ray(resources):
            self._say(f"on Ray: {why}")
            self._ray = start_ray()  # before a run begins: a cluster that cannot be had leaves nothing behind
        else:
            self._say("in this process" + (", and on Ray if more than an hour is left" if self._may_move else ""))

    def __call__(
        self, todo: pa.Table, decode: DecodeSettings, embed: Mapping[str, Any], block_size: int
    ) -> Iterator[BlockSummary]:
        done = 0
        if self._ray is None:
            here = {**embed, "load": partial(self._load, embed["load"])}  # once for all plans
            with closing(blocks_here(todo, decode, here, block_size)) as blocks:
                forecast = _Forecast(todo.num_rows)
                for block in blocks:
                    done += block.rows
                    yield block
                    if self._may_move and forecast.hours_left(block) > _WORTH_RAY_HOURS:
                        self._move()
                    if self._ray is not None:
                        break
        if self._ray is not None:
            yield from self._ray(todo.slice(done), decode, embed, block_size)

    def _move(self) -> None:
        """Start Ray for what is left; once, for what does not start now is not tried again."""
        self._say("what is left would take more than an hour: going on on Ray")
        self._may_move = False
        try:
            self._ray = self._start_ray()
        except JobError as error:
            self._say(f"in this process after all: {error}")
        else:
            self._load.forget()  # the actors need the memory

    def _say(self, where: str) -> None:
        self._console.print(f"{self._doing} {where}", highlight=False, markup=False, soft_wrap=True)


class _Forecast:
    """How long the rest takes, by the blocks after the first, which warms up."""

    def __init__(self, rows: int) -> None:
        self._left = rows
        self._done = 0
        self._began: float | None = None

    def hours_left(self, block: BlockSummary) -> float:
        """0 until it is known well enough."""
        self._left -= block.rows
        if self._began is None:
            self._began = block.ended_at
            return 0.0
        self._done += block.rows
        seconds = block.ended_at - self._began
        return self._left * seconds / self._done / 3600 if seconds >= _FORECAST_AFTER_S else 0.0


def _why_ray(resources: Resources) -> str | None:
    """What only Ray can do for a job with these resources, or that it is told to."""
    if resources.on:
        return "as told" if resources.on == "ray" else None
    if resources.for_ray:
        return f"the job names {' and '.join(resources.for_ray)}"
    if resources.device in (None, "cuda") and (gpus := _gpus()) > 1:
        return f"there are {gpus} GPUs"
    return None


def _gpus() -> int:
    """How many GPUs of Nvidia's this process may use; importing torch to ask it takes seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) if visible is None else len(visible.split(","))


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
    embed = {
        "load": load,
        "fingerprint": plan.model.fingerprint,
        "collection": CollectionAt(collection.storage.address),  # with the credentials that were in it
        "run_id": written.run.run_id,
        "attempt": plan.attempt,
        "rows": rows,
    }
    decode = DecodeSettings(crop=crop, draft=draft, threads=_decode_threads(plan.todo), images=plan.images)
    for block in blocks(plan.todo, decode, embed, block_size):
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
