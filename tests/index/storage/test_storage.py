"""Storage: complete files or none, in folders and in a bucket; records that detect alterations."""

import base64
import hashlib
import itertools
import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import obstore
import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import S3Store
from pydantic import ValidationError

from benchmarks.common.servers import free_port
from embedder.errors import FetchError
from embedder.fetch import Fetcher
from index.collection import Collection, row_files
from index.collection.live_rows import LiveRows
from index.collection.records.index_settings import IndexSettings
from index.collection.records.run_manifest import RunStart
from index.errors import CollectionError, UnreachableError
from index.storage.bucket_address import Bucket as Address
from index.storage.bucket_address import without_secrets
from index.storage.clients import object_store
from index.storage.picture_reader import PictureReader
from index.storage.storage import FileInfo, Storage, canonical_address
from tests.support.collections.hand_made import MODEL, AnyRecord, add_run, rows
from tests.support.collections.s3_server import FAULTS, Bucket, FaultyServer
from tests.support.scripted_server import Reply, ScriptedServer, scripted


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
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
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
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


def test_the_scratch_folder_is_hidden_beside_the_target_and_removed(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path)
    with storage.scratch("index/000001") as scratch:
        assert scratch.parent == tmp_path / "index" / "000001"
        assert storage.list("index/000001") == []
        (scratch / "file").write_bytes(b"large")
        (scratch / "left").write_bytes(b"over")
        storage.put_file(scratch / "file", "index/000001/segments/file")
    assert storage.read("index/000001/segments/file") == b"large"
    assert [path.name for path in (tmp_path / "index" / "000001").iterdir()] == ["segments"]


def test_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Storage.open("pictures").root == str(tmp_path / "pictures")  # a worker has another working folder
    assert Storage.open(f"file://{tmp_path}/x").root == str(tmp_path / "x")
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    for given, root in (("a/../b", "b"), ("a/../../x", "../x"), ("link/../a", "link/../a")):
        assert Storage.open(given).root == (f"{tmp_path.parent}/x" if root == "../x" else f"{tmp_path}/{root}")
    secret = Storage.open("s3://KEY:secret@bucket/prefix?region=eu-west-1")
    assert secret.location == "s3://bucket/prefix?region=eu-west-1"
    assert secret.root == "bucket/prefix"
    assert "secret" not in repr(secret)
    assert pickle.loads(pickle.dumps(secret)).bucket == secret.bucket  # a worker needs what the address holds
    assert not secret.is_local
    assert Storage.open("s3://bucket/set#2/a?region=eu-west-1").root == "bucket/set#2/a"
    azure = Storage.open("az://account@container/prefix")
    assert (azure.root, azure.location) == ("container/prefix", "az://account@container/prefix")
    with pytest.raises(CollectionError, match=r"expected a folder or a file:// s3:// gs:// az:// address"):
        Storage.open("ftp://host/folder")
    with pytest.raises(CollectionError, match=r"^file://pictures/a: expected an absolute path after file://"):
        Storage.open("file://pictures/a")
    for prefix in ("a//b", "a/../b", "a/\x01b"):
        with pytest.raises(
            CollectionError, match=rf'^s3://bucket/{prefix}: a part of the prefix is empty, "." or ".."'
        ):
            Storage.open(f"s3://bucket/{prefix}")
    with pytest.raises(CollectionError, match=r"^s3://\[x/a: expected an address such as s3://bucket/prefix$"):
        Storage.open("s3://[x/a")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://KEY:s3cret@bucket/a:b@c", "s3://bucket/a:b@c"),
        ("cannot parse 's3://KEY:s3/cret@bucket'", "cannot parse 's3://bucket'"),
        ("s3://bucket/a?endpoint_override=127.0.0.1:9000&x=a@b", None),
        ("az://account@container/a", None),
        ("/pictures/a:b@c", None),
        ("s3://bucket/day:1 and mail to a@b", None),
        ("az://account@box/a?sv=2024&sig=s3cret%3D", "az://account@box/a"),
    ],
)
def test_addresses_are_shown_without_secrets(text: str, shown: str | None) -> None:
    assert without_secrets(text) == (shown or text)


@pytest.mark.parametrize(
    ("spellings", "one"),
    [
        (["/data/pics", "/data/pics/", "/data/jobs/../pics", "/data/./pics", "file:///data/pics/"], "/data/pics"),
        (["/with space", "file:///with%20space"], "/with space"),
        (["/[a]", "//[a"], None),
        (["s3://b/pics", "s3://b/pics/", "s3://b/pics?region=eu-west-1", "s3://anonymous@b/pics"], "s3://b/pics"),
        (["gs://b", "gs://b/", "gs://anonymous@b"], "gs://b"),
        (["s3://b/50%25", "s3://b/../pics", "s3://b/set#1", "s3://b/set#2"], None),
        (["az://one@c/pics", "az://two@c/pics"], None),
    ],
)
def test_all_spellings_of_a_location_have_one_canonical_address(spellings: list[str], one: str | None) -> None:
    assert [canonical_address(spelling) for spelling in spellings] == ([one] * len(spellings) if one else spellings)


def test_no_message_about_a_location_has_its_password(bucket: Bucket) -> None:
    with_key = bucket.address("theirs", credentials="KEY:s3cret@")

    def refused(opened: Callable[[str], object], location: str) -> None:
        with pytest.raises(CollectionError) as error:
            opened(location)
        assert "s3cret" not in str(error.value)

    for location in ("ftp://KEY:s3cret@host/a", "s3://KEY:s3cret@℀/a", "s3://KEY:s3cret@bucket/a?nonsense=1"):
        refused(Storage.open, location)
    refused(Collection.open, with_key)
    Storage.open(with_key).write_atomic("mine.txt", b"mine")
    for opened in (Collection.open, Collection.create_or_open):
        refused(opened, with_key)


def test_a_record_refuses_altered_content() -> None:
    start = RunStart(run_id="20261121T033100Z-1a2b", source="é", model=MODEL, started_at=datetime.now(UTC))
    data = start.to_bytes()
    assert RunStart.from_bytes(data) == start
    for position in (at for at in range(len(data)) if data[at] not in b" \n"):  # whitespace may change
        flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(ValueError):  # noqa: PT011  (not JSON, or not what was written)
            RunStart.from_bytes(flipped)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="latency"):
        IndexSettings(latency=1.0)  # type: ignore[call-arg]


def test_fields_of_a_later_release_are_ignored_and_another_format_is_refused() -> None:
    start = RunStart(run_id="20261121T033100Z-1a2b", source="s", model=MODEL, started_at=datetime.now(UTC))

    def read(**later: object) -> RunStart:
        return RunStart.from_bytes(AnyRecord(**start.model_dump() | later).to_bytes())

    assert read(added_later=True) == start
    with pytest.raises(ValueError, match="format"):
        read(format=start.format + 1)


@pytest.mark.parametrize("size", [1_000, 20_000_000], ids=["at once", "in parts"])
def test_an_upload_that_fails_leaves_nothing(bucket: Bucket, tmp_path: Path, size: int) -> None:
    """pyarrow's stream would complete the half-written object when an exception is raised."""
    bucket.put("here/file", b"before")
    (tmp_path / "new").write_bytes(b"x" * size)
    server = FaultyServer(share=1.0, seed=0, faults=("400",), after=1 if size > 1_000 else 0)
    with server.listening() as host, pytest.raises(CollectionError, match=r"here/file cannot be written \("):
        Storage.open(bucket.address("here", server=host)).put_file(tmp_path / "new", "file")
    assert (tmp_path / "new").exists()
    assert Storage.open(bucket.address("here")).read("file") == b"before"
    Storage.open(bucket.address("here")).put_file(tmp_path / "new", "file")
    assert Storage.open(bucket.address("here")).size("file") == size
    assert not (tmp_path / "new").exists()


def test_names_in_a_bucket(bucket: Bucket) -> None:
    for key in ("here/a/b", "here/both", "here/both/x", "here/.hidden", "here/marker/", "here/é %25#/x", "hereafter"):
        bucket.put(key, key.encode())
    storage = Storage.open(bucket.address("here"))

    def found(path: str) -> tuple[int, bool] | None:
        entry = storage.info(path)
        return (entry.size, entry.is_folder) if entry else None

    folder = (0, True)
    assert [found(path) for path in ("", "a", "marker", "é %25#", "nothing", "b")] == [folder] * 4 + [None] * 2
    assert [found(path) for path in ("a/b", "both", "both/x")] == [(8, False), (9, False), (11, False)]
    entries = [(entry.path, entry.size, entry.is_folder) for entry in storage.list()]
    both = [("both", *folder), ("both", 9, False)]
    assert entries == [("a", *folder), *both, ("marker", *folder), ("é %25#", *folder)]
    assert [entry.path for entry in storage.list("é %25#")] == ["é %25#/x"]
    assert storage.list("marker") == storage.list("nothing") == []
    for read in (storage.read, storage.open_input):
        with pytest.raises(FileNotFoundError, match=rf"^s3://{bucket.name}/here/nothing does not exist$"):
            read("nothing")
    below = {entry.path: entry.size for entry in storage.walk() if entry.path != "marker"}
    assert below == {"a/b": 8, "both": 9, "both/x": 11, ".hidden": 12, "é %25#/x": 14}
    assert [entry.path for entry in storage.walk("a")] == ["a/b"]


def test_a_folder_is_listed_without_keys_that_no_path_names(bucket: Bucket) -> None:
    odd = ("here/x//b", "here//c", "here/./d", "here/../e", "here/\x01f", "here/\x7f/g", "/here")
    for key in ("here/a", "here/marker/", "here/", *odd):
        bucket.put(key, b"x")
    storage = Storage.open(bucket.address("here"))
    entries = [(entry.path, entry.size, entry.is_folder) for entry in storage.list()]
    assert entries == [("a", 1, False), ("marker", 0, True), ("x", 0, True)]
    assert storage.list()[0].etag == storage.info("a").etag  # type: ignore[union-attr]
    assert storage.list("x") == []
    assert [entry.path for entry in Storage.open(bucket.address("")).list()] == ["here"]


def test_a_bucket_that_is_empty_or_missing(bucket: Bucket) -> None:
    empty, missing = (Storage.open(replace(bucket, name=name).address("")) for name in (bucket.name, "missing"))
    assert empty.exists()
    assert not missing.exists()
    for storage in (empty, missing):
        assert storage.list() == list(storage.walk()) == []
        assert not storage.exists("here")
        storage.delete("here")
    for write in (missing.write_atomic, lambda path, data: missing.update(path, lambda _: data)):
        with pytest.raises(CollectionError, match=r"^s3://missing does not exist: create it"):
            write("file", b"data")


@pytest.mark.parametrize("by", ["by ranges", "by folders"])
def test_a_bucket_that_vanishes_while_it_is_listed_is_no_short_listing(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The objects of any request that fails would be taken as deleted."""
    monkeypatch.setattr("index.storage.list_objects._PAGE", 5)
    if by == "by folders":  # as on Azure, for which there is no server here
        monkeypatch.setattr("index.storage.list_objects.AzureStore", S3Store)
    for number in range(20):
        bucket.put(f"here/{number % 3}/{number:02}", b"x")
    storage, missing = Storage.open(bucket.address("here")), replace(bucket, name="missing").address("here")
    requests = itertools.count(1)
    fails = 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        store = object_store(Address.of(missing)[0])
        return lambda ours, *rest, **options: call(store if next(requests) == fails else ours, *rest, **options)

    for name in ("list", "list_with_delimiter"):
        monkeypatch.setattr(obstore, name, failing(getattr(obstore, name)))
    assert len(list(storage.walk())) == 20
    assert next(requests) > 5
    for fails in range(1, 6):
        requests = itertools.count(1)
        if fails == 1:
            assert list(storage.walk()) == []
        else:
            with pytest.raises(UnreachableError, match="/here was listed in part, then there was no such bucket"):
                list(storage.walk())


def test_what_is_removed_from_a_bucket_leaves_nothing_behind(bucket: Bucket) -> None:
    storage = Storage.open(bucket.address("here"))
    for path in ("a/b/1", "a/b/2", "a/c/3", "d/4"):
        storage.write_atomic(path, b"x")
    storage.delete("a/b")
    storage.delete("d/4")
    assert bucket.keys("here/") == ["here/a/c/3"]
    for key in ("here/a/c/", "here/a/c/d/", "here/a/c//1", "here/a/c/../2", "here/a/c/\x01/3"):  # of other tools
        bucket.put(key, b"")
    storage.delete("a/c")
    assert bucket.keys() == []


@pytest.mark.parametrize("missing", ["here/runs/a/000", "here/runs/a/599"])
def test_an_object_that_is_missing_does_not_keep_others_in_the_bucket(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Google and Azure stop at the first one; those that stand for folders cannot be named."""
    keys = {f"here/runs/a/{number:03}" for number in range(600)} | {"here/runs/", "here/runs/a/", "here/runs/empty"}
    found = [{"path": key.rstrip("/"), "size": len(key) if "a/" in key and key[-1] != "/" else 0} for key in keys]
    found.sort(key=lambda entry: str(entry["path"]))
    requests = 0

    def remove(_: object, removed: list[str]) -> None:
        nonlocal requests
        requests += 1
        for key in removed:
            if key not in keys:
                raise FileNotFoundError(key)
            keys.remove(key)

    monkeypatch.setattr(obstore, "head", Mock(side_effect=FileNotFoundError))
    monkeypatch.setattr(obstore, "list", lambda *_, **__: iter([found]))
    monkeypatch.setattr(obstore, "delete", remove)
    keys.remove(missing)  # another process was faster
    Storage.open("gs://anonymous@images/here").delete("runs")
    assert keys == {"here/runs/", "here/runs/a/"}
    assert requests < 400


@pytest.mark.parametrize("fault", FAULTS)
def test_reads_and_writes_survive_faults(bucket: Bucket, tmp_path: Path, fault: str) -> None:
    content = os.urandom(6_000_000)
    (tmp_path / "large").write_bytes(content)
    server = FaultyServer(share=0.5, seed=2, faults=(fault,), page=3, pause_s=0.05)
    with server.listening() as host:
        storage = Storage.open(bucket.address("here", server=host))
        for number in range(4):
            storage.write_atomic(f"small/{number}", f"{number}".encode())
        storage.put_file(tmp_path / "large", "large")
        assert storage.read("large") == content
        with storage.open_input("large") as file:
            assert file.read() == content
        assert [storage.read(entry.path) for entry in storage.list("small")] == [b"%d" % n for n in range(4)]
        storage.update("counted", lambda before: before if before == b"1" else b"1")
        assert storage.read("counted") == b"1"
        storage.delete("small")
        assert storage.list("small") == []
    assert server.count[fault] > 0


def test_a_large_file_is_read_in_several_requests(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.storage.objects.MAX_AT_ONCE", 1000)
    monkeypatch.setattr("index.storage.objects._REQUEST_BYTES", 256)
    content, rng = os.urandom(5001), random.Random(7)
    bucket.put("here/large", content)
    storage = Storage.open(bucket.address("here"))
    assert storage.sha256("large") == hashlib.sha256(content).hexdigest()
    with storage.open_input("large", min_read=700) as file:
        for _ in range(20):
            start, length = rng.randrange(5100), rng.randrange(2500)
            file.seek(start)
            assert file.read(length) == content[start : start + length]
    bucket.put("here/large", content[:700])
    with storage.open_input("large") as file:
        bucket.put("here/large", content[:300])
        with pytest.raises(OSError, match="here/large has changed while it was read: try again"):
            file.read()


@pytest.mark.parametrize("size", [2, 10, 100])
def test_a_file_that_is_replaced_meanwhile_is_read_as_before_or_after(bucket: Bucket, size: int) -> None:
    bucket.put("here/CURRENT", b"x" * 10)
    after = b"y" * size

    class Replaced(FaultyServer):
        def draw(self, request: str) -> None:
            self.count["requests"] += 1
            if self.count["requests"] == 2:  # of a HEAD and a GET
                bucket.put("here/CURRENT", after)

    with Replaced().listening() as host:
        storage = Storage.open(bucket.address("here", server=host))
        assert storage.read("CURRENT") in (b"x" * 10, after)
    bucket.put("here/CURRENT", b"x" * 10)
    with Storage.open(bucket.address("here")).open_input("CURRENT", min_read=1) as file:
        assert file.read(1) == b"x"
        bucket.put("here/CURRENT", after)
        with pytest.raises(OSError, match=r"here/CURRENT has changed while it was read: try again"):
            file.read()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_requests_without_an_answer_are_repeated(bucket: Bucket, method: str) -> None:
    class Silent(FaultyServer):
        def draw(self, request: str) -> str | None:
            return super().draw(request) if request.startswith(method) else None

    server = Silent(share=1.0, seed=0, faults=("silent",), pause_s=1.5)
    with server.listening() as host:
        default = Storage.open(bucket.address("here", server=host))
        assert default.bucket
        storage = replace(default, bucket=replace(default.bucket, request_s=0.5))
        storage.write_atomic("file", b"x")
        with storage.open_input("file") as file:
            assert file.read() == b"x"
        for _ in range(2):  # first it is created
            storage.update("counted", lambda before: before + b"1")
    assert Storage.open(bucket.address("here")).read("counted") == b"11"
    assert server.count["silent"] >= 2


@pytest.mark.parametrize(
    "action", ["write", *(pytest.param(each, marks=pytest.mark.long) for each in ("list", "change"))]
)
def test_an_unreachable_server_is_named_soon(bucket: Bucket, action: str) -> None:
    storage = Storage.open(bucket.address("here", server=f"127.0.0.1:{free_port()}"))
    actions: dict[str, Callable[[], object]] = {
        "list": storage.list,
        "write": lambda: storage.write_atomic("file", b""),
        "change": lambda: storage.update("file", lambda _: b"x"),
    }
    with pytest.raises(CollectionError, match=rf"{bucket.name}/here") as error:
        actions[action]()
    assert "\n" not in str(error.value)


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A server that the environment names as that of all clouds; it has nothing."""
    with scripted(Reply(status=404, data=b"", headers={"Content-Type": "text/plain"})) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        azure = f"AccountName=shop;AccountKey={base64.b64encode(b'key').decode()};BlobEndpoint={server.url}/shop"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure)
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
        yield server


def test_the_environment_sets_the_servers_of_google_and_azure(clouds: ScriptedServer) -> None:
    """Both clients use the server and the credentials of the environment."""
    for address in ("gs://images/here", "az://images/here"):
        storage = Storage.open(address)
        with suppress(CollectionError):  # Azure's client raises for a container without objects
            assert not storage.exists("file")
        with pytest.raises(CollectionError, match="images/here/file cannot be written"):
            storage.write_atomic("file", b"x")
        before = len(clouds.requests)
        with pytest.raises(FetchError, match=r"no such file|cannot be read|a\.jpg"):
            Fetcher(buckets=PictureReader()).fetch(f"{address}/a.jpg")
        assert len(clouds.requests) > before
    by_method = {(request.path.startswith("/shop/"), request.method) for request in clouds.requests}
    assert {(False, "GET"), (True, "HEAD")} <= by_method
    assert {azure for azure, method in by_method if method in ("PUT", "POST")} == {False, True}
    for request in clouds.requests:
        assert ("SharedKey shop:" in request.headers.get("authorization", "")) == request.path.startswith("/shop/")


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("s3://anonymous@images/here", "NoSuchBucket"),
        ("gs://images/here", "NoSuchBucket"),
        ("az://shop@images/here", "ContainerNotFound"),
    ],
)
def test_a_bucket_is_missing_only_if_the_store_says_so(clouds: ScriptedServer, address: str, code: str) -> None:
    """A proxy or a service for tokens may answer 404 too."""
    answer = f"<Error><Code>{code}</Code><Message>There is no such bucket</Message></Error>".encode()
    storage = Storage.open(address)
    clouds.routes["*"] = Reply(status=404, data=answer)
    assert not storage.exists()
    assert storage.list() == list(storage.walk()) == []
    clouds.routes["*"] = Reply(status=404, data=b"<html>no such page</html>")
    for action in (storage.exists, storage.list, lambda: list(storage.walk())):
        with pytest.raises(UnreachableError, match=r"images/here cannot be read \(.* 404 Not Found"):
            action()


def test_a_folder_with_a_name_that_is_not_text_is_no_collection(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.jpg")).touch()
    for opened in (Collection.open, Collection.create_or_open):
        with pytest.raises(CollectionError, match=r"a\\xff.jpg' has a name that is not UTF-8"):
            opened(str(tmp_path))


def test_a_tar_that_is_refused_is_one_whatever_its_name(clouds: ScriptedServer) -> None:
    clouds.routes["*"] = Reply(status=403)
    for name in ("0001.tar", "0416.tar"):  # like 416, the status if a file is shorter than expected
        with pytest.raises(FetchError) as refused:
            Fetcher(buckets=PictureReader()).fetch(f"s3://anonymous@images/{name}#bytes=0-99")
        assert refused.value.reason == "permission_denied", name


@pytest.mark.parametrize(("call", "whole"), [("head", False), ("get", True), ("get", False)])
def test_a_refusing_bucket_is_not_called_damaged(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, call: str, whole: bool
) -> None:
    """If a token has expired, no message says to restore files, and nothing is embedded again."""
    collection = Collection.create_or_open(bucket.address("likeness"))
    run = add_run(collection, rows(["a", "b"]))
    started = collection.start_run("memory:", run.model)
    collection.write_rows(started.run_id, "0001-b", rows(["c"]))
    live = LiveRows.of_runs(collection.storage, [run])
    monkeypatch.setattr(row_files, "_WHOLE", row_files._WHOLE if whole else 0)  # else read in parts
    monkeypatch.setattr(obstore, call, Mock(side_effect=PermissionDeniedError("403 Forbidden: ExpiredToken")))
    message = r"parquet cannot be read \(403 Forbidden: ExpiredToken\): check the address, the network, the region and"
    with pytest.raises(UnreachableError, match=message):
        list(live.embedded())
    if whole:
        with pytest.raises(UnreachableError, match=message):
            collection.written_files(started)
