"""Caches files of buckets on this machine's disk, under the SHA-256 of their content."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Collection as Names
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from index.collection.cache.cache_folder import CACHE_DIR, cache_folder
from index.collection.cache.checked import is_unaltered, problem_of
from index.collection.records.record import FileRecord
from index.errors import DISK_FULL, CollectionError, UnreachableError
from index.storage import Storage
from index.storage.bucket_address import MAX_AT_ONCE

CACHE_BYTES: Final = "LIKENESS_CACHE_BYTES"

_ATTEMPTS: Final = 3
_LARGE: Final = 1 << 20  # bytes
_DOWNLOADS: Final = 8  # in parallel, because most files are small; each takes `MAX_AT_ONCE` of memory, a few times
_PARTIAL: Final = ".part"
_ABANDONED_AFTER_S: Final = 86_400
_CACHED_NAME: Final = re.compile(rf"[0-9a-f]{{64}}({re.escape(_PARTIAL)})?")  # other files in the folder are left alone


@dataclass(frozen=True, kw_only=True)
class FileCache:
    """A cache in `folder`, shared by processes. Beyond `max_bytes` the least recently used files are removed."""

    folder: Path
    max_bytes: int

    @classmethod
    def from_environment(cls) -> FileCache:
        """By default ~/.cache/likeness, and half of the disk that it is on. CollectionError if it cannot be used."""
        folder = cache_folder()
        text = os.environ.get(CACHE_BYTES, "")
        if text and not text.isdecimal():
            raise CollectionError(f"{CACHE_BYTES} is {text!r}: expected a number of bytes")
        return cls(folder=folder, max_bytes=int(text) if text else shutil.disk_usage(folder).total // 2)

    def place(self, storage: Storage, path: str, record: FileRecord, target: Path, *, verify: bool = True) -> None:
        """Link a file of a bucket to `target`, through the cache. CollectionError if it does not match `record`."""
        cached = self.folder / record.sha256
        for _ in range(_ATTEMPTS):
            with self._locked(cached.name) as partial:
                if not _is_intact(cached, record, verify=verify):
                    self._download(storage, path, record, partial)
                    (self.folder / f"{cached.name}{_PARTIAL}").replace(cached)
                try:
                    with suppress(PermissionError):  # another user's file
                        # For `make_room`. The time of the last write stays, as it shows whether the file was altered.
                        os.utime(cached, ns=(time.time_ns(), cached.stat().st_mtime_ns))
                    _link(cached, target)
                except FileNotFoundError:
                    continue  # another process has just removed it, to make room
                return
        raise cache_too_small(self.folder)

    def make_room(self, needed: Mapping[str, FileRecord]) -> None:
        """Remove the least recently used files to make room for the `needed` ones, which stay if already cached."""
        digests = {record.sha256: record.size for record in needed.values()}
        others = sorted(self._others(digests), key=lambda entry: entry[1].st_atime)
        room = self.max_bytes - sum(digests.values()) - sum(status.st_size for _, status in others)
        for path, status in others:
            if room >= 0:
                break
            with suppress(PermissionError):  # another user's file, which that user's processes remove
                path.unlink(missing_ok=True)
                room += status.st_size

    def _others(self, needed: Names[str]) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.folder.iterdir():
            if path.name in needed or not _CACHED_NAME.fullmatch(path.name):
                continue
            with suppress(FileNotFoundError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                # A partial file is being downloaded by another process, unless that was killed.
                if path.suffix != _PARTIAL or status.st_mtime < time.time() - _ABANDONED_AFTER_S:
                    yield path, status

    @contextmanager
    def _locked(self, digest: str) -> Iterator[BinaryIO]:
        """The file to download into, locked against other threads and processes."""
        path = self.folder / f"{digest}{_PARTIAL}"
        while True:
            with path.open("ab") as partial:
                fcntl.flock(partial, fcntl.LOCK_EX)  # released by the system if the process dies
                if not _has_name(partial, path):
                    continue  # the previous owner of the lock has renamed or removed the file
                try:
                    yield partial
                finally:
                    if _has_name(partial, path):  # otherwise it was renamed, and another process may use the name
                        path.unlink(missing_ok=True)
                return

    def _download(self, storage: Storage, path: str, record: FileRecord, partial: BinaryIO) -> None:
        for _ in range(_ATTEMPTS):
            partial.truncate(0)
            digest = hashlib.sha256()
            with storage.open_input(path) as source:
                if source.size() != record.size:
                    break
                while chunk := source.read(MAX_AT_ONCE):
                    digest.update(chunk)
                    self._write(partial, chunk)
            if digest.hexdigest() == record.sha256:
                return
        raise CollectionError(f"{storage.location}: {path} does not match its manifest")

    def _write(self, partial: BinaryIO, chunk: bytes) -> None:
        try:
            partial.write(chunk)
            partial.flush()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            free = shutil.disk_usage(self.folder).free
            problem = f"no room for the files of the index ({free:,} bytes are free): set {CACHE_DIR} to another disk"
            raise OSError(errno.ENOSPC, problem, str(self.folder)) from error


def first_damage(
    storage: Storage, files: Mapping[str, FileRecord], folder: Path | None = None, *, verify: bool = True
) -> tuple[str, str] | None:
    """Path and problem of the first file that differs from its record; see `problem_of`. With a `folder`, files of a
    bucket are linked to their paths below it, through this machine's cache; CollectionError if that cannot be used.
    """
    cache = None if folder is None or storage.is_local else FileCache.from_environment()
    if cache:
        cache.make_room(files)

    def problem(path: str) -> str | None:
        if folder is None or cache is None:
            return problem_of(storage, path, files[path], verify=verify)
        target = folder / path
        # An existing file is never replaced: another version's segment may be mapped from it.
        if target.is_file() and target.stat().st_size == files[path].size:
            return None
        try:
            cache.place(storage, path, files[path], target, verify=verify)
        except UnreachableError:
            raise
        except (CollectionError, FileNotFoundError):  # the file is damaged, or the cache too small
            if found := problem_of(storage, path, files[path]):
                return found
            raise
        return None

    # hashlib releases the GIL, and requests to a bucket wait in parallel. A thread costs more than a small file here.
    pool = ThreadPoolExecutor(_DOWNLOADS)
    try:
        apart = [path for path in files if not storage.is_local or files[path].size >= _LARGE]
        checks = {path: pool.submit(problem, path) for path in apart}
        for path in files:
            if found := checks[path].result() if path in checks else problem(path):
                return path, found
        return None
    finally:
        pool.shutdown(cancel_futures=True)


def cache_too_small(folder: Path) -> CollectionError:
    """The error if other processes remove files from the cache as fast as they are added."""
    return CollectionError(f"{folder} is too small: set {CACHE_DIR} to a larger disk, or raise {CACHE_BYTES}")


def _is_intact(path: Path, record: FileRecord, *, verify: bool) -> bool:
    try:
        same_size = path.stat().st_size == record.size
        return same_size and (not verify or is_unaltered(path, record.sha256, is_cached=True))
    except FileNotFoundError:
        return False


def _has_name(file: BinaryIO, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    return False


def _link(cached: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # it may be a link to a file that was removed to make room
    try:
        os.link(cached, target)
    except FileNotFoundError:
        raise
    except OSError:  # on another disk, or on a file system without hard links
        target.symlink_to(cached)
