"""Merged runs: the same rows as without merging, whatever happens meanwhile."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from index.collection import Collection, writing
from index.collection.annotations import annotation_log, drop_annotation, list_annotations
from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.merged.merge import merge_runs
from index.collection.merged.sets import MergedRun, read_manifest
from index.collection.records.run_manifest import RunManifest
from index.collection.rows import JSON
from index.errors import DamagedRunError, LeaseLostError
from index.versions.prune import ABANDONED_AFTER, prune
from tests.support.collections.hand_made import MODEL, add_run, rows
from tests.support.collections.s3_server import Bucket
from tests.support.collections.storage_steps import KilledError, at, expire, is_number, kill

OTHER = MODEL.model_copy(update={"fingerprint": "b" * 64})
COLUMNS: list[dict[str, Any]] = [
    {},
    {"label": "x"},
    {"label": 7},
    {"label": "x", "Label": [1.5], "a.b": True},
    {"extra": pa.scalar('{"k": [1]}', pa.string())},
]


def add_random_run(collection: Collection, drawn: random.Random) -> RunManifest:
    """A run of up to two files, which may be empty, with columns of its own, and deletes."""
    tables = []
    for _ in range(drawn.choice([0, 1, 1, 2])):
        ids = sorted(drawn.sample([f"{number:02}" for number in range(30)], drawn.randrange(6)))
        bad = {} if drawn.random() < 0.8 else {"99": "corrupt"}
        metadata = {
            name: pa.array([value.as_py() if isinstance(value, pa.Scalar) else value] * (len(ids) + len(bad))).cast(
                JSON if isinstance(value, pa.Scalar) else pa.scalar(value).type
            )
            for name, value in drawn.choice(COLUMNS).items()
        }
        tables.append(rows(ids, metadata=metadata, rejected=bad))
    deletes = [f"{number:02}" for number in drawn.sample(range(30), drawn.choice([0, 0, 1, 4]))]
    return add_run(collection, *tables, deletes=deletes or None, model=drawn.choice([MODEL, MODEL, OTHER]))


def add_runs(collection: Collection, count: int, seed: int = 0) -> list[RunManifest]:
    drawn = random.Random(seed)
    return [add_random_run(collection, drawn) for _ in range(count)]


@contextmanager
def unmerged() -> Iterator[None]:
    """Runs are read from their own folders."""
    with patch("index.collection.collection.read_merged_runs", lambda _: {}):
        yield


def content(collection: Collection, runs: slice = slice(None)) -> list[Any]:
    """All that a catalog of these runs says."""
    chosen = collection.runs()[runs]
    catalog = Catalog(collection.storage, [RunRows.of(collection.storage, run) for run in chosen])
    tables = [catalog.table(f"FROM {view} ORDER BY seq").to_pylist() for view in ("written", "dead", "live_rows")]
    schemas = [
        catalog.schema_of([number])
        for number, run in enumerate(chosen)
        if any(file.rows for file in collection.files_of(run))
    ]
    return [*tables, catalog.schema_of(), schemas, catalog.live_counts, [run.run_id for run in chosen]]


def sets(collection: Collection) -> int:
    return len(read_manifest(collection.storage).sets)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_merged_runs_have_the_same_rows(collection: Collection, seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(16):
        add_random_run(collection, drawn)
        if drawn.random() < 0.7:
            merge_runs(collection)
    merge_runs(collection)
    runs = collection.runs()
    assert sum(isinstance(run, MergedRun) for run in runs) > 12
    with unmerged():
        assert [dict(run) for run in collection.runs()] == [
            {name: value for name, value in run if not name.startswith("merged_")} for run in runs
        ]
    for part in (slice(None), slice(3, 11), slice(13, None)):
        found = content(collection, part)
        with unmerged():
            assert found == content(collection, part)


def test_the_files_of_merged_runs_are_not_read(collection: Collection) -> None:
    add_runs(collection, 8)
    merge_runs(collection)
    expected, snapshot = content(collection), collection.snapshot()
    for path in Path(collection.location).glob("runs/*/*"):
        if path.name in ("manifest.json", "started.json"):
            path.unlink()
    for path in Path(collection.location).glob("runs/*/facts/*"):
        path.unlink()
    assert content(collection) == expected
    assert collection.snapshot() == snapshot


def test_a_run_whose_folder_is_gone_does_not_count(collection: Collection) -> None:
    runs = add_runs(collection, 8)
    merge_runs(collection)
    collection.storage.delete(f"runs/{runs[3].run_id}")
    assert [run.run_id for run in collection.runs()] == [run.run_id for run in runs if run is not runs[3]]


def test_a_merge_that_is_killed_changes_nothing_or_is_complete(collection: Collection) -> None:
    """After each of its writes and removals, with a set to merge again, and an older one to remove."""
    add_runs(collection, 4)
    merge_runs(collection)
    add_runs(collection, 3, seed=1)
    merge_runs(collection)
    assert (sets(collection), len(read_manifest(collection.storage).replaced)) == (1, 1)
    add_runs(collection, 3, seed=2)
    expected = content(collection)
    kills = 0
    with patch("index.collection.merged.sets.KEPT_FOR", timedelta(0)):
        for number in range(1, 100):
            try:
                with at(is_number(number), after=True, action=kill):
                    merge_runs(collection)
                break
            except KilledError:
                kills += 1
                assert content(collection) == expected
                if len(collection.runs()) == sum(isinstance(run, MergedRun) for run in collection.runs()):
                    add_runs(collection, 3, seed=number)  # it was complete: there is something to merge again
                    expected = content(collection)
        assert kills > 5
    assert content(collection) == expected
    with unmerged():
        assert content(collection) == expected


def test_a_job_that_has_lost_its_lease_does_not_merge(collection: Collection) -> None:
    add_runs(collection, 8)
    with writing(collection, "embed") as leased:
        expire(collection.storage)
        with writing(collection, "embed"), pytest.raises(LeaseLostError):
            merge_runs(leased)
    assert sets(collection) == 0


@pytest.mark.parametrize("name", ["manifest.json", "*/runs.json", "*/facts/*"])
def test_what_is_damaged_is_named_and_can_be_removed(collection: Collection, name: str) -> None:
    add_runs(collection, 8)
    expected = content(collection)
    merge_runs(collection)
    path = next(Path(collection.location, "merged").glob(name))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    message = f"{path.relative_to(collection.location)} cannot be read .*: remove the folder merged, which the next job"
    with pytest.raises(DamagedRunError, match=message):
        content(collection)
    collection.storage.delete("merged")
    assert content(collection) == expected
    merge_runs(collection)
    assert sets(collection) == 1
    assert content(collection) == expected


def test_prune_removes_what_is_of_no_use_after_a_day(collection: Collection) -> None:
    add_runs(collection, 4)
    merge_runs(collection)
    add_runs(collection, 3, seed=1)
    with at(is_number(2), after=True, action=kill), pytest.raises(KilledError):
        merge_runs(collection)
    merge_runs(collection)
    expected = content(collection)
    assert prune(collection).remains == []
    then = time.time() - ABANDONED_AFTER.total_seconds() - 60
    for path in Path(collection.location, "merged").rglob("*"):
        os.utime(path, (then, then))
    assert prune(collection).remains == ["merged/00000002"]  # what was replaced just now stays
    assert content(collection) == expected
    with patch("index.collection.merged.sets.KEPT_FOR", timedelta(0)):
        assert prune(collection).remains == ["merged/00000001"]
    assert content(collection) == expected
    assert sets(collection) == 1


def test_a_set_gets_a_number_whatever_other_folders_are_called(collection: Collection) -> None:
    add_runs(collection, 8)
    expected = content(collection)
    for name in ("99999999", "123456789012", "copy-of-00000001"):
        collection.storage.write_atomic(f"merged/{name}/file", b"x")
    merge_runs(collection)
    assert sets(collection) == 1
    assert content(collection) == expected


def test_runs_of_annotations_in_a_bucket(bucket: Bucket) -> None:
    collection = Collection.create_or_open(bucket.address("likeness"))
    log = annotation_log(collection, "half")
    add_runs(log, 4)
    expected = content(log)
    merge_runs(log)
    assert (sets(log), content(log)) == (1, expected)
    [annotation] = list_annotations(collection)
    with at(is_number(2), after=True, action=kill), pytest.raises(KilledError):
        drop_annotation(annotation)
    assert [run.run_id for run in log.runs()] == annotation.run_ids[:-1]
    drop_annotation(annotation)
    assert list_annotations(collection) == []
