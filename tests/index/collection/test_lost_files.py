"""Lost files: CURRENT beside intact versions, and manifests of runs that the live version was built from."""

import json
import logging
import re
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import DamagedRunError, DamagedVersionError, EmptyCollectionError, RecallTooLowError, RolledBackError
from index.search import Searcher
from index.versions.promotion import promote, rollback
from index.versions.prune import prune
from index.versions.servable import open_last_good
from jobs.sources.listing import LISTING
from likeness.cli.app import app
from tests.support.collections.hand_made import MODEL, AnyRecord, add_run, add_version, rows, unit_vectors
from tests.support.collections.run_plans import run_plan_of

IDS = [f"{number:02d}" for number in range(20)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, each with its version: of 20, 21 and 22 images."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("template")))
    add_version(collection, rows(IDS, unit_vectors(20)))
    for number in (1, 2):
        add_version(collection, rows([f"new-{number}"], unit_vectors(1, seed=number)))
    return Path(collection.location)


def spoil(collection: Collection, how: str) -> None:
    path = Path(collection.location) / "CURRENT"
    path.unlink() if how == "missing" else path.write_bytes(b"")


# CURRENT


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_without_current_the_newest_good_version_is_served_and_index_repairs_it(
    collection: Collection, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(collection, how)
    with pytest.raises(DamagedVersionError, match=rf"CURRENT is {how}.*000001, 000002, 000003; `likeness index` makes"):
        Searcher.open(collection)
    with caplog.at_level(logging.WARNING):
        assert open_last_good(collection, Searcher.open).version == "000003"
    assert f"CURRENT is {how}" in caplog.text
    for refused in (rollback, prune):
        with pytest.raises(DamagedVersionError, match=f"CURRENT is {how}"):
            refused(collection)
    result = CliRunner().invoke(app, ["info", collection.location, "--format", "json"])
    assert f"CURRENT is {how}" in json.loads(result.output)["index"]["damage"]
    assert build_index(collection).version == collection.current() == "000003"
    assert collection.versions() == ["000001", "000002", "000003"]


@pytest.mark.parametrize("file", ["CURRENT", "index/000003/manifest.json"])
def test_a_damaged_file_is_warned_about_once(
    collection: Collection, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    (Path(collection.location) / file).write_text("{}")
    with caplog.at_level(logging.WARNING):
        result = CliRunner().invoke(app, ["index", collection.location])
    assert result.exit_code == 0, result.output
    assert caplog.text.count(f"{file} is damaged") == 1


def test_a_version_of_another_release_says_how_to_replace_it(collection: Collection) -> None:
    path = Path(collection.location, "index/000003/manifest.json")
    content = json.loads(path.read_bytes())
    del content["kinds"], content["checksum"]
    path.write_bytes(AnyRecord(**content | {"format": 3}).to_bytes())
    message = f"has format 3, this release of Likeness reads 4: `likeness index {collection.location}` builds"
    with pytest.raises(DamagedVersionError, match=re.escape(message)):
        Searcher.open(collection)
    assert "unreadable" in CliRunner().invoke(app, ["versions", collection.location]).output
    assert build_index(collection).version == collection.current() == "000004"


def test_current_is_repaired_with_the_version_before_a_rollback(collection: Collection) -> None:
    rollback(collection)
    spoil(collection, "missing")
    assert open_last_good(collection, Searcher.open).version == "000002"
    with pytest.raises(RolledBackError, match="000003 has these images"):
        build_index(collection)
    assert collection.current() == "000002"
    spoil(collection, "missing")
    promote(collection, "000001")
    assert collection.current() == "000001"


def test_new_rows_update_the_version_that_current_named(collection: Collection) -> None:
    spoil(collection, "missing")
    manifest = add_version(collection, rows(["newer"], unit_vectors(1, seed=9)))
    assert (manifest.base, manifest.ntotal, collection.current()) == ("000003", 23, "000004")


def test_a_version_that_never_went_live_is_not_served_for_a_lost_one(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    add_run(collection, rows(IDS))
    build_index(collection, promote=False)
    assert (collection.versions(), collection.current()) == (["000001"], None)
    with pytest.raises(EmptyCollectionError, match="has no index to search"):
        open_last_good(collection, Searcher.open)
    assert build_index(collection).version == collection.current() == "000001"


def test_current_is_not_lost_during_a_first_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = Collection.create_or_open(str(tmp_path / "new"))
    add_run(collection, rows(IDS, unit_vectors(20)))
    listed = Collection.versions

    def build_and_list(collection: Collection) -> list[str]:
        monkeypatch.setattr(Collection, "versions", listed)
        build_index(collection)
        return listed(collection)

    monkeypatch.setattr(Collection, "versions", build_and_list)
    assert collection.current() == "000001"


# Manifests of runs


def lose_run(collection: Collection, number: int, *, all_of_it: bool = False) -> str:
    run_id = collection.runs()[number].run_id
    folder = Path(collection.location) / "runs" / run_id
    shutil.rmtree(folder) if all_of_it else (folder / "manifest.json").unlink()
    return run_id


@pytest.mark.parametrize("all_of_it", [False, True])
def test_a_lost_run_does_not_shrink_the_index(collection: Collection, all_of_it: bool) -> None:
    run_id = lose_run(collection, 0, all_of_it=all_of_it)
    source = "" if all_of_it else r" \(of memory:\)"
    named = rf"runs/{run_id}/manifest\.json{source} is missing, and index version 000003"
    with pytest.raises(DamagedRunError, match=named) as refused:
        build_index(collection)
    assert refused.value.file == f"runs/{run_id}/manifest.json"
    for remedy in ("backup", "`likeness embed`", f"`likeness index {collection.location} --accept-lost-runs`"):
        assert remedy in str(refused.value)
    assert collection.versions()[-1] == collection.current() == "000003"
    assert Searcher.open(collection).ntotal == 22
    add_run(collection, rows(["newer"], unit_vectors(1, seed=9)))
    with pytest.raises(DamagedRunError, match=named):
        build_index(collection)
    assert build_index(collection, accept_lost_runs=True).ntotal == 3
    assert build_index(collection).version == "000004"  # once accepted, it is not missed again


def test_accept_lost_runs_is_an_option_of_the_command(collection: Collection) -> None:
    run_id = lose_run(collection, 1)
    run = CliRunner()
    for command in ("index", "compact"):
        result = run.invoke(app, [command, collection.location])
        assert (result.exit_code, Searcher.open(collection).ntotal) == (1, 22)
        assert run_id in str(result.exception or result.output)
    facts = json.loads(run.invoke(app, ["info", collection.location, "--format", "json"]).output)
    assert facts["index"]["lost_runs"] == [run_id]
    assert run.invoke(app, ["index", collection.location, "--accept-lost-runs"]).exit_code == 0
    assert Searcher.open(collection).ntotal == 21


def test_a_run_that_only_a_rolled_back_version_has_may_be_lost(collection: Collection) -> None:
    rollback(collection)
    lose_run(collection, 2)
    assert build_index(collection).version == collection.current() == "000002"


@pytest.mark.parametrize("damaged", ["CURRENT", "index/000003/manifest.json"])
def test_a_lost_run_is_noticed_despite_other_damage(collection: Collection, damaged: str) -> None:
    (Path(collection.location) / damaged).unlink()
    lose_run(collection, 0)
    with pytest.raises(DamagedRunError):
        build_index(collection)


def test_a_lost_run_is_embedded_again_under_a_new_id(collection: Collection) -> None:
    """If other rows had its id, the live version would seem to have all rows."""
    lose_run(collection, 2)
    plan = run_plan_of(listed("new-2"), collection, "memory:", MODEL)
    assert (plan.run, plan.todo.num_rows) == (None, 1)
    add_run(collection, rows(["new-2", "new-3"], unit_vectors(2, seed=2)))
    assert build_index(collection, accept_lost_runs=True).ntotal == 23


def test_a_damaged_row_file_can_be_embedded_again(collection: Collection) -> None:
    run = collection.runs()[0]
    file, *_ = collection.files_of(run)
    (Path(collection.location) / file.path).write_bytes(b"")
    with pytest.raises(DamagedRunError, match="remove its run's manifest"):
        build_index(collection, rebuild=True)
    lose_run(collection, 0)
    add_run(collection, rows(IDS, unit_vectors(20)))
    assert build_index(collection, accept_lost_runs=True).ntotal == 22


def listed(*ids: str) -> pa.Table:
    return pa.Table.from_pylist([{"image_id": name, "uri": f"memory:{name}"} for name in ids], schema=LISTING)


def test_pruning_keeps_the_rows_of_a_lost_run(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.versions.prune.ABANDONED_AFTER", timedelta(0))
    run_id = lose_run(collection, 0)
    pruned = prune(collection, 1)
    assert pruned.runs == []
    assert "index version 000003 was built from this run: restore its manifest.json" in pruned.left[f"runs/{run_id}"]
    assert build_index(collection, accept_lost_runs=True).ntotal == 2
    assert prune(collection, 1).runs == []  # a rollback to version 3 is still possible


def test_a_first_build_below_its_target_is_not_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    add_run(collection, rows(IDS))
    monkeypatch.setattr("index.builder.ground_truth.recall", lambda found, exact, k: found[:, 0] * 0)
    monkeypatch.setattr("index.builder.ground_truth.near_equal_recall", lambda found, true: found[:, 0, 0] * 0)
    with pytest.raises(RecallTooLowError):
        build_index(collection, IndexSettings())
    assert (collection.versions(), collection.current()) == (["000001"], None)
