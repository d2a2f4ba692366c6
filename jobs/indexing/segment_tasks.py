"""Builds segments of an index as Ray tasks: one each, with its memory and a share of a node's CPUs."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from index.build.segment import SegmentJob
from index.collection.layout import SEGMENTS
from index.collection.records import SegmentRecord
from index.errors import CollectionError
from jobs.cluster.session import lacking
from jobs.errors import JobError

ATTEMPTS = 3
"""How often a segment is tried before it is blamed for its workers' deaths."""

_CANCEL_SECONDS = 10


@dataclass(frozen=True)
class _Task:
    """A job, its place among the jobs, and the attempt that runs, the first being 0."""

    job: SegmentJob
    number: int
    attempt: int = 0

    @property
    def attempted(self) -> SegmentJob:
        """The job under a name of this attempt: a worker that only seems dead must not replace the files that count."""
        return replace(self.job, name=f"{self.job.name}-{self.attempt}") if self.attempt else self.job


def build_on_cluster(jobs: Sequence[SegmentJob], advance: Callable[[SegmentJob], None]) -> list[SegmentRecord | None]:
    """Build segments on the connected cluster; the records come in the order of the jobs, `advance` is called for each.

    Raises what `SegmentJob.run` raises, and `JobError` when the cluster cannot hold a segment or workers die of one
    `ATTEMPTS` times. The other tasks are then cancelled.
    """
    remote = ray.remote(_run).options(
        memory=max(job.memory for job in jobs),
        num_cpus=(cpus := task_cpus(jobs)),
        max_retries=0,  # Ray would retry under the same name, and for ever if memory runs out
        scheduling_strategy="SPREAD",  # Ray's default fills one node to a half before it uses another
        # Read when faiss, OpenBLAS and Arrow are loaded, which is before a task could set it.
        runtime_env={"env_vars": {"OMP_NUM_THREADS": str(cpus)}},
    )
    records: list[SegmentRecord | None] = [None] * len(jobs)
    running = {remote.remote(job): _Task(job, number) for number, job in enumerate(jobs)}
    try:
        while running:
            (done,), _ = ray.wait(list(running))
            task = running.pop(done)
            try:
                records[task.number] = ray.get(done)
                advance(task.job)
            except RayTaskError as error:
                if (message := lacking(error)) is not None:
                    raise JobError(message) from error
                raise error.cause from error
            except RayError as error:
                again = _begun_again(task, error)
                running[remote.remote(again.attempted)] = again
    finally:
        _cancel(list(running))
    return records


def task_cpus(jobs: Sequence[SegmentJob]) -> int:
    """CPUs for each task of these jobs on the connected cluster. JobError when no node holds the largest.

    A node builds its share of the segments at once, as far as its memory goes, and they divide its CPUs: reading,
    writing and hashing use one thread. A task takes half of a node at most; otherwise a server that runs there could
    keep it waiting for ever.
    """
    largest = max(jobs, key=lambda job: job.memory)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    nodes = [node for node in nodes if node.get("CPU", 0) >= 1]  # a head node may have none
    fitting = [node for node in nodes if node.get("memory", 0) >= largest.memory]
    if not fitting:
        most = max((node.get("memory", 0) for node in nodes), default=0)
        raise JobError(
            f"segment {largest.name} of {largest.rows:,} rows takes {largest.memory >> 20:,} MiB to build, the largest "
            f"node has {int(most) >> 20:,} MiB for Ray: build smaller ones with --segment-rows (now "
            f"{largest.settings.segment_rows:,}), or free some memory"
        )
    share = -(-len(jobs) // len(fitting))
    return min(
        max(1, int(node["CPU"]) // max(2, min(share, int(node["memory"] // largest.memory)))) for node in fitting
    )


def _run(job: SegmentJob) -> SegmentRecord | None:
    return job.run()


def _begun_again(task: _Task, error: RayError) -> _Task:
    """The next attempt, with the remains of this one removed."""
    job = task.attempted
    if task.attempt + 1 == ATTEMPTS:
        raise JobError(
            f"segment {task.job.name} of {job.rows:,} rows was not built, {ATTEMPTS} times its worker was lost "
            f"({str(error).splitlines()[0]}): build smaller ones with --segment-rows"
        ) from error
    # A worker that only seems dead may still write there, or the bucket may not answer; `prune` removes remains later.
    with suppress(CollectionError, OSError):
        job.storage.delete(f"{SEGMENTS}/{job.name}")
    return replace(task, attempt=task.attempt + 1)


def _cancel(running: list[Any]) -> None:
    """Kill running tasks and wait for them: a worker that still writes would interfere with the clean-up."""
    for task in running:
        ray.cancel(task, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=_CANCEL_SECONDS)
