"""Remembers on this machine which files were checked, by empty files in the cache folder."""

import hashlib
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from index.errors import CollectionError
from index.versions.cache_folder import cache_folder

_SUFFIX: Final = ".checked"
_VALID_S: Final = 7 * 86_400
"""A disk may lose bits, which changes no time of a file. So everything is checked again after a week."""
_SETTLED_S: Final = 2.0
"""File systems round times by up to two seconds, in which a file could change again unnoticed."""
_known: Final = dict[str, float]()
"""Keys that this process has checked, and when."""


def sound_key(digest: str, ntotal: int, dim: int) -> str:
    """The key of an approximate index: its file's digest, and what it was checked for."""
    return f"{digest}-{ntotal}-{dim}"


def unaltered_key(path: Path, digest: str) -> str | None:
    """The key of a file with this digest: another one as soon as anybody writes to the file, or replaces it. Its time
    of change cannot be set back. None for a file that was just written, or is not a regular one.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or time.time() - max(found.st_mtime, found.st_ctime) < _SETTLED_S:
        return None
    identity = str(path.absolute()), found.st_dev, found.st_ino, found.st_size
    facts = (digest, *identity, found.st_mtime_ns, found.st_ctime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def is_checked(key: str) -> bool:
    """Whether `remember_checked` was called with this key on this machine within a week."""
    least = time.time() - _VALID_S
    if _known.get(key, least) > least:
        return True
    with suppress(CollectionError, OSError):
        checked = (cache_folder() / f"{key}{_SUFFIX}").stat().st_mtime
        if checked > least:
            _known[key] = checked
            return True
    return False


def remember_checked(keys: Iterable[str]) -> None:
    """Remember the keys of what was checked, or made here, and forget what is of no more use."""
    now, new = time.time(), list(keys)
    for key in new:
        _known[key] = now
        with suppress(CollectionError, OSError):  # without a cache, the next process checks it again
            path = cache_folder() / f"{key}{_SUFFIX}"
            path.touch()
            os.utime(path, (now, now))
    if new:
        _forget(now - _VALID_S)


def _forget(before: float) -> None:
    with suppress(CollectionError, OSError), os.scandir(cache_folder()) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIX) and entry.stat(follow_symlinks=False).st_mtime < before:
                with suppress(OSError):  # another user's, or just removed by another process
                    Path(entry.path).unlink()
