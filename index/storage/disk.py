"""Writes files on this machine's disk, complete or not at all, and updates a file without losing other updates."""

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from index.errors import DISK_FULL, CollectionError

_RESERVE = 16 << 10
"""Bytes that a lock file gives up when the disk is full, so that commands that free space get the lease."""


def write_atomic(target: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write `data` to a file, complete or not at all, replacing any existing one. `mode` is as for `os.open`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with name_full_disk(target):
            partial.touch(mode, exist_ok=False)
            partial.write_bytes(data)
            publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def update_file(path: Path, change: Callable[[bytes], bytes]) -> None:
    """`Storage.update` for a folder, under a lock on a hidden file beside `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")  # the file itself cannot be locked: it is replaced as a whole
    with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            # Everybody who may add files to the folder may lock this file, even if the umask is stricter.
            with suppress(OSError):  # vfat and CIFS have no modes
                os.fchmod(file.fileno(), path.parent.stat().st_mode & 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # released by the system if the process dies
        except OSError as error:
            raise CollectionError(
                f"{path} cannot be locked ({error}): use a file system that supports locks"
            ) from error
        with suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, _RESERVE)
        content = path.read_bytes() if path.exists() else b""
        changed = change(content)
        if changed == content:
            return
        try:
            write_atomic(path, changed)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            file.truncate(0)
            write_atomic(path, changed)


def publish(partial: Path, target: Path) -> None:
    """Rename a file within a file system, after its bytes are on the disk."""
    _sync(partial)
    partial.replace(target)
    _sync(target.parent)  # so that the new name survives a power cut too


@contextmanager
def name_full_disk(path: Path) -> Iterator[None]:
    """Adds `path` to errors of a full disk: those of an open file name none."""
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
