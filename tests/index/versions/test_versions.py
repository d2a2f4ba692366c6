"""Versions of an index: listed, promoted, rolled back and pruned; which one is served if the live one is damaged."""

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.current_file import Current
from index.collection.records.version_manifest import KindRecord, VersionManifest
from index.errors import CollectionError, DamagedVersionError, EmptyCollectionError, LeaseHeldError, OvertakenError
from index.search import Searcher
from index.storage import Storage
from index.versions.promotion import list_versions, promote, rollback
from index.versions.prune import ABANDONED_AFTER, prune
from index.versions.servable import open_last_good, require_servable
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.collections.s3_server import Bucket

IDS = [f"{number:03d}" for number in range(50)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Version 1 of 50 rows, then four updates of one row each: 5 is live, and all share the first segment."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("template")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("index.collection.merged.policy.FACTOR", 100)
        add_version(collection, rows(IDS, unit_vectors(50)))
        for number in range(4):
            add_version(collection, rows([f"new-{number}"], unit_vectors(1, seed=number + 1)))
        assert (collection.versions(), collection.current()) == ([f"00000{n}" for n in range(1, 6)], "000005")
        yield Path(collection.location)


def file_of(collection: Collection, path: str) -> Path:
    return Path(collection.location) / "index" / path


def segments(collection: Collection) -> list[str]:
    return [entry.name for entry in collection.storage.list("index/segments")]


def bytes_of(collection: Collection) -> int:
    return sum(path.stat().st_size for path in file_of(collection, "").rglob("*") if path.is_file())


def age(folder: Path, seconds: float) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() - seconds,) * 2)


def below_target(collection: Collection, version: str) -> None:
    """Rewrite a version's manifest so that its recall is below the target."""
    manifest = collection.read_version(version)
    poor = manifest.model_copy(update={"kinds": {"image": KindRecord(queries=1, recall=0.5, width=1)}})
    collection.storage.write_atomic(f"index/{version}/manifest.json", poor.to_bytes())


# List and promote


def test_versions_are_listed_with_their_manifests(collection: Collection) -> None:
    file_of(collection, "000002/manifest.json").write_text("{}")
    found = list_versions(collection)
    assert [(version.name, version.live) for version in found] == [(f"00000{n}", n == 5) for n in range(1, 6)]
    assert [version.manifest and version.manifest.ntotal for version in found] == [50, None, 52, 53, 54]
    assert found[1].damage is not None
    assert "index/000002/manifest.json is damaged" in found[1].damage
    (Path(collection.location) / "CURRENT").write_text("nonsense")
    assert not any(version.live for version in list_versions(collection))


def test_promoting_verifies_every_byte(collection: Collection) -> None:
    promote(collection, "000002")
    assert Searcher.open(collection).ntotal == 51
    path = file_of(collection, "segments/000003-00/vectors.faiss")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedVersionError, match=r"segments/000003-00/vectors\.faiss has been altered") as refused:
        promote(collection, "000003")
    assert refused.value.file == "index/segments/000003-00/vectors.faiss"
    with pytest.raises(DamagedVersionError, match=r"index/000009/manifest\.json is missing; other versions: 000001, "):
        promote(collection, "000009")
    assert collection.current() == "000002"


# Roll back


def test_a_rollback_skips_versions_that_were_rolled_back(collection: Collection) -> None:
    for expected in ("000004", "000003"):
        assert rollback(collection).manifest.version == expected
    add_run(collection, rows(["later"], unit_vectors(1, seed=9)))
    assert build_index(collection).version == collection.current() == "000006"
    assert [version.name for version in list_versions(collection) if version.rolled_back] == ["000004", "000005"]
    rolled_back = rollback(collection)
    assert (rolled_back.manifest.version, rolled_back.before) == ("000003", "000006")
    assert list(rolled_back.skipped) == ["000005", "000004"]
    assert f"run `likeness promote {collection.location} 000005` to make it live" in rolled_back.skipped["000005"]
    promote(collection, "000004")
    promote(collection, "000006")
    assert [version.name for version in list_versions(collection) if version.rolled_back] == ["000005"]
    assert rollback(collection).manifest.version == "000004"


def test_an_interrupted_rollback_is_repeated(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: str) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "promote", full)
        with pytest.raises(OSError, match="no space left"):
            rollback(collection)
    assert Searcher.open(collection).version == "000005"
    assert rollback(collection).manifest.version == "000004"


def test_a_version_built_during_a_rollback_stays_live(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(*arguments: Any, **options: Any) -> VersionManifest:
        monkeypatch.setattr("index.versions.promotion.require_servable", require_servable)
        add_run(collection, rows(["later"], unit_vectors(1, seed=9)))
        assert build_index(collection).version == "000006"
        return require_servable(*arguments, **options)

    monkeypatch.setattr("index.versions.promotion.require_servable", meanwhile)
    with pytest.raises(
        OvertakenError, match="version 000006 was made live meanwhile, so it stays live and 000004 is not"
    ):
        rollback(collection)
    assert collection.current() == "000006"
    # The rollback was meant to leave 000005.
    assert rollback(collection).manifest.version == "000004"


def test_a_version_promoted_during_a_build_stays_live(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Storage.update

    def meanwhile(storage: Storage, path: str, change: Callable[[bytes], bytes]) -> None:
        monkeypatch.setattr(Storage, "update", update)
        promote(collection, "000001")
        storage.update(path, change)

    add_run(collection, rows(["new"], unit_vectors(1, seed=9)))
    monkeypatch.setattr(Storage, "update", meanwhile)
    with pytest.raises(OvertakenError, match="index version 000001 was made live while 000006 was built"):
        build_index(collection)
    assert collection.current() == "000001"
    assert [version.name for version in list_versions(collection) if version.rolled_back] == ["000005", "000006"]


def test_a_rollback_skips_versions_that_are_not_good(collection: Collection) -> None:
    below_target(collection, "000004")
    file_of(collection, "000003/queries.arrow").unlink()
    file_of(collection, "000002/manifest.json").write_text("{}")
    rolled_back = rollback(collection)
    assert rolled_back.manifest.version == collection.current() == "000001"
    assert list(rolled_back.skipped) == ["000004", "000003", "000002"]
    assert "recall@10 0.5, expected 0.99 or more" in rolled_back.skipped["000004"]
    assert "index/000003/queries.arrow is missing" in rolled_back.skipped["000003"]
    assert "index/000002/manifest.json is damaged" in rolled_back.skipped["000002"]


def test_a_rollback_from_a_damaged_version_and_without_an_older_one(collection: Collection, tmp_path: Path) -> None:
    file_of(collection, "000005/manifest.json").unlink()
    assert rollback(collection).manifest.version == "000004"
    file_of(collection, "segments/000001-00/rows.arrow").unlink()
    with pytest.raises(DamagedVersionError, match="no version before 000004 to go back to: index version 000003 is"):
        rollback(collection)
    assert collection.current() == "000004"
    empty = Collection.create_or_open(str(tmp_path / "new"))
    with pytest.raises(EmptyCollectionError, match="has no live index version to roll back"):
        rollback(empty)


# Serve


def test_the_newest_good_version_before_is_served(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    promote(collection, "000004")
    file_of(collection, "000004/queries.arrow").unlink()
    below_target(collection, "000003")
    with caplog.at_level(logging.WARNING):
        assert open_last_good(collection, Searcher.open).version == "000002"  # not 5, which was rolled back
    assert "recall@10 0.5, expected" in caplog.text
    assert "index/000004/queries.arrow is missing" in caplog.records[-1].message
    assert "Serving index version 000002, the last good one" in caplog.records[-1].message
    with pytest.raises(DamagedVersionError, match=r"000004/queries\.arrow"):
        Searcher.open(collection)


def test_if_no_version_is_good_the_error_is_that_of_the_live_one(collection: Collection, tmp_path: Path) -> None:
    file_of(collection, "segments/000001-00/vectors.faiss").unlink()
    with pytest.raises(DamagedVersionError, match=r"index version 000005 is damaged: .*000001-00/vectors\.faiss"):
        open_last_good(collection, Searcher.open)
    with pytest.raises(EmptyCollectionError, match="embed images first with `likeness embed`"):
        open_last_good(Collection.create_or_open(str(tmp_path / "new")), Searcher.open)


# Prune


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions made a moment ago may be removed."""
    monkeypatch.setattr("index.versions.prune.GRACE", timedelta(0))


def superseded_ago(collection: Collection, version: str, hours: float) -> None:
    age(file_of(collection, f"{version}/superseded"), hours * 3600)


def test_recently_superseded_versions_are_not_pruned(collection: Collection) -> None:
    done = prune(collection, keep=1)
    assert (done.versions, done.bytes_freed) == ([], 0)
    assert done.left["000004"] == "index version 000005 replaced it within 1:00:00; servers may still read it"
    for name, hours in (("000001", 20), ("000002", 2), ("000003", 0.9), ("000004", 0.5)):
        superseded_ago(collection, name, hours)
    assert prune(collection, keep=1).versions == ["000001", "000002"]
    assert collection.versions() == ["000003", "000004", "000005"]


def test_a_version_that_was_live_until_just_now_is_not_pruned(collection: Collection) -> None:
    for name in collection.versions()[:-1]:
        superseded_ago(collection, name, 48)
    promote(collection, "000001")
    promote(collection, "000005")
    done = prune(collection, keep=1)
    assert done.versions == ["000002", "000003", "000004"]
    assert done.left == {"000001": "index version 000005 replaced it within 1:00:00; servers may still read it"}
    promote(collection, "000005")  # which is live: nothing is superseded
    superseded_ago(collection, "000001", 2)
    assert prune(collection, keep=1).versions == ["000001"]


def test_of_the_failed_versions_after_the_live_one_only_the_newest_stays(collection: Collection) -> None:
    for name in collection.versions()[:-1]:
        superseded_ago(collection, name, 48)
    promote(collection, "000001")
    for name in ("000002", "000003", "000005"):
        below_target(collection, name)
    done = prune(collection)
    assert done.versions == ["000002", "000003"]
    assert collection.versions() == ["000001", "000004", "000005"]
    assert [Searcher.open(collection, name).ntotal for name in collection.versions()] == [50, 53, 54]


def test_nothing_is_pruned_while_another_job_writes(collection: Collection, no_grace: None) -> None:
    with writing(collection, "reembed"):
        with pytest.raises(LeaseHeldError, match="`likeness reembed`"):
            prune(collection, keep=1)
        assert prune(collection, keep=1, dry_run=True).versions == ["000001", "000002", "000003", "000004"]
    assert len(collection.versions()) == 5


def test_a_rollback_stops_pruning(collection: Collection, no_grace: None, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = Storage.delete

    def roll_back_first(storage: Storage, path: str) -> None:
        monkeypatch.undo()
        rollback(collection)
        remove(storage, path)

    monkeypatch.setattr(Storage, "delete", roll_back_first)
    with pytest.raises(CollectionError, match="a version other than 000005 was made live meanwhile"):
        prune(collection, keep=1)
    assert collection.current() == "000004"
    assert Searcher.open(collection).version == "000004"


def test_pruning_removes_old_versions_and_segments_that_only_they_use(collection: Collection, no_grace: None) -> None:
    build_index(collection, rebuild=True)  # its only segment is not shared
    before = bytes_of(collection)
    plan = prune(collection, keep=2, dry_run=True)
    assert (bytes_of(collection), len(collection.versions())) == (before, 6)
    done = prune(collection, keep=2)
    assert done == plan
    assert (done.versions, done.segments) == (["000001", "000002", "000003", "000004"], [])
    assert (collection.versions(), collection.current()) == (["000005", "000006"], "000006")
    assert before - bytes_of(collection) == done.bytes_freed > 0
    last = prune(collection, keep=1)
    assert (last.versions, last.segments) == (["000005"], [f"00000{n}-00" for n in range(1, 6)])
    assert segments(collection) == ["000006-00"]
    assert Searcher.open(collection).ntotal == 54
    assert prune(collection).versions == []


def test_the_live_version_and_newer_ones_are_never_pruned(collection: Collection, no_grace: None) -> None:
    promote(collection, "000003")
    assert prune(collection, keep=1).versions == ["000001", "000002"]
    assert collection.versions() == ["000003", "000004", "000005"]
    with pytest.raises(CollectionError, match="keep is 0: expected 1 or more"):
        prune(collection, keep=0)
    (Path(collection.location) / "CURRENT").write_text("nonsense")
    with pytest.raises(DamagedVersionError, match="CURRENT"):
        prune(collection)
    collection.storage.write_atomic("CURRENT", Current(version=None).to_bytes())  # none is live
    assert prune(collection, keep=1).versions == []


def test_versions_that_a_rollback_would_skip_do_not_count(collection: Collection, no_grace: None) -> None:
    below_target(collection, "000004")
    file_of(collection, "000003/queries.arrow").unlink()
    assert prune(collection, keep=2).versions == ["000001"]
    assert rollback(collection).manifest.version == "000002"


def test_versions_that_were_rolled_back_do_not_count(collection: Collection, no_grace: None) -> None:
    rollback(collection)
    assert prune(collection, keep=1).versions == ["000001", "000002", "000003"]  # 5 is newer than the live one
    add_version(collection, rows(["later"], unit_vectors(1, seed=9)))
    assert prune(collection, keep=2).versions == []  # 6 and 4, and the version between them
    assert prune(collection, keep=1).versions == ["000004", "000005"]
    assert collection.versions() == ["000006"]


def test_segments_that_an_unreadable_manifest_may_name_stay(collection: Collection, no_grace: None) -> None:
    build_index(collection, rebuild=True)
    file_of(collection, "000003/manifest.json").write_text("{}")
    done = prune(collection, keep=1)
    assert (done.versions, done.segments) == (["000001", "000002", "000004", "000005"], ["000004-00", "000005-00"])
    assert list(done.left) == ["000003", *(f"index/segments/00000{n}-00" for n in range(1, 4))]
    assert "000003/manifest.json is damaged" in done.left["000003"]
    assert "restore that file, or remove index/000003" in done.left["000003"]
    assert "index version 000003, whose manifest cannot be read" in done.left["index/segments/000001-00"]
    assert segments(collection) == ["000001-00", "000002-00", "000003-00", "000006-00"]


def test_a_running_build_stays_until_it_has_been_idle_for_long(collection: Collection, no_grace: None) -> None:
    old, new = file_of(collection, "segments/000006-00"), file_of(collection, "segments/000006-01-1/.scratch-x")
    version = file_of(collection, "000006")
    for folder in (old, new, version):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"12345")
    idle = ABANDONED_AFTER.total_seconds() + 60
    age(old, idle)
    age(version, idle)
    done = prune(collection)  # one of its segments is being written
    assert done.remains == []
    assert sorted(done.left) == ["index/000006", "index/segments/000006-00", "index/segments/000006-01-1"]
    age(new.parent, idle)
    done = prune(collection)
    assert done.remains == ["index/000006", "index/segments/000006-00", "index/segments/000006-01-1"]
    assert done.bytes_freed >= 15
    assert not version.exists()
    assert "000006-00" not in segments(collection)


def test_what_users_put_beside_it_is_neither_counted_nor_pruned(collection: Collection, no_grace: None) -> None:
    """Such as copies that someone made of a version, a segment or a set, and named after the day."""
    names = ("index/20261128", "index/999999", "index/000001-20261128", "index/segments/9999999-00", "merged/copy-1")
    copies = [Path(collection.location, name) for name in names]
    for copy in copies:
        shutil.copytree(file_of(collection, "000001"), copy, ignore=shutil.ignore_patterns("manifest.json"))
        age(copy, ABANDONED_AFTER.total_seconds() + 60)
    collection.storage.write_atomic("annotations/notes.txt", b"not an annotation")
    add_version(collection, rows(["newest"], unit_vectors(1, seed=9)))
    assert collection.current() == "000006"
    prune(collection, keep=1)
    assert [copy for copy in copies if not copy.exists()] == [copies[1]]  # named like an unfinished version


def test_the_remains_of_a_build_are_removed_in_a_bucket_too(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.versions.prune.ABANDONED_AFTER", -timedelta(seconds=5))
    collection = Collection.create_or_open(bucket.address("likeness"))
    add_version(collection, rows(IDS, unit_vectors(50)))
    collection.storage.write_atomic("index/000002/started", b"")
    assert prune(collection).remains == ["index/000002"]
