"""Which unfinished runs `likeness prune` removes."""

import json
import os
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.layout import TODO, run_path
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunManifest, RunStart
from index.storage import Storage
from index.versions.prune import ABANDONED_AFTER, FORGOTTEN_AFTER, prune
from likeness.cli.app import app
from tests.support.collections.hand_made import MODEL, add_run, rows
from tests.support.collections.storage_steps import KilledError

OTHER = ModelRecord(id="other", revision=None, fingerprint="b" * 64, dim=MODEL.dim)
HOUR = timedelta(hours=1)


def begin(collection: Collection, idle: timedelta, *, source: str = "memory:", model: ModelRecord = MODEL) -> RunStart:
    """A run with two files, the last of which was written `idle` ago."""
    start = collection.start_run(source, model)
    for number in range(2):
        collection.write_rows(start.run_id, f"0001-{number}", rows([f"{number}"]))
    files = [path for path in folder(collection, start).rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, (time.time() - 2 * FORGOTTEN_AFTER.total_seconds(),) * 2)
    os.utime(max(files), (time.time() - idle.total_seconds(),) * 2)
    return start


def folder(collection: Collection, start: RunStart | RunManifest) -> Path:
    return Path(collection.location) / "runs" / start.run_id


def left(collection: Collection) -> list[str]:
    return [start.run_id for start in collection.snapshot().unfinished]


def test_an_unfinished_run_is_removed_after_a_later_run_of_the_same_job(collection: Collection) -> None:
    old, fresh = begin(collection, ABANDONED_AFTER + HOUR), begin(collection, ABANDONED_AFTER - HOUR)
    elsewhere = begin(collection, ABANDONED_AFTER + HOUR, source="elsewhere")
    other = begin(collection, ABANDONED_AFTER + HOUR, model=OTHER)
    committed = add_run(collection, rows(["0", "1"]))
    size = sum(path.stat().st_size for path in folder(collection, old).rglob("*") if path.is_file())
    plan = prune(collection, dry_run=True)
    assert (plan.runs, plan.bytes_freed) == ([old.run_id], size)
    assert left(collection) == [old.run_id, fresh.run_id, elsewhere.run_id, other.run_id]
    assert prune(collection) == plan
    assert left(collection) == [fresh.run_id, elsewhere.run_id, other.run_id]
    assert not folder(collection, old).exists()
    assert collection.runs() == [committed]
    assert len(collection.live_rows(["image_id"])) == 2


def test_an_unfinished_run_that_can_be_resumed_stays_for_a_month(collection: Collection) -> None:
    forgotten = begin(collection, FORGOTTEN_AFTER + HOUR, source="elsewhere")
    add_run(collection, rows(["0", "1"]))
    resumed = begin(collection, FORGOTTEN_AFTER - HOUR)
    assert prune(collection).runs == [forgotten.run_id]
    assert left(collection) == [resumed.run_id]


def test_a_removal_that_was_interrupted_is_repeated(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(collection, 2 * FORGOTTEN_AFTER)
    delete = Storage.delete

    def die_after_the_rows(storage: Storage, path: str) -> None:
        delete(storage, path)
        if path.endswith("/rows"):
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", die_after_the_rows)
        with pytest.raises(KilledError):
            prune(collection)
    assert left(collection) == [run.run_id]
    assert prune(collection).runs == [run.run_id]
    assert left(collection) == []


@pytest.mark.parametrize("idle", [ABANDONED_AFTER + HOUR, ABANDONED_AFTER - HOUR])
def test_files_that_a_committed_run_does_not_name_are_removed(collection: Collection, idle: timedelta) -> None:
    """They are of an attempt that another one replaced, or of a job on Ray that was killed; of images and of an
    annotation, whose name is that of a folder of runs.
    """
    for log in (collection, annotation_log(collection, "rows")):
        committed = add_run(log, rows(["0", "1"]))
        log.write_rows(committed.run_id, "0001-stale", rows(["stale"]))
        log.storage.write_atomic(run_path(committed.run_id, f"{TODO}0123abcd", "000000.parquet"), b"listed")
        for path in folder(log, committed).rglob("*.parquet"):
            os.utime(path, (time.time() - idle.total_seconds(),) * 2)
    pruned = prune(collection)
    assert list(pruned.unnamed_files.values()) == ([2, 2] if idle > ABANDONED_AFTER else [])
    assert bool(pruned.bytes_freed) == (idle > ABANDONED_AFTER)
    for log in (collection, annotation_log(collection, "rows")):
        [run] = log.runs()
        assert len(log.row_files(run.run_id)) == run.files.rows + (idle < ABANDONED_AFTER)
        assert log.live_rows(["image_id"])["image_id"].to_pylist() == ["0", "1"]


def test_abandoned_runs_of_annotations_are_removed(collection: Collection) -> None:
    log = annotation_log(collection, "half")
    forgotten = begin(log, FORGOTTEN_AFTER + HOUR)
    assert prune(collection).runs == [f"annotations/half/runs/{forgotten.run_id}"]
    assert left(log) == []


def test_the_command_lists_unfinished_runs(collection: Collection) -> None:
    run, invoke = begin(collection, 2 * FORGOTTEN_AFTER), partial(CliRunner().invoke, app)
    plan = invoke(["prune", collection.location, "--dry-run", "--format", "json"])
    assert json.loads(plan.stdout)["runs"] == [run.run_id]
    for text in (f"{run.run_id}\tunfinished run that is no longer needed", "nothing to remove"):
        assert text in invoke(["prune", collection.location]).stdout
