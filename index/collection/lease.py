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

from index.collection.layout import LEASE
from index.collection.records import Record
from index.errors import CollectionError, LeaseHeldError, LeaseLostError
from index.storage import Storage

TTL = timedelta(minutes=2)
"""How long a lease lasts after its last renewal. After a machine has crashed, the next job waits so long."""

_TIME = "%Y-%m-%d %H:%M:%S UTC"

logger = logging.getLogger(__name__)


class LeaseRecord(Record):
    """The writer. `token` is random; `process` tells a process from a later one of its number (see `_process`)."""

    token: str
    command: str
    user: str
    host: str
    pid: int
    process: str
    since: datetime
    expires_at: datetime

    def __str__(self) -> str:
        return (
            f"`likeness {self.command}` of {self.user} on {self.host} (process {self.pid}) since "
            f"{self.since:{_TIME}}, with a lease until {self.expires_at:{_TIME}}, renewed while it works"
        )


class Lease:
    """A lease that is held, and renewed by a thread of its own until it is released or lost."""

    def __init__(self, storage: Storage, record: LeaseRecord, ttl: timedelta) -> None:
        self.storage, self.record, self.ttl = storage, record, ttl
        self._renewed = record.since
        self._lost: LeaseLostError | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls, storage: Storage, command: str, ttl: timedelta = TTL) -> Lease:
        """Take the lease if nobody has it, or its owner has died or let it expire; else LeaseHeldError names them."""
        wanted = _record_of_this_process(command, ttl)

        def take(content: bytes) -> bytes:
            held = _read(content)
            # It is our own if the answer to an earlier attempt was lost.
            if held and held.token != wanted.token and held.expires_at > datetime.now(UTC) and not _has_died(held):
                raise LeaseHeldError(
                    f"{storage.location} is being written by {held}; nothing was changed. "
                    "Run this again when that has ended"
                )
            if held and held.token != wanted.token:
                logger.warning("%s was being written by %s, which did not end it: taken over", storage.location, held)
            return wanted.to_bytes()

        storage.update(LEASE, take)
        return cls(storage, wanted, ttl)

    def check(self) -> None:
        """Renew the lease, expired or not, as is required before each commit. LeaseLostError if another job has it."""
        requested_at = datetime.now(UTC)

        def renew(content: bytes) -> bytes:
            held = _read(content)
            if held is None or held.token != self.record.token:
                self._lost = LeaseLostError(
                    f"the lease on {self.storage.location} was lost: this process was silent for longer than "
                    f"{self.ttl}, or somebody removed it; now it is with {held or 'nobody'}. What was not committed is "
                    "kept: run the same command again to go on with it"
                )
                raise self._lost
            return held.model_copy(update={"expires_at": datetime.now(UTC) + self.ttl}).to_bytes()

        self.storage.update(LEASE, renew)
        self._renewed = requested_at

    def check_if_overdue(self) -> None:
        """`check` for every block: asks the storage only if the regular renewal is overdue, as after a freeze."""
        if self._lost:
            raise self._lost
        # The clock may have been set back.
        if not timedelta(0) <= datetime.now(UTC) - self._renewed <= self.ttl / 4:
            self.check()

    def release(self) -> None:
        """Give the lease back, unless it has been lost."""
        self._done.set()

        def clear(content: bytes) -> bytes:
            held = _read(content)
            return b"" if held and held.token == self.record.token else content

        try:
            self.storage.update(LEASE, clear)
        except (CollectionError, OSError) as error:
            logger.warning("the lease on %s ends by itself within %s: %s", self.storage.location, self.ttl, error)
        self._thread.join()  # Python may shut down next, which a thread inside a store's client should not meet

    def _keep(self) -> None:
        while not self._done.wait(self.ttl.total_seconds() / 4):
            try:
                self.check()
            except LeaseLostError as error:
                if not self._done.is_set():  # it may have been released in the meantime
                    logger.warning("%s", error)
                return
            except (CollectionError, OSError) as error:
                logger.warning("the lease on %s could not be renewed: %s", self.storage.location, error)


def current_writer(storage: Storage) -> LeaseRecord | None:
    """The current writer, for display. None when there is none."""
    try:
        held = _read(storage.read(LEASE))
    except FileNotFoundError:
        return None
    return held if held and held.expires_at > datetime.now(UTC) and not _has_died(held) else None


def _read(content: bytes) -> LeaseRecord | None:
    """None if nobody holds the lease. Half a record is left by a process that died while writing it."""
    try:
        return LeaseRecord.from_bytes(content)
    except ValueError:
        return None


def _record_of_this_process(command: str, ttl: timedelta) -> LeaseRecord:
    now = datetime.now(UTC)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user has no name
        user = str(os.getuid())
    return LeaseRecord(
        token=secrets.token_hex(8),
        command=command,
        user=user,
        host=socket.gethostname(),
        pid=os.getpid(),
        process=_process(os.getpid()),
        since=now,
        expires_at=now + ttl,
    )


def _has_died(owner: LeaseRecord) -> bool:
    """Whether the owner was a process visible from here that has ended. False when in doubt."""
    here = _process(os.getpid())
    if not here or owner.host != socket.gethostname() or owner.process.split("/")[:2] != here.split("/")[:2]:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's
    now = _process(owner.pid)
    return now != owner.process and bool(now)


def _process(pid: int) -> str:
    """The machine's boot, the container's namespace and the process's start ("-": a zombie); "" without Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        # Its name, in brackets, may hold anything. After it come the state and, as the 20th, the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{boot}/{namespace}/{'-' if fields[0] in 'ZX' else fields[19]}"
