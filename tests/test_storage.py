"""Storage: whole files or none, in folders and in an object store; records that notice when they were altered."""

import hashlib
import os
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import numpy as np
import pyarrow.fs as pafs
import pytest
from moto.server import ThreadedMotoServer

from index.build import build_index
from index.collection import Collection
from index.duplicates import near_duplicates
from index.errors import CollectionError, DamagedVersionError
from index.records import ModelRecord, RunStart
from index.search import Searcher
from index.storage import FileInfo, Storage, without_password
from tests.hand_made import add_run, rows, unit_vectors


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path / "new" / "folder")
    storage.write_atomic("a/b.bin", b"\x00\x01")
    storage.write_atomic("a/b.bin", b"other")
    assert storage.read("a/b.bin") == b"other"
    assert storage.size("a/b.bin") == 5
    assert storage.sha256("a/b.bin") == hashlib.sha256(b"other").hexdigest()
    assert storage.list("a") == [FileInfo(path="a/b.bin", size=5, is_folder=False)]
    assert [(entry.name, entry.is_folder) for entry in storage.list()] == [("a", True)]
    storage.delete("a")
    assert not storage.exists("a")
    storage.delete("a")
    assert storage.list("a") == []
    with pytest.raises(FileNotFoundError):
        storage.read("a/b.bin")


@pytest.mark.parametrize("broken", ["write", "sync", "rename"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    storage = Storage.open(tmp_path)
    storage.write_atomic("file", b"old")

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    def write_half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        fail()

    target, name, double = {
        "write": (Path, "write_bytes", write_half),
        "sync": (os, "fsync", fail),
        "rename": (Path, "replace", fail),
    }[broken]
    monkeypatch.setattr(target, name, double)
    with pytest.raises(OSError, match="disk full"):
        storage.write_atomic("file", b"something new")
    monkeypatch.undo()
    assert storage.read("file") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_in_the_making_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / ".part.parquet.1234").write_bytes(b"half")
    assert Storage.open(tmp_path).list() == []


def test_scratch_lies_beside_the_target_and_is_removed(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path)
    with storage.scratch("index/000001") as scratch:
        assert scratch.parent == tmp_path / "index" / "000001"
        (scratch / "file").write_bytes(b"large")
        (scratch / "left").write_bytes(b"over")
        storage.put_file(scratch / "file", "index/000001/segments/file")
    assert storage.read("index/000001/segments/file") == b"large"
    assert [path.name for path in (tmp_path / "index" / "000001").iterdir()] == ["segments"]


def test_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Storage.open("pictures").root == str(tmp_path / "pictures")  # a worker has another working folder
    assert Storage.open(f"file://{tmp_path}/x").root == str(tmp_path / "x")
    secret = Storage.open("s3://KEY:secret@bucket/prefix?region=eu-west-1")
    assert secret.location == "s3://bucket/prefix?region=eu-west-1"
    assert secret.root == "bucket/prefix"
    assert not secret.is_local
    with pytest.raises(CollectionError, match=r"expected a folder or a file:// s3:// gs:// az:// address"):
        Storage.open("ftp://host/folder")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:s3cret@bucket/a:b@c", "s3://bucket/a:b@c"),
        ("cannot parse 's3://KEY:s3/cret@bucket'", "cannot parse 's3://bucket'"),
        ("s3://bucket/a?endpoint_override=127.0.0.1:9000&x=a@b", None),
        ("az://account@container/a", None),
        ("/pictures/a:b@c", None),
        ("s3://bucket/day:1 and mail to a@b", None),
    ],
)
def test_what_is_shown_of_an_address(text: str, shown: str | None) -> None:
    assert without_password(text) == (shown or text)


def test_no_message_about_a_location_has_its_password(bucket: str) -> None:
    with_key = bucket.replace("s3://images/likeness", "s3://KEY:s3cret@images/theirs")
    for location in ("ftp://KEY:s3cret@host/a", "s3://KEY:s3cret@bucket/a?nonsense=1"):
        with pytest.raises(CollectionError) as error:
            Storage.open(location)
        assert "KEY:s3cret" not in str(error.value)
    with pytest.raises(CollectionError, match="does not exist") as error:
        Collection.open(with_key)
    assert "s3cret" not in str(error.value)
    Storage.open(with_key).write_atomic("mine.txt", b"mine")
    for opened in (Collection.open, Collection.create_or_open):
        with pytest.raises(CollectionError) as error:
            opened(with_key)
        assert "s3cret" not in str(error.value)


def test_azure_takes_the_account_from_the_address_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    with pytest.raises(CollectionError, match="set AZURE_STORAGE_ACCOUNT"):
        Storage.open("az://container/prefix")
    named = Storage.open("az://account@container/prefix")
    assert isinstance(named.filesystem, pafs.AzureFileSystem)
    assert named.root == "container/prefix"
    assert named.location == "az://account@container/prefix"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    assert Storage.open("az://container/prefix").filesystem == named.filesystem


def test_a_record_refuses_altered_content() -> None:
    model = ModelRecord(id="m", revision=None, fingerprint="f", dim=4)
    start = RunStart(run_id="20261121T033100Z-1a2b", source="é", model=model, started_at=datetime.now(UTC))
    data = start.to_bytes()
    assert RunStart.from_bytes(data) == start
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        if data[position] in b" \n":
            continue  # white space may change
        with pytest.raises(ValueError):  # noqa: PT011  (not JSON, or not what was written)
            RunStart.from_bytes(flipped)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a local S3 server, as a location."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1").create_bucket(Bucket="images")
        yield f"s3://images/likeness?scheme=http&endpoint_override={host}:{port}&region=us-east-1"
    finally:
        server.stop()


def test_a_collection_in_an_object_store(bucket: str) -> None:
    collection = Collection.create_or_open(bucket)
    vectors = unit_vectors(50)
    ids = [f"{number:02d}" for number in range(50)]
    start = collection.start_run("memory:", ModelRecord(id="m", revision=None, fingerprint="f", dim=8))
    assert [run.run_id for run in collection.run_starts()] == [start.run_id]
    add_run(collection, rows(ids[:30], vectors[:30]), rows(ids[30:], vectors[30:]), deletes=["gone"])
    reopened = pickle.loads(pickle.dumps(Collection.open(collection.location)))
    assert reopened.live_rows(["image_id"]).column("image_id").to_pylist() == ids
    first = build_index(reopened)
    assert build_index(reopened) == first  # nothing new: nothing built
    searcher = Searcher.open(reopened)
    assert reopened.versions() == ["000001"]
    matches = searcher.search(vectors[7:8], 3)[0]
    exact = vectors @ vectors[7]
    assert [match.image_id for match in matches] == [ids[row] for row in np.argsort(-exact)[:3]]
    assert matches[0].score == pytest.approx(1.0, abs=1e-6)
    # Its local copies have lost their names by now.
    groups = near_duplicates(searcher, matches[1].score)
    assert any({"07", matches[1].image_id} <= set(group.ids) for group in groups)
    path = "index/segments/000001-00/rows.arrow"
    reopened.storage.write_atomic(path, reopened.storage.read(path)[:-1])
    with pytest.raises(DamagedVersionError, match=r"rows\.arrow has .* bytes, expected"):
        Searcher.open(reopened)
    assert build_index(reopened).version == "000002"
    assert Searcher.open(reopened).search(vectors[7:8], 3)[0] == matches
