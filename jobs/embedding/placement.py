"""Decides where a job embeds: in this process, on Ray, or here until the rest turns out to take hours."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from jobs.embedding.here import blocks_here
from jobs.embedding.model_source import ModelCache
from jobs.embedding.report import BlockSummary
from jobs.embedding.stages import DecodeSettings, EmbedSettings
from jobs.errors import JobError
from jobs.planning.todo import Todo
from jobs.spec import Resources

_MIN_HOURS_FOR_RAY = 1.0
"""Above this, Ray takes over: on two cores it is no faster, but a worker that dies does not end the job."""
_TOO_LONG = f"more than {_MIN_HOURS_FOR_RAY:g} h"
_FORECAST_AFTER_S = 60.0


class Blocks(Protocol):
    """Runs the stages over a listing; yields the summary of each block once its rows are on disk."""

    def __call__(
        self, todo: Todo, decode: DecodeSettings, embed: EmbedSettings, block_size: int, /
    ) -> Iterator[BlockSummary]: ...


@contextmanager
def place_blocks(
    activity: str,
    resources: Resources,
    memory: int,
    console: Console,
    model_cache: ModelCache | None = None,
    *,
    verbose: bool = False,
) -> Iterator[Blocks]:
    """A `Placement`, whose Ray is stopped at the end; each actor reserves `memory` bytes."""
    with ExitStack() as started:
        start_ray = partial(_start_ray, started, resources, memory, console, verbose=verbose)
        yield Placement(resources, start_ray, console, activity, model_cache)


def _start_ray(started: ExitStack, resources: Resources, memory: int, console: Console, *, verbose: bool) -> Blocks:
    # Imported late: importing Ray takes a second.
    from jobs.cluster.growth import wait_for_pool
    from jobs.cluster.pool import Pool
    from jobs.cluster.session import ray_cluster
    from jobs.embedding.on_ray import blocks_on_ray

    with console.status("starting Ray: about ten seconds, or minutes on a busy machine"):
        started.enter_context(ray_cluster(resources.address, verbose=verbose))
    actor: dict[str, Any] = {
        "num_cpus": resources.cpus_per_actor or 1,
        "accelerator_type": resources.accelerator_type,
        "resources": resources.actor_resources,
        "memory": memory,
    }
    make_pool = partial(Pool.for_cluster, resources.actors, resources.num_gpus, **actor)
    if resources.address is None:
        return partial(blocks_on_ray, make_pool())
    smallest = Pool(actors=resources.actors or (1, 1), num_gpus=resources.num_gpus or 0, **actor)
    return partial(blocks_on_ray, wait_for_pool(make_pool, smallest.demand, resources.wait_for_nodes, console))


class Placement:
    """`Blocks` on Ray, or in this process until more than an hour is left. Prints which of the two, and why."""

    def __init__(
        self,
        resources: Resources,
        start_ray: Callable[[], Blocks],
        console: Console,
        activity: str = "embedding",
        model_cache: ModelCache | None = None,
    ) -> None:
        self._activity = activity
        self._start_ray, self._console = start_ray, console
        self._model_cache = model_cache or ModelCache()
        self._may_move = resources.on is None
        self._ray: Blocks | None = None
        if reason := reason_for_ray(resources):
            self._print(f"on Ray: {reason}")
            self._ray = start_ray()  # before a run begins, so nothing is left behind if Ray does not start
        else:
            self._print("in this process" + (f", and on Ray if {_TOO_LONG} is left" if self._may_move else ""))

    def __call__(
        self, todo: Todo, decode: DecodeSettings, embed: EmbedSettings, block_size: int
    ) -> Iterator[BlockSummary]:
        done = 0
        if self._ray is None:
            cached = replace(embed, load=partial(self._model_cache, embed.load))  # loads once for all plans
            with closing(blocks_here(todo, decode, cached, block_size)) as blocks:
                forecast = _Forecast(todo.num_rows)
                for block in blocks:
                    done += block.rows
                    yield block
                    if self._may_move and forecast.hours_left(block) > _MIN_HOURS_FOR_RAY:
                        self._move()
                    if self._ray is not None:
                        break
        if self._ray is not None:
            yield from self._ray(todo.slice(done), decode, embed, block_size)

    def _move(self) -> None:
        """Start Ray for the rest of the job. If that fails it is not tried again."""
        self._print(f"the rest would take {_TOO_LONG}: continuing on Ray")
        self._may_move = False
        try:
            self._ray = self._start_ray()
        except JobError as error:
            self._print(f"remains in this process: {error}")
        else:
            self._model_cache.forget()  # the actors need the memory

    def _print(self, where: str) -> None:
        self._console.print(f"{self._activity} {where}", highlight=False, markup=False, soft_wrap=True)


class _Forecast:
    """Predicts how long the rest takes from all blocks but the first, which warms up."""

    def __init__(self, rows: int) -> None:
        self._left = rows
        self._done = 0
        self._began: float | None = None

    def hours_left(self, block: BlockSummary) -> float:
        """0 until enough time has passed to tell."""
        self._left -= block.rows
        if self._began is None:
            self._began = block.ended_at
            return 0.0
        self._done += block.rows
        seconds = block.ended_at - self._began
        return self._left * seconds / self._done / 3600 if seconds >= _FORECAST_AFTER_S else 0.0


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
