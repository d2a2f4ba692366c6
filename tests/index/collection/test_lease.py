"""One writer at a time, in a folder and in a bucket, after crashes, sleeps and takeovers."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from benchmarks.common.waiting import eventually
from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.layout import LEASE
from index.collection.lease import TTL, LeaseRecord
from index.errors import CollectionError, LeaseHeldError, LeaseLostError
from index.storage import Storage
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.collections.s3_server import Bucket
from tests.support.processes import python

SHORT = timedelta(seconds=1.2)


@pytest.fixture(params=["folder", "bucket"])
def collection(request: pytest.FixtureRequest, collection: Collection) -> Collection:
    """An empty collection, in a folder and in a bucket."""
    if request.param == "folder":
        return collection
    return Collection.create_or_open(request.getfixturevalue("bucket").address("collection"))


def lease_record(collection: Collection) -> LeaseRecord:
    return LeaseRecord.from_bytes(collection.storage.read(LEASE))


def put(collection: Collection, record: LeaseRecord) -> None:
    collection.storage.update(LEASE, lambda _: record.to_bytes())


def a_record(**changes: object) -> LeaseRecord:
    now = datetime.now(UTC)
    fields = {"token": "another", "command": "reembed", "user": "ann", "host": "gpu-1", "pid": 4242}
    times = {"since": now - timedelta(hours=3), "expires_at": now + timedelta(minutes=1)}
    return LeaseRecord.model_validate(fields | times | {"process": "boot/pid:[1]/77"} | changes)


def test_a_second_job_is_told_who_writes_and_since_when(collection: Collection) -> None:
    put(collection, a_record(since=datetime(2026, 11, 21, 3, 0, tzinfo=UTC)))
    before = collection.storage.read(LEASE)
    message = (
        r"is being written by `likeness reembed` of ann on gpu-1 \(process 4242\) since "
        r"2026-11-21 03:00:00 UTC, with a lease until 20.* UTC, renewed while it runs; nothing was changed"
    )
    with pytest.raises(LeaseHeldError, match=message), writing(collection, "index"):
        pytest.fail("two writers")
    assert collection.storage.read(LEASE) == before


def test_a_job_may_wait_for_the_one_that_writes(
    collection: Collection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(collection, a_record())

    def end_the_other(_: float) -> None:
        put(collection, a_record(expires_at=datetime.now(UTC)))

    monkeypatch.setattr("index.collection.lease.sleep", end_the_other)
    with writing(collection, "reembed", wait_s=600):
        assert lease_record(collection).command == "reembed"
    said = "waiting up to 0:10:00 for `likeness reembed` of ann on gpu-1 (process 4242)"
    assert sum(message.startswith(said) for message in caplog.messages) == 1


def test_a_lease_is_free_again_after_use_and_after_an_error(collection: Collection) -> None:
    with writing(collection, "embed") as held:
        assert held == collection  # equality ignores the lease
        assert lease_record(collection).pid == os.getpid()
        with writing(held, "index") as same:
            assert same is held
        with pytest.raises(LeaseHeldError), writing(collection, "index"):
            pytest.fail("two writers")
    assert collection.storage.read(LEASE) == b""
    with pytest.raises(ZeroDivisionError), writing(collection, "embed"):
        _ = 1 / 0
    with writing(collection, "embed"):
        assert lease_record(collection).command == "embed"
    assert collection.storage.list() == [entry for entry in collection.storage.list() if entry.name == "runs"]


def test_only_one_of_many_threads_gets_the_lease(collection: Collection) -> None:
    inside, max_inside, refused = 0, 0, 0
    lock, start = threading.Lock(), threading.Barrier(8)

    def work(_: int) -> None:
        nonlocal inside, max_inside, refused
        start.wait()
        try:
            with writing(collection, "embed"):
                with lock:
                    inside += 1
                    max_inside = max(max_inside, inside)
                time.sleep(0.3)
                with lock:
                    inside -= 1
        except LeaseHeldError:
            with lock:
                refused += 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert max_inside == 1
    assert refused >= 1


def test_concurrent_updates_lose_nothing(collection: Collection) -> None:
    def add_one(content: bytes) -> bytes:
        return str(int(content or b"0") + 1).encode()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: collection.storage.update("counter", add_one), range(20)))
    assert collection.storage.read("counter") == b"20"


def test_taking_over_an_expired_lease_is_logged(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    put(collection, a_record(expires_at=datetime.now(UTC) - timedelta(seconds=1)))
    with writing(collection, "embed"):
        assert lease_record(collection).command == "embed"
    assert "`likeness reembed` of ann on gpu-1" in caplog.text
    assert "taken over" in caplog.text


def test_a_lease_is_renewed_until_it_is_released(collection: Collection) -> None:
    with writing(collection, "embed", SHORT):
        first = lease_record(collection)
        eventually(lambda: lease_record(collection).expires_at >= first.expires_at + SHORT, "it is renewed", 60)
        assert lease_record(collection).model_copy(update={"expires_at": first.expires_at}) == first


def test_a_writer_that_lost_its_lease_commits_nothing(collection: Collection) -> None:
    add_version(collection, rows(list("abc"), unit_vectors(3)))
    with writing(collection, "index") as slept:
        put(collection, a_record())  # as when this machine slept, and another took over
        with pytest.raises(LeaseLostError, match=r"was lost.*now its owner is `likeness reembed` of ann"):
            add_run(slept, rows(list("d"), unit_vectors(1, seed=1)))
        with pytest.raises(LeaseLostError):
            build_index(slept, rebuild=True)
        with pytest.raises(LeaseLostError):
            slept.promote("000001", "000001")
    assert len(collection.runs()) == 1
    assert collection.versions() == ["000001"]
    assert lease_record(collection).token == "another"  # it still belongs to its owner


@pytest.mark.parametrize("away", [TTL, -TTL], ids=["a machine that slept", "a clock that was set back"])
def test_a_lost_lease_is_noticed_when_the_renewal_is_overdue(collection: Collection, away: timedelta) -> None:
    with writing(collection, "embed") as held:
        put(collection, a_record())
        held.check_lease_if_overdue()  # renewed a moment ago, so the storage is not read
        assert held.lease
        held.lease._renewed -= away
        for _ in range(2):
            with pytest.raises(LeaseLostError, match="now its owner is `likeness reembed` of ann"):
                held.check_lease_if_overdue()


def test_failing_renewals_are_logged(
    collection: Collection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = Storage.update

    def refused(storage: Storage, *arguments: Any) -> None:
        if threading.current_thread().name == "lease":
            raise OSError("no route to the store")
        renew(storage, *arguments)

    def wait_for(text: str) -> None:
        eventually(lambda: text in caplog.text, text, 60)

    with writing(collection, "embed", SHORT):
        with monkeypatch.context() as patch:
            patch.setattr(Storage, "update", refused)
            wait_for("could not be renewed: no route to the store")
        put(collection, a_record())
        wait_for("was lost: this process did not renew it")


def test_releasing_waits_for_a_renewal_in_progress(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    renewing = threading.Event()

    def slowly(*arguments: object) -> None:
        if threading.current_thread().name == "lease":
            renewing.set()
            time.sleep(0.3)

    monkeypatch.setattr(Storage, "update", slowly)
    with writing(collection, "embed", timedelta(seconds=0.2)):
        assert renewing.wait(10)
    assert "lease" not in [thread.name for thread in threading.enumerate()]


def test_an_expired_lease_that_nobody_took_is_renewed(collection: Collection) -> None:
    with writing(collection, "index") as slept:
        record = lease_record(collection)
        put(collection, record.model_copy(update={"expires_at": datetime.now(UTC) - timedelta(hours=1)}))
        slept.check_lease()
        assert lease_record(collection).expires_at > datetime.now(UTC)


def test_everybody_who_may_write_to_the_collection_may_take_the_lease(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        tmp_path.chmod(0o775)
        with writing(Collection.create_or_open(str(tmp_path)), "index"):
            assert (tmp_path / f".{LEASE}.lock").stat().st_mode & 0o777 == 0o664  # the lease itself is replaced
    finally:
        os.umask(before)


def test_a_lease_works_on_a_file_system_without_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fchmod", Mock(side_effect=PermissionError(1, "Operation not permitted")))  # as on vfat
    collection = Collection.create_or_open(str(tmp_path))
    with writing(collection, "index"):
        assert lease_record(collection).command == "index"


def test_a_collection_in_a_folder_imports_no_client_of_buckets(tmp_path: Path) -> None:
    code = (
        "import sys; from likeness.cli import app; from index.collection import Collection, writing\n"
        "with writing(Collection.create_or_open(sys.argv[1]), 'index'): pass\n"
        "print([name for name in ('obstore', 'boto3', 'botocore') if name in sys.modules])"
    )
    assert python("-c", code, tmp_path).stdout == "[]\n"


def test_an_incomplete_record_has_no_owner(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    (tmp_path / LEASE).write_bytes(a_record().to_bytes()[:100])
    with writing(collection, "index"):
        assert lease_record(collection).command == "index"


HOLD = """
import os, sys
from index.collection import Collection
from index.collection.lease import Lease
Lease.acquire(Collection.open(sys.argv[1]).storage, "embed")
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lease_of_a_killed_process_on_this_machine_is_free_at_once(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeldError, match=rf"process {owner.pid}\)"), writing(collection, "index"):
            pytest.fail("two writers")
        owner.kill()
        eventually(lambda: psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE, "it is a zombie")
        with writing(collection, "index"):  # it has ended, although it is a zombie
            pass
        put(collection, held := a_record(**like_this_process(collection, pid=owner.pid, start="12")))
    finally:
        owner.kill()
        owner.communicate()
    with writing(collection, "index"):  # no such process
        assert lease_record(collection).token != held.token


def like_this_process(collection: Collection, *, pid: int, start: str) -> dict[str, object]:
    with writing(collection, "embed"):
        here = lease_record(collection)
    return {"host": here.host, "pid": pid, "process": "/".join([*here.process.split("/")[:2], start])}


def test_a_process_with_the_pid_of_a_dead_owner_is_not_the_owner(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    put(collection, a_record(**like_this_process(collection, pid=os.getpid(), start="1")))
    with writing(collection, "index"):
        pass


@pytest.mark.parametrize(
    "changes", [{"host": "elsewhere"}, {"process": "other-boot/pid:[1]/1"}, {"process": ""}], ids=lambda c: str(c)
)
def test_an_owner_that_cannot_be_checked_counts_as_alive(tmp_path: Path, changes: dict[str, object]) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    put(collection, a_record(**(like_this_process(collection, pid=2**22 + 1, start="1") | changes)))
    with pytest.raises(LeaseHeldError), writing(collection, "index"):
        pytest.fail("it may be alive")


def test_credentials_of_the_address_are_used(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with_key = Storage.open(bucket.address("here", credentials="KEY:sec%2Fret@"))
    with_key.update("file", lambda _: b"mine")
    assert with_key.read("file") == b"mine"
    assert "ret" not in repr(with_key)
    with pytest.raises(CollectionError, match="no AWS credentials were found"):
        Storage.open(bucket.address("here")).update("file", lambda _: b"other")


def test_a_bucket_that_does_not_exist_is_named(bucket: Bucket) -> None:
    storage = Storage.open(bucket.address("x").replace(bucket.name, "no-such-bucket"))
    message = r"^s3://no-such-bucket does not exist: create it"
    with pytest.raises(CollectionError, match=message):
        storage.update("file", lambda _: b"data")
    with pytest.raises(CollectionError, match=message):
        storage.write_atomic("file", b"data")
