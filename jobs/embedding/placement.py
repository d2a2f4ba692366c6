"""Where a job embeds: in this process, on Ray, or here until it is seen that the rest takes hours."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from rich.console import Console

from jobs.embedding.here import blocks_here
from jobs.embedding.model_source import KeptModel
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import DecodeSettings, EmbedSettings
from jobs.errors import JobError
from jobs.spec import Resources

_WORTH_RAY_HOURS = 1.0
"""Beyond this Ray takes over: with two cores it is no faster, but a worker that dies does not end the job."""
_LONG = f"more than {_WORTH_RAY_HOURS:g} h"
_FORECAST_AFTER_S = 60.0


class Blocks(Protocol):
    """Runs the stages over a listing: each block once its rows are on disk."""

    def __call__(
        self, todo: pa.Table, decode: DecodeSettings, embed: EmbedSettings, block_size: int, /
    ) -> Iterator[BlockSummary]: ...


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

    with console.status("starting Ray: about ten seconds, or minutes on a busy machine"):
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
        if why := why_ray(resources):
            self._say(f"on Ray: {why}")
            self._ray = start_ray()  # before a run begins: a cluster that cannot be had leaves nothing behind
        else:
            self._say("in this process" + (f", and on Ray if {_LONG} is left" if self._may_move else ""))

    def __call__(
        self, todo: pa.Table, decode: DecodeSettings, embed: EmbedSettings, block_size: int
    ) -> Iterator[BlockSummary]:
        done = 0
        if self._ray is None:
            here = replace(embed, load=partial(self._load, embed.load))  # once for all plans
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
        self._say(f"what is left would take {_LONG}: continuing on Ray")
        self._may_move = False
        try:
            self._ray = self._start_ray()
        except JobError as error:
            self._say(f"remains in this process: {error}")
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


def why_ray(resources: Resources) -> str | None:
    """Why a job with these resources runs on Ray; None if it need not."""
    if resources.on:
        return "as requested" if resources.on == "ray" else None
    if resources.ray_only:
        return f"the job names {' and '.join(resources.ray_only)}"
    if resources.device in (None, "cuda") and (gpus := _gpus()) > 1:
        return f"there are {gpus} GPUs"
    return None


def _gpus() -> int:
    """How many GPUs of Nvidia's this process may use; importing torch to ask it takes seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) if visible is None else len(visible.split(","))
