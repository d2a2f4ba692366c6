"""Folders on this machine for files that only this process needs."""

import shutil
import tempfile
import weakref
from pathlib import Path

from index.storage import Storage


class Scratch:
    """A folder that is removed with this object, or at the end of the process."""

    def __init__(self, use: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"likeness-{use}-"))
        self.storage = Storage.open(self.path)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
