"""Builds the segments of an index in this process, or as Ray tasks."""

import time
from collections.abc import Sequence

from rich.console import Console

from index.builder.build_index import run_here
from index.builder.segment import SegmentJob
from index.builder.version import RunJobs
from index.collection.records.version_manifest import SegmentRecord
from index.collection.stored_rows import StoredRows
from jobs.progress import rate_bar

_MIN_ROWS_FOR_RAY = 500_000
"""Two cores index this many rows in about 20 s; Ray and its workers take up to 10 s to start."""


def run_on_ray(address: str | None, console: Console, on: str | None = None) -> RunJobs:
    """`run_jobs` for `build_index`: builds segments as Ray tasks, here or at an address, if requested or worthwhile.

    It raises what `SegmentJob.run` raises, and `JobError` if no node has the memory for a segment or workers keep dying
    of it.
    """

    def run_jobs(jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
        if not _pays_on_ray(jobs, on or (address and "ray")):
            return run_here(jobs)
        # Imported late: a small index should not cost the seconds that importing Ray takes.
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


def _pays_on_ray(jobs: Sequence[SegmentJob], on: str | None) -> bool:
    # A merge reads segments that are open in this process, and pickling would copy them in full.
    if not jobs or not all(isinstance(source, StoredRows) for job in jobs for source in job.sources):
        return False
    if on:
        return on == "ray"
    return len(jobs) > 1 and sum(job.rows for job in jobs) > _MIN_ROWS_FOR_RAY
