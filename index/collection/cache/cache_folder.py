"""Where this machine's cache is."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from index.errors import CollectionError

CACHE_DIR: Final = "LIKENESS_CACHE_DIR"


def cache_folder() -> Path:
    """The folder in which `embedder.models.converted` stores models too. CollectionError if it cannot be used."""
    try:
        if named := os.environ.get(CACHE_DIR):
            folder = Path(named).expanduser().absolute()
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "likeness"
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):  # a container's user may have no home
                folder = Path(tempfile.gettempdir()) / f"likeness-{os.getuid()}"
                folder.mkdir(mode=0o700, exist_ok=True)
                if folder.lstat().st_uid != os.getuid():  # the other user could replace verified files
                    raise CollectionError(f"{folder}, the cache of index files, is another user's: set {CACHE_DIR}")
    except OSError as error:
        raise CollectionError(f"index files cannot be cached ({error}): set {CACHE_DIR} to a folder") from error
    if not os.access(folder, os.W_OK):
        raise CollectionError(f"{folder}, the cache of index files, is not writable: set {CACHE_DIR}")
    return folder
