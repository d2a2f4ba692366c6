"""Builds the segments of an index in this process, or as Ray tasks."""

import time
from collections.abc import Sequence

from rich.console import Console

from index.build.build_index import run_here
from index.build.segment import SegmentJob
from index.build.version import RunJobs
from index.collection.live_rows import LiveRows
from index.collection.records import SegmentRecord
from jobs.progress import rate_bar

_WORTH_RAY = 500_000
"""Rows that two cores index in about 20 s; Ray and its workers take up to 10 s to start."""


def run_on_ray(address: str | None, console: Console, on: str | None = None) -> RunJobs:
    """For `build_index`: builds segments as tasks of Ray, here or at an address, if it pays or is told to.

    The segments raise what `SegmentJob.run` raises, wherever they are built; `JobError` when no node has the memory
    for one, or workers die of it again and again.
    """

    def run_jobs(jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
        if not _worth_ray(jobs, on or (address and "ray")):
            return run_here(jobs)
        # Imported late: a small index should not cost the seconds that Ray takes.
        from jobs.cluster.session import ray_cluster
        from jobs.indexing.segment_tasks import build_on_cluster

        bar = rate_bar(console, "indexing", len(jobs), "segments, starting workers")
        with ray_cluster(address, verbose=False), bar as show:
            started, built = time.monotonic(), list[SegmentJob]()

            def advance(job: SegmentJob) -> None:
                built.append(job)
                rows_per_second = sum(each.rows for each in built) / (time.monotonic() - started)
                show(len(built), f"segments, {rows_per_second:,.0f} rows/s")

            return build_on_cluster(jobs, advance)

    return run_jobs


def _worth_ray(jobs: Sequence[SegmentJob], on: str | None) -> bool:
    # An update that merges reads segments that are open here; pickling would copy them whole.
    if not jobs or not all(isinstance(job.source, LiveRows) for job in jobs):
        return False
    if on:
        return on == "ray"
    return len(jobs) > 1 and sum(job.rows for job in jobs) > _WORTH_RAY
