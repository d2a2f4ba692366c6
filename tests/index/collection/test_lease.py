"""One writer at a time, in a folder and in a bucket, after crashes, sleeps and takeovers."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from benchmarks.common.waiting import eventually
from index.builder.build_index import build_index
from index.collection import Collection, lease, writing
from index.collection.layout import LEASE
from index.collection.lease import LeaseRecord
from index.errors import LeaseHeldError, LeaseLostError
from index.storage import Storage
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.processes import python

SHORT = timedelta(seconds=0.6)


@pytest.fixture(params=["folder", "bucket"])
def anywhere(request: pytest.FixtureRequest, collection: Collection) -> Collection:
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


def test_a_second_job_is_told_who_writes_and_since_when(anywhere: Collection) -> None:
    put(anywhere, a_record(since=datetime(2026, 11, 21, 3, 0, tzinfo=UTC)))
    before = anywhere.storage.read(LEASE)
    message = (
        r"is being written by `likeness reembed` of ann on gpu-1 \(process 4242\) since "
        r"2026-11-21 03:00:00 UTC, with a lease until 20.* UTC, renewed while it runs; nothing was changed"
    )
    with pytest.raises(LeaseHeldError, match=message), writing(anywhere, "index"):
        pytest.fail("two writers")
    assert anywhere.storage.read(LEASE) == before


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


def test_a_lease_is_free_again_after_use_and_after_an_error(anywhere: Collection) -> None:
    with writing(anywhere, "embed") as held:
        assert held == anywhere  # equality ignores the lease
        assert lease_record(anywhere).pid == os.getpid()
        with writing(held, "index") as same:
            assert same is held
        with pytest.raises(LeaseHeldError), writing(anywhere, "index"):
            pytest.fail("two writers")
    assert anywhere.storage.read(LEASE) == b""
    with pytest.raises(ZeroDivisionError), writing(anywhere, "embed"):
        _ = 1 / 0
    with writing(anywhere, "embed"):
        assert lease_record(anywhere).command == "embed"
    assert anywhere.storage.list() == [entry for entry in anywhere.storage.list() if entry.name == "runs"]


def test_only_one_of_many_threads_gets_the_lease(anywhere: Collection) -> None:
    start, inside, refused = threading.Barrier(8), list[int](), list[int]()

    def work(number: int) -> None:
        start.wait()
        try:
            with writing(anywhere, "embed"):
                inside.append(number)
                time.sleep(0.3)
                assert inside.pop() == number
        except LeaseHeldError:
            refused.append(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert refused


def test_concurrent_updates_lose_nothing(anywhere: Collection) -> None:
    def add_one(content: bytes) -> bytes:
        return str(int(content or b"0") + 1).encode()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: anywhere.storage.update("counter", add_one), range(20)))
    assert anywhere.storage.read("counter") == b"20"


def test_taking_over_an_expired_lease_is_logged(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    put(collection, a_record(expires_at=datetime.now(UTC) - timedelta(seconds=1)))
    with writing(collection, "embed"):
        assert lease_record(collection).command == "embed"
    assert "`likeness reembed` of ann on gpu-1" in caplog.text
    assert "taken over" in caplog.text


def test_a_lease_is_renewed_until_it_is_released(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TTL", SHORT)
    with writing(collection, "embed"):
        first = lease_record(collection)
        eventually(lambda: lease_record(collection).expires_at >= first.expires_at + SHORT, "it is renewed", 60)
        assert lease_record(collection).model_copy(update={"expires_at": first.expires_at}) == first


def test_a_renewal_notices_that_the_lease_was_lost(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a job stops between its commits."""
    monkeypatch.setattr(lease, "TTL", SHORT)

    def is_lost() -> bool:
        held.raise_if_lease_lost()  # makes no request
        return False

    with writing(collection, "embed") as held:
        put(collection, a_record())
        with pytest.raises(LeaseLostError, match="now its owner is `likeness reembed` of ann"):
            eventually(is_lost, "a renewal finds it", 60)


def test_a_writer_that_lost_its_lease_commits_nothing(anywhere: Collection) -> None:
    add_version(anywhere, rows(list("abc"), unit_vectors(3)))
    with writing(anywhere, "index") as slept:
        put(anywhere, a_record())  # as when this machine slept, and another took over
        slept.raise_if_lease_lost()  # no renewal has found that yet
        with pytest.raises(LeaseLostError, match=r"was lost.*now its owner is `likeness reembed` of ann"):
            add_run(slept, rows(list("d"), unit_vectors(1, seed=1)))
        with pytest.raises(LeaseLostError):
            build_index(slept, rebuild=True)
        with pytest.raises(LeaseLostError):
            slept.promote("000001", "000001")
        with pytest.raises(LeaseLostError):
            slept.raise_if_lease_lost()
    assert len(anywhere.runs()) == 1
    assert anywhere.versions() == ["000001"]
    assert lease_record(anywhere).token == "another"  # it still belongs to its owner


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

    monkeypatch.setattr(lease, "TTL", SHORT)
    with writing(collection, "embed"):
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
    monkeypatch.setattr(lease, "TTL", timedelta(seconds=0.2))
    with writing(collection, "embed"):
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
    finally:
        owner.kill()
        owner.communicate()


@pytest.mark.parametrize(
    ("changes", "may_be_alive"),
    [
        pytest.param({}, False, id="no such process"),
        pytest.param({"pid": os.getpid()}, False, id="another process has its pid"),
        pytest.param({"host": "elsewhere"}, True, id="on another machine"),
        pytest.param({"process": "other-boot/pid:[1]/1"}, True, id="before this machine started"),
        pytest.param({"process": ""}, True, id="unknown"),
    ],
)
def test_only_an_owner_that_has_certainly_ended_loses_the_lease(
    collection: Collection, changes: dict[str, object], may_be_alive: bool
) -> None:
    with writing(collection, "embed"):
        here = lease_record(collection)
    like_this = {"host": here.host, "pid": 2**22 + 1, "process": "/".join([*here.process.split("/")[:2], "1"])}
    put(collection, a_record(**(like_this | changes)))
    with pytest.raises(LeaseHeldError) if may_be_alive else nullcontext(), writing(collection, "index"):
        assert lease_record(collection).command == "index"
