"""Holds the lease on a collection while it is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from index.collection.collection import Collection
from index.collection.lease import TTL, Lease


@contextmanager
def writing(collection: Collection, command: str, ttl: timedelta = TTL) -> Iterator[Collection]:
    """The collection for writing: its commits fail with LeaseLostError once another job has the lease.

    `command` is shown to other jobs that want to write. LeaseHeldError when another job holds the lease. A collection
    that already has its lease keeps it.
    """
    if collection.lease:
        yield collection
        return
    lease = Lease.acquire(collection.storage, command, ttl)
    try:
        yield replace(collection, lease=lease)
    finally:
        lease.release()
