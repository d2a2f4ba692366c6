"""Reads files of a collection's folder, whose author may be anyone; writes files, complete or not at all; and updates a
file without losing other updates.
"""

import fcntl
import hashlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from index.errors import DISK_FULL, CollectionError, UnsafeFileError

_MAX_UPDATED = 1 << 20
"""Maximum bytes of a file that is updated in place: a few hundred are used."""

_RESERVE = 16 << 10
"""Bytes that a lock file gives up when the disk is full, so that commands that free space get the lease."""


def path_below(root: str, path: str) -> str:
    """The absolute path of a file or a folder below `root`, which need not exist; empty: `root`, which may be a link.

    UnsafeFileError for a path that leads out, and for a link, a pipe or a device on the way: opening one may block, or
    reach files of the user that have nothing to do with the collection.
    """
    names, at = path.split("/") if path else [], root.rstrip("/")
    if wrong := [name for name in names if name in ("", ".", "..") or "\0" in name]:
        raise UnsafeFileError(f"{path!r} has the part {wrong[0]!r}: expected a path below {root}")
    for name in names:
        at = f"{at}/{name}"
        try:
            mode = os.lstat(at).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
            raise UnsafeFileError(
                f"{at} is {kind}: a collection has only files and folders of its own; remove it, or put in its place "
                "what it stands for"
            )
    return at or root


def list_below(root: str, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Path and status of the entries of a folder, of what links lead to; empty if it is missing."""
    with suppress(FileNotFoundError), os.scandir(path_below(root, folder)) as entries:
        for entry in entries:
            try:
                entry.name.encode()  # records and Arrow take no other text
            except UnicodeEncodeError:
                name = os.fsencode(entry.path)
                raise CollectionError(f"{name!r} has a name that is not UTF-8: rename or move it") from None
            with suppress(FileNotFoundError):  # removed meanwhile, or a link to nothing
                yield f"{folder}/{entry.name}".lstrip("/"), entry.stat()


def walk_below(root: str, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Path and status of everything below a folder, without following links; empty if it is missing."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed meanwhile
            raise error

    start = path_below(root, folder)
    for within, folders, files in os.walk(start, onerror=fail):
        for name in (*folders, *files):
            path = f"{within}/{name}"
            with suppress(FileNotFoundError):
                yield path.removeprefix(root.rstrip("/")).lstrip("/"), os.lstat(path)


def read_file(path: str, max_bytes: int) -> bytes:
    """A file's content. UnsafeFileError if it is longer than `max_bytes`."""
    with open(path, "rb") as file:  # noqa: PTH123  # a Path would be made for each of thousands of manifests
        # Without a number of bytes, for which Python would allocate memory at once.
        content = file.read() if os.fstat(file.fileno()).st_size <= max_bytes else None
    if content is None or len(content) > max_bytes:
        raise UnsafeFileError(f"{path} has more than {max_bytes:,} bytes, the most that such a file has: remove it")
    return content


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read in pieces that fit into the processor's cache."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(target: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to a file, complete or not at all, replacing any existing one.

    With `private` only its owner may read a new file, and a replaced one keeps its owner and permissions.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with name_full_disk(target):
            partial.touch(0o600 if private else 0o666, exist_ok=False)
            partial.write_bytes(data)
            if private and target.exists():
                _copy_access(target, partial)
            publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _copy_access(source: Path, target: Path) -> None:
    """Give `target` the owner, group and permissions of `source`. PermissionError if this user may not."""
    wanted, status = source.stat(), target.stat()
    if (wanted.st_uid, wanted.st_gid) != (status.st_uid, status.st_gid):
        os.chown(target, wanted.st_uid, wanted.st_gid)
    target.chmod(stat.S_IMODE(wanted.st_mode))


def update_file(path: Path, change: Callable[[bytes], bytes]) -> None:
    """`Storage.update` for a folder, under a lock on a hidden file beside `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file itself cannot be locked: it is replaced as a whole.
    with os.fdopen(_open_lock(path.with_name(f".{path.name}.lock")), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # released by the system if the process dies
        except OSError as error:
            raise CollectionError(
                f"{path} cannot be locked ({error}): use a file system that supports locks"
            ) from error
        with suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, _RESERVE)
        content = read_file(str(path), _MAX_UPDATED) if path.exists() else b""
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


def _open_lock(lock: Path) -> int:
    """Open the file to lock, which is made if it is missing. UnsafeFileError if it is a link or not a file."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            descriptor = os.open(path_below(str(lock.parent), lock.name), flags)
        except FileNotFoundError:
            pass
        else:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            raise UnsafeFileError(f"{lock} is not a regular file: remove it")
        with suppress(FileExistsError):
            descriptor = os.open(lock, flags | os.O_CREAT | os.O_EXCL, 0o666)
            # Everybody who may add files to the folder may lock this file, even if the umask is stricter. Only our new
            # file gets another mode: an older one may be a second name of a file that has nothing to do with this.
            with suppress(OSError):  # vfat and CIFS have no modes
                os.fchmod(descriptor, lock.parent.stat().st_mode & 0o666)
            return descriptor


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
