"""One writer at a time: a lease on a collection, which expires when its owner ends."""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

from index.collection.layout import LEASE
from index.collection.records.bounds import Name, Pid, Time
from index.collection.records.record import Record
from index.errors import CollectionError, LeaseHeldError, LeaseLostError
from index.storage import Storage

TTL = timedelta(minutes=2)
"""How long a lease lasts after its last renewal: the time that other jobs are blocked after a machine has crashed."""

_LOOK_S = 1.0
"""Seconds between looks at a lease that is waited for: a watch leaves a little more between its rounds."""
_TIME = "%Y-%m-%d %H:%M:%S UTC"

logger = logging.getLogger(__name__)


class LeaseRecord(Record):
    """The writer. `token` is random; `process` distinguishes processes with the same pid (see `_process_identity`)."""

    token: Name
    command: Name
    user: Name
    host: Name
    pid: Pid
    process: Name
    since: Time
    expires_at: Time

    def __str__(self) -> str:
        return (
            f"`likeness {self.command}` of {self.user} on {self.host} (process {self.pid}) since "
            f"{self.since:{_TIME}}, with a lease until {self.expires_at:{_TIME}}, renewed while it runs"
        )


class Lease:
    """An acquired lease, which a thread renews until it is released or lost."""

    def __init__(self, storage: Storage, record: LeaseRecord) -> None:
        self.storage, self.record = storage, record
        self._lost: LeaseLostError | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew_regularly, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, storage: Storage, command: str) -> Lease:
        """Take the lease unless another job has it that is alive and renews it: LeaseHeldError names that job."""
        own = _record_of_this_process(command)

        def take(content: bytes) -> bytes:
            owner = _read(content)
            # The owner is this process if the answer to an earlier attempt was lost.
            if owner and owner.token != own.token:
                if _is_held(owner):
                    raise LeaseHeldError(
                        f"{storage.location} is being written by {owner}; nothing was changed. "
                        "Run this again when that has ended"
                    )
                logger.warning("the unreleased lease on %s was taken over from %s", storage.location, owner)
            return own.to_bytes()

        storage.update(LEASE, take)
        return cls(storage, own)

    @classmethod
    def wait_for(cls, storage: Storage, command: str, wait_s: float) -> Lease:
        """Take the lease, once the job that has it ends: LeaseHeldError if it still has it after so many seconds."""
        deadline, waits = monotonic() + wait_s, False
        while True:
            try:
                return cls.acquire(storage, command)
            except LeaseHeldError:
                if monotonic() >= deadline:
                    raise
            if not waits:
                writer = current_writer(storage) or "another job"
                logger.warning("waiting up to %s for %s", timedelta(seconds=wait_s), writer)
            waits = True
            sleep(_LOOK_S)

    def check(self) -> None:
        """Renew the lease, even an expired one; required before each commit. LeaseLostError if another job has it."""

        def renew(content: bytes) -> bytes:
            owner = _read(content)
            if owner is None or owner.token != self.record.token:
                self._lost = LeaseLostError(
                    f"the lease on {self.storage.location} was lost: this process did not renew it for longer than "
                    f"{TTL}, or somebody removed it; now its owner is {owner or 'nobody'}. Uncommitted work is "
                    "kept: run the same command again to continue"
                )
                raise self._lost
            return owner.model_copy(update={"expires_at": datetime.now(UTC) + TTL}).to_bytes()

        self.storage.update(LEASE, renew)

    def raise_if_lost(self) -> None:
        """LeaseLostError if a renewal has found that another job has the lease; makes no request."""
        if self._lost:
            raise self._lost

    def release(self) -> None:
        """End the lease, unless it was lost."""
        self._done.set()

        def clear(content: bytes) -> bytes:
            owner = _read(content)
            return b"" if owner and owner.token == self.record.token else content

        try:
            self.storage.update(LEASE, clear)
        except (CollectionError, OSError) as error:
            message = "the lease on %s could not be released, and expires within %s: %s"
            logger.warning(message, self.storage.location, TTL, error)
        self._thread.join()  # Python must not shut down while this thread is inside a store's client

    def _renew_regularly(self) -> None:
        while not self._done.wait(TTL.total_seconds() / 4):
            try:
                self.check()
            except LeaseLostError as error:
                if not self._done.is_set():  # it may have been released in the meantime
                    logger.warning("%s", error)
                return
            except (CollectionError, OSError) as error:
                logger.warning("the lease on %s could not be renewed: %s", self.storage.location, error)


def current_writer(storage: Storage) -> LeaseRecord | None:
    """The owner of the lease, for display; None if there is none."""
    try:
        owner = _read(storage.read(LEASE))
    except FileNotFoundError:
        return None
    return owner if owner and _is_held(owner) else None


def _is_held(owner: LeaseRecord) -> bool:
    """Whether the lease has not expired. No job makes one that lasts for a day: it would block all others for ever."""
    return timedelta(0) < owner.expires_at - datetime.now(UTC) < timedelta(days=1) and not _has_died(owner)


def _read(content: bytes) -> LeaseRecord | None:
    """None if nobody has the lease. An incomplete record was left by a process that died while writing it."""
    try:
        return LeaseRecord.from_bytes(content)
    except ValueError:
        return None


def _record_of_this_process(command: str) -> LeaseRecord:
    now = datetime.now(UTC)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return LeaseRecord(
        token=secrets.token_hex(8),
        command=command,
        user=user,
        host=socket.gethostname(),
        pid=os.getpid(),
        process=_process_identity(os.getpid()),
        since=now,
        expires_at=now + TTL,
    )


def _has_died(owner: LeaseRecord) -> bool:
    """Whether the owner was a process visible from here that has ended. False if unknown."""
    here = _process_identity(os.getpid())
    if not here or owner.host != socket.gethostname() or owner.process.split("/")[:2] != here.split("/")[:2]:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it exists, and is another user's
    now = _process_identity(owner.pid)
    return now != owner.process and bool(now)


def _process_identity(pid: int) -> str:
    """The ids of the boot and the pid namespace, and the process's start time ("-": a zombie); "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        # The name, in brackets, may contain anything. The state follows it; the 20th field after it is the start time.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{boot}/{namespace}/{'-' if fields[0] in 'ZX' else fields[19]}"
