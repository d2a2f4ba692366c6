"""Building index versions: what they contain, what is refused, and what crashes and damaged files leave behind."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from index.builder.build_index import build_index, run_here
from index.builder.segment import SegmentJob
from index.collection import Collection, writing
from index.collection.layout import LEASE
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import SegmentRecord
from index.errors import (
    CollectionError,
    DamagedVersionError,
    EmptyCollectionError,
    LeaseLostError,
    RecallTooLowError,
)
from index.search import Searcher
from index.versions.prune import prune
from tests.support.collections.hand_made import DIM, MODEL, add_run, add_version, rows, unit_vectors

IDS = [f"{number:03d}" for number in range(250)]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_run(collection, rows(IDS[:100], unit_vectors(250)[:100]), rows(IDS[100:], unit_vectors(250)[100:]))
    return collection


def index_file(collection: Collection, name: str = "") -> Path:
    return Path(collection.location) / "index" / name


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_manifest_describes_its_version(collection: Collection) -> None:
    manifest = build_index(collection)
    assert collection.current() == "000001"
    assert collection.versions() == ["000001"]
    assert collection.read_version("000001") == manifest
    assert (manifest.ntotal, manifest.dim, manifest.model) == (250, DIM, MODEL)
    assert manifest.runs == [run.run_id for run in collection.runs()]
    assert (manifest.recall, manifest.kind) == ({"1": 1.0, "10": 1.0, "100": 1.0}, "Flat")
    assert (manifest.base, manifest.queries) == (None, 250)
    (segment,) = manifest.segments
    assert (segment.name, segment.ntotal, segment.live, segment.factory) == ("000001-00", 250, 250, "Flat")
    files = {f"segments/000001-00/{name}": file for name, file in segment.files.items()}
    files |= {f"000001/{name}": file for name, file in manifest.files.items()}
    assert len(files) == 5
    for name, file in files.items():
        assert file.size == index_file(collection, name).stat().st_size
        assert file.sha256 == collection.storage.sha256(f"index/{name}")
    assert names(index_file(collection)) == ["000001", "segments"]
    assert names(index_file(collection, "000001")) == ["manifest.json", "queries.arrow", "started"]
    assert names(index_file(collection, "segments/000001-00")) == [
        *("ids.arrow", "rows.arrow", "vectors.faiss", "words.arrow")
    ]


def test_the_manifest_of_another_version_is_refused(collection: Collection) -> None:
    build_index(collection)
    root = Path(collection.location)
    shutil.copytree(root / "index/000001", root / "index/000002")
    with pytest.raises(DamagedVersionError, match=r"000002/manifest.json is damaged \(it belongs to version 000001"):
        collection.read_version("000002")


def test_a_collection_without_embeddings_is_refused(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    with pytest.raises(EmptyCollectionError, match=r"embedded 0 of 0 rows in .*: embed images first"):
        build_index(collection)
    stopped = collection.start_run("memory:", MODEL)
    collection.write_rows(stopped.run_id, "a", rows(["c"], unit_vectors(1)))
    with pytest.raises(EmptyCollectionError, match="has no index to search: embed images first"):
        Searcher.open(collection)
    add_run(collection, rows([], unit_vectors(0), rejected={"a": "empty", "b": "corrupt"}))
    with pytest.raises(EmptyCollectionError, match=r"embedded 0 of 2 rows in .*: see `likeness rejects`"):
        build_index(collection)
    with pytest.raises(EmptyCollectionError, match="embedded 0 of 2 images, see `likeness rejects`"):
        Searcher.open(collection)
    assert list((tmp_path / "index").rglob("*.*")) == []


@pytest.mark.parametrize(
    ("factor", "message"), [(1.01, "norm 1.01"), (0, "norm 0"), (np.nan, "norm nan"), (np.inf, "norm inf")]
)
def test_the_error_names_a_vector_without_unit_norm(collection: Collection, factor: float, message: str) -> None:
    build_index(collection)
    vectors = unit_vectors(3)
    vectors[1, 0] = factor if not np.isfinite(factor) else vectors[1, 0]
    vectors[1] *= factor if np.isfinite(factor) else 1
    add_run(collection, rows(["good", "bad", "fine"], vectors))
    with pytest.raises(CollectionError, match=f"the embedding of 'bad' has {message}: expected 1"):
        build_index(collection)
    assert Searcher.open(collection).ntotal == 250
    assert names(index_file(collection)) == ["000001", "segments"]
    assert names(index_file(collection, "segments")) == ["000001-00"]


def test_vectors_of_nearly_unit_norm_are_normalised(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    vectors = unit_vectors(2)
    add_run(collection, rows(["a", "b"], vectors * np.array([[0.9995], [1.0005]], np.float32)))
    build_index(collection)
    assert Searcher.open(collection).search(vectors[:1], 1)[0][0].score == 1.0


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            {"ntotal": 251},
            "index/segments/000001-00/vectors.faiss cannot be read .it does not have 251 vectors",
        ),
        ({"live": 249}, "index/segments/000001-00 has 250 vectors of 8 dimensions, 250 of them live"),
    ],
)
def test_a_base_that_differs_from_its_manifest_is_built_anew(
    collection: Collection, field: dict[str, int], message: str
) -> None:
    manifest = build_index(collection)
    segment = manifest.segments[0].model_copy(update=field)
    wrong = manifest.model_copy(update={"segments": [segment], "ntotal": segment.live})
    index_file(collection, "000001/manifest.json").write_bytes(wrong.to_bytes())
    with pytest.raises(DamagedVersionError, match=message):
        Searcher.open(collection)
    add_run(collection, rows(["new"]))
    assert build_index(collection).base is None
    assert Searcher.open(collection).ntotal == 251


# Imports once, and forks for each point before any library has started a thread.
_KILLED = """
import os, sys
import duckdb, pandas
from pathlib import Path
from index.storage import disk, storage
from index.builder.build_index import build_index
from index.collection import Collection

real = disk.publish
for folder in Path(sys.argv[1]).iterdir():
    name, when = folder.name.split(" ")

    def publish(partial, target):
        if target.name == name and when == "before":
            os._exit(9)
        real(partial, target)
        if target.name == name:
            os._exit(9)

    child = os.fork()
    if child == 0:
        disk.publish = storage.publish = publish
        build_index(Collection.open(str(folder)))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, folder
"""

_FILES = ("vectors.faiss", "rows.arrow", "ids.arrow", "tombstones.arrow", "queries.arrow", "manifest.json", "CURRENT")
_POINTS = [f"{_FILES[0]} before", *(f"{name} after" for name in _FILES)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of collections in which the second build was killed, named by the point."""
    original = Collection.create_or_open(str(tmp_path_factory.mktemp("original")))
    add_run(original, rows(IDS))
    build_index(original)
    add_run(original, rows(["new"], unit_vectors(1, seed=5)), deletes=["007"])
    folder = tmp_path_factory.mktemp("killed")
    for point in _POINTS:
        shutil.copytree(original.location, folder / point)
    subprocess.run([sys.executable, "-c", _KILLED, str(folder)], check=True)
    return folder


@pytest.mark.parametrize("point", _POINTS)
def test_a_build_may_be_killed_at_any_point(killed: Path, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    live = "000002" if point == "CURRENT after" else "000001"
    collection = Collection.create_or_open(str(killed / point))
    searcher = Searcher.open(collection)
    assert searcher.version == live
    assert (searcher.ntotal, searcher.row("007") is None) == (250, live == "000002")
    # A complete version keeps its number, and goes live unchanged.
    complete = "000002" in collection.versions()
    final = build_index(collection)
    assert final.version == ("000002" if complete else "000003")
    assert (final.base, final.ntotal) == ("000001", 250)
    matches = Searcher.open(collection).search(unit_vectors(1, seed=5), 1)[0]
    assert [(match.image_id, match.score) for match in matches] == [("new", 1.0)]
    # The files of the killed build stay for a day, since the build might still be running.
    prune(collection)
    monkeypatch.setattr("index.versions.prune.ABANDONED_AFTER", timedelta(0))
    prune(collection)
    used = {segment.name for version in collection.versions() for segment in collection.read_version(version).segments}
    assert names(index_file(collection)) == [*collection.versions(), "segments"]
    assert names(index_file(collection, "segments")) == sorted(used)
    assert not list(index_file(collection).rglob(".*"))


def test_a_build_leaves_another_builds_files(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
        records = run_here(jobs)
        assert build_index(collection).version == "000002"
        return records

    with pytest.raises(CollectionError, match="index version 000002 was made live while 000001 was built"):
        build_index(collection, run_jobs=meanwhile)
    assert [Searcher.open(collection, version).ntotal for version in ("000001", "000002")] == [250, 250]


def test_a_build_that_lost_its_lease_writes_and_removes_nothing(collection: Collection) -> None:
    with writing(collection, "index") as slept:

        def sleep(jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
            records = run_here(jobs)
            collection.storage.delete(LEASE)  # as if another job had taken the lease, and released it
            return records

        with pytest.raises(LeaseLostError):
            build_index(slept, run_jobs=sleep)
        assert collection.versions() == []
        assert names(index_file(collection)) == ["000001", "segments"]
        with pytest.raises(LeaseLostError):
            build_index(slept)
    assert names(index_file(collection)) == ["000001", "segments"]
    assert names(index_file(collection, "segments")) == ["000001-00"]


def test_runs_of_a_job_that_took_over_the_lease_are_not_called_lost(collection: Collection) -> None:
    with writing(collection, "reembed") as slept:
        runs = slept.runs()
        collection.storage.delete(LEASE)
        add_version(collection, rows(["new"]))
        with pytest.raises(LeaseLostError):
            build_index(slept, runs=runs)


def test_a_complete_version_that_is_not_live_is_not_built_twice(collection: Collection) -> None:
    build_index(collection)
    add_run(collection, rows(["new"]))
    made = build_index(collection, promote=False)
    assert build_index(collection, promote=False) == made
    assert collection.current() == "000001"
    assert build_index(collection) == made
    assert (collection.current(), collection.versions()) == ("000002", ["000001", "000002"])
    assert build_index(collection, rebuild=True).version == "000003"


@pytest.mark.parametrize("change", ["damaged", "other settings", "more rows"])
def test_a_damaged_or_different_version_is_built_anew(collection: Collection, change: str) -> None:
    build_index(collection)
    add_run(collection, rows(["new"]))
    build_index(collection, promote=False)
    if change == "damaged":
        index_file(collection, "000002/queries.arrow").unlink()
    elif change == "more rows":
        add_run(collection, rows(["newer"]))
    settings = IndexSettings(target_recall=0.9) if change == "other settings" else None
    assert build_index(collection, settings).version == "000003"
    assert collection.current() == "000003"


def test_a_version_below_its_target_is_built_once(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    build_index(collection)
    add_run(collection, rows(["new"]))
    message = r"index version 000002 reaches recall@10 0\.98996, expected 0\.99 or more"  # not rounded up
    with monkeypatch.context() as patch:
        patch.setattr("index.builder.ground_truth.recall", lambda scores, exact, k: np.full(len(scores), 0.98996))
        patch.setattr("index.builder.ground_truth.near_equal_recall", lambda found, true: np.zeros(len(found)))
        with pytest.raises(RecallTooLowError, match=message):
            build_index(collection, rebuild=True)
    with pytest.raises(RecallTooLowError, match=message):
        build_index(collection)
    assert collection.versions() == ["000001", "000002"]
    add_run(collection, rows(["newer"]))
    assert build_index(collection).version == collection.current() == "000003"
