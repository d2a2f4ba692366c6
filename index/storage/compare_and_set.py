"""Changes one small file of a collection so that two concurrent changes do not undo each other.

In a folder a hidden file beside it is locked meanwhile. `index.storage.objects.update_object` is for buckets.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from index.errors import CollectionError
from index.storage.disk import write_atomic
from index.storage.storage import Storage

Transform = Callable[[bytes], bytes]


def update_file(storage: Storage, path: str, change: Transform) -> None:
    """Replace a file's content by `change(content)`; the content of a missing file is empty.

    No other `update_file` of this file comes in between. If `change` raises, the file stays as it was and the exception
    is passed on. `change` may be called several times. CollectionError when the storage refuses.
    """
    if storage.bucket is None:
        _update_local(Path(storage.absolute(path)), change)
        return
    from index.storage.objects import update_object  # obstore takes a while, which folders should not cost

    update_object(storage.bucket, storage.key(path), change)


def _update_local(path: Path, change: Transform) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")  # the file itself is replaced, so that it is never half written
    with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            # Whoever may add files to the folder may lock this one, which a umask would forbid.
            with suppress(OSError):  # vfat and CIFS have no such modes
                os.fchmod(file.fileno(), path.parent.stat().st_mode & 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # the system takes it back when a process dies
        except OSError as error:
            raise CollectionError(f"{path} cannot be locked ({error}): expected a file system with locks") from error
        content = path.read_bytes() if path.exists() else b""
        changed = change(content)
        if changed != content:
            write_atomic(path, changed)
