"""Checks files against their digests, and remembers on this machine which were checked, by empty files in the cache
folder.
"""

import hashlib
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from index.collection.cache.cache_folder import cache_folder
from index.collection.records.record import FileRecord
from index.errors import CollectionError, UnsafeFileError
from index.storage import Storage
from index.storage.disk import sha256_of

_SUFFIX: Final = ".checked"
_VALID_S: Final = 7 * 86_400
"""A disk may lose bits, which changes no time of a file. So everything is checked again after a week."""
_SETTLED_S: Final = 2.0
"""File systems round times by up to two seconds, in which a file could change again unnoticed."""
_FORGOT: Final = "forgot"
_FORGET_EVERY_S: Final = 3_600.0
"""How often a machine looks for what to forget: a folder with a week's files takes longer than many a command."""


def sound_key(digest: str, ntotal: int, dim: int) -> str:
    """The key of an approximate index: its file's digest, and what it was checked for."""
    return f"{digest}-{ntotal}-{dim}"


def problem_of(storage: Storage, path: str, record: FileRecord, *, verify: bool = True) -> str | None:
    """How a file differs from its record. Without `verify` only sizes are compared. A file that this machine has
    checked, and that nobody has written to since, is not read again within a week.
    """
    try:
        if (size := storage.size(path)) != record.size:
            return f"has {size:,} bytes, expected {record.size:,}"
        local = storage.local_path(path)
        if not verify or (local and is_unaltered(local, record.sha256)):
            return None
        altered = local is not None or storage.sha256(path) != record.sha256
    except FileNotFoundError:
        return "is missing"
    except UnsafeFileError as error:
        return f"cannot be read: {error}"
    return "has been altered: its SHA-256 is not the recorded one" if altered else None


def is_unaltered(path: Path, digest: str, *, is_cached: bool = False) -> bool:
    """Whether a file of this machine has this digest. It is not read if the answer is remembered."""
    found = path.lstat()
    if is_checked(key := _unaltered_key(path, digest, found, is_cached=is_cached)):
        return True
    # Only a settled file gets another key from whoever writes to it or replaces it. A link's target may always change.
    changed = found.st_mtime if is_cached else max(found.st_mtime, found.st_ctime)
    settled = stat.S_ISREG(found.st_mode) and time.time() - changed >= _SETTLED_S
    unaltered = sha256_of(path) == digest
    if settled and unaltered and key == _unaltered_key(path, digest, path.lstat(), is_cached=is_cached):
        remember_checked([key])  # it was not written to meanwhile
    return unaltered


def remember_written(path: Path, digest: str) -> None:
    """Remember a file that got its name after it was written, and its digest worked out.

    Its last write need not be long ago: another one would be at the time of the new name or later.
    """
    found = path.lstat()
    if found.st_mtime_ns < found.st_ctime_ns:
        remember_checked([_unaltered_key(path, digest, found, is_cached=False)])


def _unaltered_key(path: Path, digest: str, found: os.stat_result, *, is_cached: bool) -> str:
    """The key of a file with this digest: another one as soon as anybody writes to the file, or replaces it.

    A time of change cannot be set back, but a new name of a file changes it too: it does not count for files of
    the cache, which get one with each use.
    """
    identity = str(path.absolute()), found.st_dev, found.st_ino, found.st_size
    facts = (digest, *identity, found.st_mtime_ns, 0 if is_cached else found.st_ctime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def is_checked(key: str) -> bool:
    """Whether `remember_checked` was called with this key on this machine within a week."""
    with suppress(CollectionError, OSError):
        return (cache_folder() / f"{key}{_SUFFIX}").stat().st_mtime > time.time() - _VALID_S
    return False


def remember_checked(keys: Iterable[str]) -> None:
    """Remember the keys of what was checked, or made here, and now and then forget what is of no more use."""
    now = time.time()
    for key in keys:
        with suppress(CollectionError, OSError):  # without a cache, it is checked again
            path = cache_folder() / f"{key}{_SUFFIX}"
            path.touch()
            os.utime(path, (now, now))
    with suppress(CollectionError, OSError):
        _forget(cache_folder(), now)


def _forget(folder: Path, now: float) -> None:
    forgot = folder / _FORGOT
    if forgot.exists() and abs(now - forgot.stat().st_mtime) < _FORGET_EVERY_S:
        return
    forgot.touch()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX) and entry.stat(follow_symlinks=False).st_mtime < now - _VALID_S:
                with suppress(OSError):  # another user's, or just removed by another process
                    Path(entry.path).unlink()
