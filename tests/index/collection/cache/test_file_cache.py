"""The cache of index files: complete files, shared by processes, within the maximum size."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.cache.file_cache import FileCache
from index.collection.records.record import FileRecord
from index.errors import CollectionError, DamagedVersionError
from index.search import Searcher
from index.storage import Storage
from index.versions.files import read_tombstones
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.collections.s3_server import Bucket

CONTENT = b"content of a segment" * 1000


def record(content: bytes = CONTENT) -> FileRecord:
    return FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())


@pytest.fixture
def storage(bucket: Bucket) -> Storage:
    """A bucket with the file `a`, of `CONTENT`."""
    bucket.put("here/a", CONTENT)
    return Storage.open(bucket.address("here"))


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    (tmp_path / "files").mkdir()
    return FileCache(folder=tmp_path / "files", max_bytes=10**6)


@contextmanager
def reads(location: str) -> Iterator[list[str]]:
    """The paths that are opened below a location; threads left by other tests may read elsewhere."""
    paths: list[str] = []
    open_input = Storage.open_input

    def recording(storage: Storage, path: str) -> Any:
        if storage.location == location:
            paths.append(path)
        return open_input(storage, path)

    with patch.object(Storage, "open_input", recording):
        yield paths


@pytest.mark.parametrize("left", ["", ".part"], ids=["a cached file", "a killed download"])
@pytest.mark.parametrize("damage", [CONTENT[:-1], b"x" + CONTENT[1:]], ids=["short", "altered"])
def test_what_is_not_the_file_is_downloaded_again(
    storage: Storage, cache: FileCache, tmp_path: Path, left: str, damage: bytes
) -> None:
    cached = cache.folder / record().sha256
    cached.with_name(f"{cached.name}{left}").write_bytes(damage)
    cache.place(storage, "a", record(), tmp_path / "view")
    assert (tmp_path / "view").read_bytes() == cached.read_bytes() == CONTENT
    assert list(cache.folder.iterdir()) == [cached]


def test_a_file_that_differs_from_its_record_is_refused(storage: Storage, cache: FileCache, tmp_path: Path) -> None:
    for other in (CONTENT[:-1], b"x" + CONTENT[1:]):
        with pytest.raises(CollectionError, match="a does not match its manifest"):
            cache.place(storage, "a", record(other), tmp_path / "view")
    with pytest.raises(FileNotFoundError):
        cache.place(storage, "b", record(), tmp_path / "view")
    assert list(cache.folder.iterdir()) == []
    assert not (tmp_path / "view").exists()


def test_a_file_is_downloaded_once(storage: Storage, cache: FileCache, tmp_path: Path) -> None:
    targets = [tmp_path / "view" / str(number) for number in range(9)]
    with reads(storage.location) as opened:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda target: cache.place(storage, "a", record(), target), targets[:8]))
        cache.place(storage, "a", record(), targets[8])
    assert opened == ["a"]
    assert [target.read_bytes() for target in targets] == [CONTENT] * 9
    assert [path.name for path in cache.folder.iterdir()] == [record().sha256]


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def names(folder: Path) -> list[str]:
    """The files of a cache, under the names that `digest` was called with."""
    known = {digest(name): name for name in ("new", "needed", "old", "oldest")}
    return sorted(known.get(path.stem, path.stem) + path.suffix for path in folder.iterdir())


def test_the_least_recently_used_files_are_removed(tmp_path: Path) -> None:
    cache = FileCache(folder=tmp_path, max_bytes=100)
    for age, name in enumerate(["new", "needed", "old", "oldest"]):
        (tmp_path / digest(name)).write_bytes(b"x" * 30)
        os.utime(tmp_path / digest(name), (1e9 - age, 1e9 - age))
    (tmp_path / f"{digest('old')}.part").write_bytes(b"x" * 30)
    reading = (tmp_path / digest("oldest")).open("rb")
    needed = FileRecord(size=30, sha256=digest("needed"))
    cache.make_room({"needed": needed, "more": FileRecord(size=40, sha256=digest("more"))})
    assert names(tmp_path) == ["needed", "new", "old.part"]
    with reading:
        assert reading.read() == b"x" * 30
    cache.make_room({"huge": FileRecord(size=1000, sha256=digest("huge"))})  # needed, so it may exceed the maximum
    assert names(tmp_path) == ["old.part"]


def test_other_files_in_the_folder_stay_and_do_not_count(tmp_path: Path) -> None:
    """The folder may contain other files too."""
    theirs = ["thesis.odt", "download.part", digest("x")[:-1], digest("x") + ".txt"]
    for name in theirs:
        (tmp_path / name).write_bytes(b"x" * 1000)
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / digest("folder")).mkdir()
    (tmp_path / digest("link")).symlink_to(tmp_path / "thesis.odt")
    (tmp_path / digest("old")).write_bytes(b"x" * 30)
    cache = FileCache(folder=tmp_path, max_bytes=100)
    cache.make_room({"more": FileRecord(size=60, sha256=digest("more"))})
    assert (tmp_path / digest("old")).exists()
    cache.make_room({"more": FileRecord(size=80, sha256=digest("more"))})
    left = {*theirs, digest("folder"), digest("link")}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_files_of_another_user_are_used_and_not_removed(storage: Storage, cache: FileCache, tmp_path: Path) -> None:
    cached = cache.folder / record().sha256
    cached.write_bytes(CONTENT)
    refused = PermissionError(errno.EPERM, "Operation not permitted")
    with patch("os.utime", side_effect=refused), patch.object(Path, "unlink", side_effect=refused):
        cache.make_room({"huge": FileRecord(size=10**7, sha256=digest("huge"))})
    with patch("os.utime", side_effect=refused), reads(storage.location) as opened:
        cache.place(storage, "a", record(), tmp_path / "view")
    assert (tmp_path / "view").read_bytes() == CONTENT
    assert opened == []


def test_a_file_removed_meanwhile_is_downloaded_again(storage: Storage, cache: FileCache, tmp_path: Path) -> None:
    (cache.folder / record().sha256).write_bytes(CONTENT)
    utime = os.utime
    removed: list[Path] = []

    def evicted_first(path: Path, **times: Any) -> None:
        if not removed:
            removed.append(path)
            path.unlink()
        utime(path, **times)

    with patch("os.utime", side_effect=evicted_first):
        cache.place(storage, "a", record(), tmp_path / "view")
    assert removed == [cache.folder / record().sha256]
    assert (tmp_path / "view").read_bytes() == CONTENT


def test_a_dangling_link_is_replaced(storage: Storage, cache: FileCache, tmp_path: Path) -> None:
    """The cache is on another disk, and the link's target was removed to make room."""
    with patch("os.link", side_effect=OSError(errno.EXDEV, "Invalid cross-device link")):
        for _ in range(2):
            cache.place(storage, "a", record(), tmp_path / "view")
            assert (tmp_path / "view").readlink() == cache.folder / record().sha256
            assert (tmp_path / "view").read_bytes() == CONTENT
            (cache.folder / record().sha256).unlink()


def test_a_full_disk_is_named(storage: Storage, cache: FileCache, tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    write = FileCache._write
    full = patch.object(FileCache, "_write", lambda self, _, chunk: write(self, Full(), chunk))
    with (
        full,
        pytest.raises(OSError, match=r"no room for the files .* set LIKENESS_CACHE_DIR to another disk") as error,
    ):
        cache.place(storage, "a", record(), tmp_path / "view")
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(cache.folder))
    assert list(cache.folder.iterdir()) == []


def test_the_environment_sets_folder_and_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("LIKENESS_CACHE_BYTES", "1000")
    assert FileCache.from_environment() == FileCache(folder=tmp_path / "here", max_bytes=1000)
    monkeypatch.setenv("LIKENESS_CACHE_BYTES", "50 GB")
    with pytest.raises(CollectionError, match="LIKENESS_CACHE_BYTES is '50 GB': expected a number of bytes"):
        FileCache.from_environment()


def twenty(bucket: Bucket) -> Collection:
    collection = Collection.create_or_open(bucket.address("likeness"))
    add_run(collection, rows([f"{number:02d}" for number in range(20)], unit_vectors(20)))
    return collection


def test_a_version_that_shares_segments_downloads_only_new_ones(bucket: Bucket) -> None:
    ids, vectors = [f"{number:02d}" for number in range(60)], unit_vectors(60)
    collection = Collection.create_or_open(bucket.address("likeness"))
    add_version(collection, rows(ids[:50], vectors[:50]))
    before = Searcher.open(collection).search(vectors[:1], 3)
    with reads(collection.storage.location) as opened:
        assert Searcher.open(collection).search(vectors[:1], 3) == before
    assert [path for path in opened if path.startswith("index/segments")] == []
    add_version(collection, rows(ids[50:], vectors[50:]))
    with reads(collection.storage.location) as opened:
        assert Searcher.open(collection).ntotal == 60
    assert [path for path in opened if path.startswith("index/segments/000001")] == []


def test_a_file_damaged_in_the_bucket_is_served_from_the_cache_and_reported_without(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collection = twenty(bucket)
    build_index(collection)
    path = "index/segments/000001-00/rows.arrow"
    data = collection.storage.read(path)
    collection.storage.write_atomic(path, b"x" + data[1:])
    assert Searcher.open(collection).ntotal == 20
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(DamagedVersionError, match=r"rows\.arrow has been altered"):
        Searcher.open(collection)
    collection.storage.delete(path)
    with pytest.raises(DamagedVersionError, match=r"rows\.arrow is missing"):
        Searcher.open(collection)


def test_a_build_without_changes_downloads_nothing(bucket: Bucket) -> None:
    collection = twenty(bucket)
    built = build_index(collection)
    with reads(collection.storage.location) as opened:
        assert build_index(collection) == built
    assert [path for path in opened if path.startswith("index/segments")] == []
    path = "index/segments/000001-00/rows.arrow"
    collection.storage.write_atomic(path, collection.storage.read(path)[:-1])
    assert build_index(collection).version == "000002"


@pytest.mark.parametrize("name", ["vectors.faiss", "rows.arrow"])
def test_files_removed_while_a_version_is_opened(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The cache is on another disk."""
    collection = twenty(bucket)
    cached = FileCache.from_environment().folder / build_index(collection).segments[0].files[name].sha256
    left = 2

    def evicted(*args: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            cached.unlink()
        return read_tombstones(*args)

    # This is the first file that is read after all have been copied.
    monkeypatch.setattr("index.versions.opening.read_tombstones", evicted)
    with patch("os.link", side_effect=OSError(errno.EXDEV, "Invalid cross-device link")):
        assert Searcher.open(collection).ntotal == 20
        left = 3
        with pytest.raises(CollectionError, match=r"is too small: set LIKENESS_CACHE_DIR"):
            Searcher.open(collection)
