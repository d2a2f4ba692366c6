"""Puts files on this machine's disk, complete or not at all."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors for a file without room: the disk is full, a quota, or the maximum file size."""


def write_atomic(target: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write `data` to a file, complete or not at all, replacing any file of that name. `mode` is as for `os.open`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with full_disk_named(target):
            partial.touch(mode, exist_ok=False)
            partial.write_bytes(data)
            publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def publish(partial: Path, target: Path) -> None:
    """Rename within a file system, once the bytes are on the disk."""
    _sync(partial)
    partial.replace(target)
    _sync(target.parent)  # the new name has to survive a power cut too


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Adds the file's name to errors of a full disk, which have none once the file is open."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL and error.filename is None:
            error.filename = str(path)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
