"""Builds segments of an index as Ray tasks, each with the memory it needs and a share of a node's CPUs."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from index.builder.segment import SegmentJob
from index.collection.layout import SEGMENTS
from index.collection.records.version_manifest import SegmentRecord
from index.errors import CollectionError
from jobs.cluster.session import missing_package_message
from jobs.errors import JobError

ATTEMPTS = 3
"""How often a segment is tried before the job gives it up because its workers die."""

_CANCEL_S = 10


@dataclass(frozen=True)
class _Task:
    """A job, its position among the jobs, and the number of the current attempt, from 0."""

    job: SegmentJob
    number: int
    attempt: int = 0

    @property
    def named_job(self) -> SegmentJob:
        """The job with a name of this attempt, so a worker that only seems dead cannot replace the files that count."""
        return replace(self.job, name=f"{self.job.name}-{self.attempt}") if self.attempt else self.job


def build_on_cluster(jobs: Sequence[SegmentJob], advance: Callable[[SegmentJob], None]) -> list[SegmentRecord | None]:
    """Build segments on the connected cluster; returns the records in the order of the jobs.

    `advance` is called after each segment. Raises what `SegmentJob.run` raises, and `JobError` if the cluster cannot
    hold a segment or workers die of one `ATTEMPTS` times; the other tasks are then cancelled.
    """
    remote = ray.remote(SegmentJob.run).options(
        memory=max(job.memory for job in jobs),
        num_cpus=(cpus := task_cpus(jobs)),
        max_retries=0,  # Ray would retry under the same name, and for ever if memory runs out
        scheduling_strategy="SPREAD",  # Ray's default half fills a node before it uses the next
        # faiss, OpenBLAS and Arrow read this when they are loaded, before a task could set it.
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
                if (message := missing_package_message(error)) is not None:
                    raise JobError(message) from error
                raise error.cause from error
            except RayError as error:
                retry = _next_attempt(task, error)
                running[remote.remote(retry.named_job)] = retry
    finally:
        _cancel(list(running))
    return records


def task_cpus(jobs: Sequence[SegmentJob]) -> int:
    """CPUs for each task of these jobs on the connected cluster. Raises JobError if no node can hold the largest.

    A node builds its share of the segments side by side, as far as its memory goes, and they divide its CPUs, because
    reading, writing and hashing are single-threaded. A task takes at most half a node; otherwise a server that runs
    there could keep it waiting for ever.
    """
    largest = max(jobs, key=lambda job: job.memory)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    nodes = [node for node in nodes if node.get("CPU", 0) >= 1]  # a head node may have none
    able = [node for node in nodes if node.get("memory", 0) >= largest.memory]
    if not able:
        most = max((node.get("memory", 0) for node in nodes), default=0)
        raise JobError(
            f"segment {largest.name} of {largest.rows:,} rows needs {largest.memory >> 20:,} MiB to build, but the "
            f"largest node has {int(most) >> 20:,} MiB for Ray: build smaller ones with --segment-rows (now "
            f"{largest.settings.segment_rows:,}), or free some memory"
        )
    share = -(-len(jobs) // len(able))
    return min(max(1, int(node["CPU"]) // max(2, min(share, int(node["memory"] // largest.memory)))) for node in able)


def _next_attempt(task: _Task, error: RayError) -> _Task:
    """The next attempt; removes the files of the last one."""
    job = task.named_job
    if task.attempt + 1 == ATTEMPTS:
        raise JobError(
            f"segment {task.job.name} of {job.rows:,} rows was not built: its worker was lost {ATTEMPTS} times "
            f"({str(error).splitlines()[0]}). Build smaller ones with --segment-rows"
        ) from error
    # A worker that only seems dead may still write there, or the bucket may not answer; `prune` removes the rest later.
    with suppress(CollectionError, OSError):
        job.storage.delete(f"{SEGMENTS}/{job.name}")
    return replace(task, attempt=task.attempt + 1)


def _cancel(running: list[Any]) -> None:
    """Kill running tasks and wait for them, because a worker that still writes would interfere with the clean-up."""
    for task in running:
        ray.cancel(task, force=True)
    if running:
        ray.wait(running, num_returns=len(running), timeout=_CANCEL_S)
