"""Segments built as Ray tasks: equal to those built in this process; errors, dead workers and Ctrl-C."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import psutil
import pyarrow as pa
import pytest
import ray
from ray import cloudpickle
from rich.console import Console

from benchmarks.common.waiting import eventually
from index.builder.build_index import build_index, run_here
from index.builder.choose import choose
from index.builder.segment import RowSource, SegmentJob
from index.collection import Collection
from index.collection.layout import SEGMENTS
from index.collection.live_rows import LiveRows
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import SegmentRecord
from index.errors import CollectionError
from index.storage import Storage
from jobs.cluster import session as jobs_cluster
from jobs.errors import JobError
from jobs.indexing import on_ray as jobs_index
from jobs.indexing.on_ray import run_on_ray
from jobs.indexing.segment_tasks import ATTEMPTS, build_on_cluster, task_cpus
from tests.support.collections.hand_made import DIM, add_run, rows, unit_vectors

pytestmark = pytest.mark.ray

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Ray's workers cannot import a test

ROW_COUNT, SEGMENT_ROWS = 2_500, 700
SETTINGS = IndexSettings(segment_rows=SEGMENT_ROWS)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return filled(tmp_path / "collection")


def filled(folder: Path) -> Collection:
    collection = Collection.create_or_open(str(folder))
    vectors = unit_vectors(ROW_COUNT)
    ids = [f"{number:05d}" for number in range(ROW_COUNT)]
    add_run(collection, rows(ids[:1_000], vectors[:1_000]), rows(ids[1_000:], vectors[1_000:]))
    return collection


def jobs_of(collection: Collection, settings: IndexSettings = SETTINGS) -> list[SegmentJob]:
    live = LiveRows.of_runs(collection.storage, collection.runs())
    options = choose(len(live), DIM, settings)
    return [
        SegmentJob(
            storage=collection.storage,
            name=f"000001-{number:02d}",
            sources=[share],
            options=options,
            settings=settings,
            max_exact_rows=0,
        )
        for number, share in enumerate(live.split(settings.segment_rows))
    ]


def segment_folders(collection: Collection) -> list[str]:
    return [entry.name for entry in collection.storage.list(SEGMENTS)]


def ignore(job: SegmentJob) -> None:
    pass


def on_cluster(jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
    return build_on_cluster(jobs, ignore)


@dataclass
class Source:
    """The rows of another source; calls `before` first."""

    rows: RowSource
    before: Callable[[], None]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def embedded(self) -> Iterator[pa.RecordBatch]:
        self.before()
        yield from self.rows.embedded()


def note_threads(notes: Path) -> None:
    notes.write_text(f"{faiss.omp_get_max_threads()} {os.getpid()}")


def die(notes: Path, times: int = 1) -> None:
    """Kill the worker this many times."""
    with notes.open("a") as file:
        file.write("x")
    if notes.stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)


def run_long(notes: Path) -> None:
    notes.write_text(str(os.getpid()))
    time.sleep(120)


def await_notes(notes: Path) -> None:
    while not (notes.exists() and notes.read_text()):
        time.sleep(0.05)


def after(job: SegmentJob, before: Callable[..., None], *arguments: Any) -> SegmentJob:
    """The job, with a source that calls `before` before it yields its rows."""
    return replace(job, sources=[Source(job.sources[0], partial(before, *arguments))])


@pytest.mark.usefixtures("cluster")
class TestOnCluster:
    def test_segments_of_large_indexes_equal_those_built_in_this_process(
        self,
        collection: Collection,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(jobs_cluster, "ray_cluster", lambda address, *, verbose: nullcontext())
        monkeypatch.setattr(jobs_index, "_MIN_ROWS_FOR_RAY", 1_000)
        there = build_index(collection, SETTINGS, run_jobs=run_on_ray(None, Console()))
        assert "4/4 segments" in capsys.readouterr().out
        here = build_index(filled(tmp_path / "other"), SETTINGS)
        assert [segment.ntotal for segment in there.segments] == [625] * 4
        assert there.segments == here.segments
        assert collection.current() == there.version

    def test_records_come_in_the_order_of_jobs_and_are_reported(self, collection: Collection, tmp_path: Path) -> None:
        jobs = jobs_of(collection)[:2]
        notes = tmp_path / "notes"
        jobs = [after(jobs[0], await_notes, notes), after(jobs[1], note_threads, notes)]
        reported: list[str] = []
        records = build_on_cluster(jobs, lambda job: reported.append(job.name))
        assert [record and record.name for record in records] == ["000001-00", "000001-01"]
        assert sorted(reported) == ["000001-00", "000001-01"]
        threads, pid = map(int, notes.read_text().split())
        assert (threads, pid != os.getpid()) == (task_cpus(jobs), True)

    def test_an_error_keeps_its_type_and_message(self, collection: Collection) -> None:
        vectors = unit_vectors(3) * np.array([[1], [2], [1]], np.float32)
        add_run(collection, rows(["good", "bad", "fine"], vectors))
        with pytest.raises(CollectionError) as caught:
            build_index(collection, SETTINGS, run_jobs=on_cluster)
        assert type(caught.value) is CollectionError
        assert str(caught.value).startswith("the embedding of 'bad' has norm 2: expected 1")
        assert collection.versions() == []
        assert segment_folders(collection) == []

    def test_a_segment_that_no_node_can_hold_is_refused(self, collection: Collection) -> None:
        class Vast(SegmentJob):
            memory = 2**50

        (job, *_) = jobs_of(collection)
        vast = Vast(**vars(job))
        with pytest.raises(
            JobError,
            match=r"segment 000001-00 of 625 rows needs 1,073,741,824 MiB to build, but the largest node has [\d,]+ "
            r"MiB for Ray: build smaller ones with --segment-rows \(now 700\), or free some memory",
        ):
            on_cluster([job, vast])

    def test_a_killed_worker_costs_only_its_attempt(self, collection: Collection, tmp_path: Path) -> None:
        first, second, *_ = jobs_of(collection)
        records = on_cluster([after(first, die, tmp_path / "notes"), second])
        (expected,) = run_here([replace(first, name="000002-00")])
        assert records[0]
        assert expected
        assert records[0].files == expected.files
        assert [record and record.name for record in records] == ["000001-00-1", "000001-01"]
        assert segment_folders(collection) == ["000001-00-1", "000001-01", "000002-00"]
        # The next build takes a new number, although no version uses these segments.
        assert build_index(collection, SETTINGS).version == "000003"
        assert [name[:6] for name in segment_folders(collection)] == ["000001"] * 2 + ["000002"] + ["000003"] * 4

    def test_a_segment_whose_workers_keep_dying_is_given_up(
        self, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Although the files of its attempts cannot be removed."""

        def refuse(storage: Storage, path: str) -> None:
            raise CollectionError(f"{path} cannot be read")

        monkeypatch.setattr(Storage, "delete", refuse)
        (job, *_) = jobs_of(collection)
        deadly = after(job, die, tmp_path / "notes", ATTEMPTS)
        with pytest.raises(JobError, match=r"000001-00 of 625 rows .*: its worker was lost 3 times .* --segment-rows$"):
            on_cluster([deadly])
        assert (tmp_path / "notes").read_text() == "x" * ATTEMPTS

    def test_ctrl_c_ends_running_tasks(self, collection: Collection, tmp_path: Path) -> None:
        first, second, *_ = jobs_of(collection)
        notes = tmp_path / "notes"

        def interrupted(job: SegmentJob) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build_on_cluster([after(first, run_long, notes), after(second, await_notes, notes)], interrupted)
        pid = int(notes.read_text())
        with suppress(psutil.NoSuchProcess):
            eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "the worker ends", 10)

    def test_a_job_takes_at_most_half_a_node(self, collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
        def node(cpus: float, gib: float, *, alive: bool = True) -> dict[str, object]:
            return {"Alive": alive, "Resources": {"CPU": cpus, "memory": gib * 2**30}}

        jobs = jobs_of(collection)  # four, each of 0.6 GiB
        cases = [
            ([node(2, 8)], 1),
            ([node(16, 8)], 4),
            ([node(16, 1.9)], 5),  # three fit at once
            ([node(16, 8), node(16, 8)], 8),
            ([node(16, 8), node(8, 8)], 4),
            ([node(16, 8), node(16, 8, alive=False), node(0, 64), node(2, 0.1)], 4),
        ]
        for nodes, expected in cases:
            monkeypatch.setattr(ray, "nodes", lambda nodes=nodes: nodes)
            assert task_cpus(jobs) == expected, nodes


@pytest.mark.parametrize("segment_rows", [SEGMENT_ROWS, ROW_COUNT])
def test_small_indexes_use_no_ray(collection: Collection, monkeypatch: pytest.MonkeyPatch, segment_rows: int) -> None:
    def started(address: str | None, *, verbose: bool) -> AbstractContextManager[None]:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(jobs_cluster, "ray_cluster", started)
    settings = IndexSettings(segment_rows=segment_rows)
    assert build_index(collection, settings, run_jobs=run_on_ray(None, Console())).ntotal == ROW_COUNT
    with pytest.raises(AssertionError, match="Ray was started"):
        build_index(collection, settings, rebuild=True, run_jobs=run_on_ray("127.0.0.1:1", Console()))


def test_merges_run_in_this_process_whatever_the_address(collection: Collection) -> None:
    build_index(collection, IndexSettings())
    add_run(collection, rows([f"{number:05d}" for number in range(2_000)], unit_vectors(2_000)))
    manifest = build_index(collection, run_jobs=run_on_ray("127.0.0.1:1", Console()))
    assert manifest.base == "000001"
    assert [segment.ntotal for segment in manifest.segments] == [ROW_COUNT]


def test_a_pickled_job_has_few_bytes_per_row(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    block = 256  # the default of `likeness embed`; smaller files would take more bytes per row
    ids = [[f"{part:03d}-{number:03d}" for number in range(block)] for part in range(40)]
    add_run(collection, *(rows(part) for part in ids))
    for most in (2, 10):
        (job,) = jobs_of(collection, IndexSettings())
        assert job.rows == 40 * block
        assert job.memory > 0  # reads the schemas and caches them
        assert len(cloudpickle.dumps(job)) < most * job.rows  # type: ignore[no-untyped-call]
        add_run(collection, rows([part[0] for part in ids]))  # replaced rows take more
