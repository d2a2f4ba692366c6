"""Folders on this machine for files that only this process needs."""

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from index.storage.storage import Storage

_PREFIX = "likeness-process-"
_LOCK = "lock"


class Scratch:
    """A folder that is removed at the end of a `with` block or with this object, or at the end of the process; if that
    is killed, by the next one that makes such a folder.
    """

    def __init__(self, use: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"{use}-", dir=_folder_of_process()))
        self.storage = Storage.open(self.path)
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()


@cache
def _folder_of_process() -> Path:
    """This process's folder. A lock on a file in it, which stays open, says that the process has not ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            _remove_if_left(folder)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    lock = os.open(folder / f".{_LOCK}", os.O_CREAT | os.O_WRONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / f".{_LOCK}").rename(folder / _LOCK)  # only now, so that nobody finds it without its lock
    return folder


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a process that has ended. OSError if it runs, or the folder is another user's."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
