"""What was checked on a machine is remembered, until somebody writes to it or a week has passed."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from index.collection.cache import checked
from index.collection.cache.file_cache import first_damage
from index.collection.records.record import FileRecord
from index.storage import Storage
from index.versions.files import file_record, store_file

Files = dict[str, FileRecord]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Two files that were checked. It does not matter how long ago they were written."""
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(checked, "_SETTLED_S", -1.0)
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * 1_000)
    records = {name: file_record(tmp_path / name) for name in ("a", "b")}
    assert first_damage(Storage.open(str(tmp_path)), records) is None
    return records


@pytest.fixture
def every_read_is_wrong(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "sha256_of", lambda _: "0" * 64)


def damage(folder: Path, files: Files) -> tuple[str, str] | None:
    return first_damage(Storage.open(str(folder)), files)


ALTERED = "has been altered: its SHA-256 is not the recorded one"


@pytest.mark.usefixtures("every_read_is_wrong")
def test_a_file_is_read_once(tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert damage(tmp_path, files) is None
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(tmp_path / "another machine"))
    assert damage(tmp_path, files) == ("a", ALTERED)


@pytest.mark.usefixtures("every_read_is_wrong")
def test_after_a_week_a_file_is_read_again(tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 6 * 86_400)
    assert damage(tmp_path, files) is None
    monkeypatch.setattr(time, "time", lambda: now + 8 * 86_400)
    assert damage(tmp_path, files) == ("a", ALTERED)


def test_files_of_the_cache_that_are_of_no_more_use_are_removed(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    before = {path.name for path in cache.glob("*.checked")}
    assert len(before) == 2
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * 86_400)
    (tmp_path / "a").write_bytes(b"another")
    assert damage(tmp_path, {"a": file_record(tmp_path / "a")}) is None
    after = {path.name for path in cache.glob("*.checked")}
    assert len(after - before) == 1
    assert not after & before


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"z")


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"z" + path.read_bytes()[1:])
    other.replace(path)


def replaced_by_another_checked_file(path: Path) -> None:
    path.unlink()
    path.with_name("b").replace(path)


def mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        content[0] = ord("z")


@pytest.mark.parametrize("alter", [overwritten, replaced, replaced_by_another_checked_file, mapped])
def test_an_altered_file_is_noticed_although_its_size_and_time_are_as_before(
    tmp_path: Path, files: Files, alter: Callable[[Path], None]
) -> None:
    status = (tmp_path / "a").stat()
    alter(tmp_path / "a")
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (tmp_path / "a").stat().st_mtime_ns == status.st_mtime_ns
    assert damage(tmp_path, {"a": files["a"]}) == ("a", ALTERED)


@pytest.mark.parametrize("why", ["it was just written", "it was written under its name", "there is no cache"])
def test_a_file_is_read_each_time_if(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """The time of one that was just written may not change if somebody writes to it again at once."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(cache))
    (tmp_path / "a").write_bytes(b"a")
    record = file_record(tmp_path / "a")
    if why == "it was written under its name":
        checked.remember_written(tmp_path / "a", record.sha256)
    elif why == "there is no cache":
        cache.write_bytes(b"no folder")
        monkeypatch.setattr(checked, "_SETTLED_S", -1.0)
    assert damage(tmp_path, {"a": record}) is None
    monkeypatch.setattr(checked, "sha256_of", lambda _: "0" * 64)
    assert damage(tmp_path, {"a": record}) == ("a", ALTERED)


def test_a_file_that_was_stored_here_is_not_read_again_until_it_is_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIKENESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(checked, "sha256_of", lambda _: "0" * 64)
    storage = Storage.open(str(tmp_path))
    with storage.scratch("") as scratch:
        (scratch / "new").write_bytes(b"a" * 1_000)
        time.sleep(0.02)  # longer than a step of the file system's clock
        stored = {"a": store_file(storage, scratch / "new", "a")}
    assert damage(tmp_path, stored) is None
    overwritten(tmp_path / "a")
    assert damage(tmp_path, stored) == ("a", ALTERED)
