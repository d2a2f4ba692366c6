"""Files of a collection, in a folder or in a bucket."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from index.errors import CollectionError
from index.storage.bucket_address import MAX_AT_ONCE, SCHEMES, Bucket, split_address, without_secrets
from index.storage.disk import (
    list_below,
    name_full_disk,
    path_below,
    publish,
    read_file,
    update_file,
    walk_below,
    write_atomic,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta

MIN_READ = 1 << 16
"""Minimum bytes of a request: enough for the footer of most Parquet files."""

MAX_READ = 1 << 28
"""Maximum bytes of a file that is read as a whole, unless the caller knows its size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileInfo:
    """A file or a folder. `path` is relative to the storage's root; `size` in bytes, 0 for a folder."""

    path: str
    size: int
    is_folder: bool
    modified: datetime | None = field(default=None, compare=False)
    """In UTC; None for a folder of a bucket."""
    etag: str | None = field(default=None, compare=False)
    """That of an object, mostly a hash of its content; it changes whenever the object is rewritten."""

    @classmethod
    def of_status(cls, path: str, status: os.stat_result) -> Self:
        is_folder, modified = stat.S_ISDIR(status.st_mode), datetime.fromtimestamp(status.st_mtime, UTC)
        return cls(path=path, size=0 if is_folder else status.st_size, is_folder=is_folder, modified=modified)

    @classmethod
    def of_object(cls, path: str, found: ObjectMeta | None) -> Self:
        """An object; a folder of a bucket if it is None."""
        if found is None:
            return cls(path=path, size=0, is_folder=True)
        size, modified, etag = found["size"], found["last_modified"], found["e_tag"]
        return cls(path=path, size=size, is_folder=False, modified=modified, etag=etag)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def canonical_address(address: str) -> str:
    """One spelling for all absolute addresses of a location: no bucket options, `..`, file:// or trailing slash."""
    parts = split_address(address)
    if parts.scheme not in SCHEMES:
        return os.path.normpath(unquote(urlsplit(address).path) if address.startswith("file://") else address)
    bucket = parts.netloc if SCHEMES[parts.scheme].has_account else parts.netloc.rpartition("@")[2]
    return f"{SCHEMES[parts.scheme].name}://{bucket}/{parts.path.strip('/')}".rstrip("/")


def _absolute(path: Path) -> str:
    """The absolute path. Links are not resolved, so that one that changes later is followed; `..` is after a folder:
    otherwise the path would depend on the one that it was given in, which may be removed.
    """
    found = Path(path.absolute().anchor)
    for part in path.absolute().parts[1:]:
        if part == ".." and found.is_dir() and not found.is_symlink() and found.name != "..":
            found = found.parent
        else:
            found /= part
    return str(found)


def require_utf8(path: str) -> str:
    """The path; CollectionError if it is not UTF-8, because records and Arrow take no other text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise CollectionError(
            f"{shown} is not UTF-8: rename the folder, or make a link to it (`ln -s`) whose path is, and give that"
        ) from None
    return path


@dataclass(frozen=True)
class Storage:
    """Reads and writes whole files below `root`. Paths are relative, with forward slashes.

    Files whose names start with a dot are incomplete or internal, and `list` omits them. In a folder, a path that leads
    out of it, and one with a link or anything but files and folders on it, is an UnsafeFileError.
    """

    root: str
    """The path of the folder; of a bucket, its name and the prefix."""
    address: str = field(repr=False, compare=False)
    """An absolute path or a URI as given, with its credentials, to open it on another machine."""
    bucket: Bucket | None = None

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Storage:
        """A folder, or a file:// s3:// gs:// az:// URI, which need not exist; anything else is a CollectionError."""
        text = os.fspath(location)
        scheme = split_address(text).scheme
        if not scheme:
            root = require_utf8(_absolute(Path(os.path.expanduser(text))))  # noqa: PTH111  # keeps an unknown ~user
            return cls(root, root)
        if scheme in SCHEMES:
            bucket, prefix = Bucket.of(text)
            return cls(f"{bucket.name}/{prefix}".rstrip("/"), text, bucket)
        shown = without_secrets(text)
        if scheme != "file":
            schemes = " ".join(f"{name}://" for name, each in SCHEMES.items() if name == each.name)
            raise CollectionError(f"{shown}: expected a folder or a file:// {schemes} address, got {scheme}://")
        address = urlsplit(text)
        if address.netloc or not address.path:
            raise CollectionError(f"{shown}: expected an absolute path after file://, as in file:///pictures")
        root = require_utf8(unquote(address.path))
        return cls(root.rstrip("/") or "/", text)

    @property
    def location(self) -> str:
        """The address without secrets; `open` accepts it."""
        return self.address if self.is_local else without_secrets(self.address)

    def subfolder(self, folder: str) -> Storage:
        """A subfolder, which need not exist, as a storage of its own."""
        address, options = self._split_address()
        return replace(self, root=self.absolute(folder), address=f"{address}/{folder}{options}")

    @property
    def parent(self) -> Storage:
        """The folder with this file or folder, as a storage of its own."""
        address, options = self._split_address()
        root = self.root.rpartition("/")[0] or "/"
        return replace(self, root=root, address=f"{address.rpartition('/')[0]}{options}")

    def _split_address(self) -> tuple[str, str]:
        """The address without a slash at its end, and the options of a bucket that follow it."""
        address, mark, options = self.address.partition("?") if self.bucket else (self.address, "", "")
        return address.rstrip("/"), f"{mark}{options}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage.open, (self.address,)

    @property
    def is_local(self) -> bool:
        return self.bucket is None

    def info(self, path: str = "") -> FileInfo | None:
        """A file or a folder, or None if there is neither. Of two with one name in a bucket, the file."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self.bucket is None:
                return FileInfo.of_status(path, Path(self._checked(path)).stat())
            from index.storage.list_objects import find  # imports obstore, which is slow and not needed for folders

            return FileInfo.of_object(path, find(self.bucket, self.key(path)))
        return None

    def exists(self, path: str = "") -> bool:
        return self.info(path) is not None

    def is_file(self, path: str = "") -> bool:
        found = self.info(path)
        return found is not None and not found.is_folder

    def size(self, path: str) -> int:
        """Size in bytes. FileNotFoundError if there is no such file."""
        found = self.info(path)
        if found is None or found.is_folder:
            raise FileNotFoundError(f"{self.location}/{path}")
        return found.size

    def list(self, folder: str = "") -> list[FileInfo]:
        """The entries of a folder, sorted by name, without hidden ones; empty if the folder is missing."""
        if self.bucket:
            from index.storage.list_objects import list_folder

            found = list_folder(self.bucket, self.key(folder))
            entries = [FileInfo.of_object(self._path(key), entry) for key, entry in found]
        else:
            entries = [FileInfo.of_status(*entry) for entry in list_below(self.root, folder)]
        shown = (entry for entry in entries if entry.path != folder and not entry.name.startswith("."))
        return sorted(shown, key=lambda entry: entry.path)

    def walk(self, folder: str = "") -> Iterator[FileInfo]:
        """Everything below a folder, including hidden files, in no order; empty if the folder is missing. A bucket has
        no folders, but may have objects that stand for them.
        """
        if self.bucket is None:
            return (FileInfo.of_status(*entry) for entry in walk_below(self.root, folder))
        from index.storage.list_objects import list_objects

        found = list_objects(self.bucket, self.key(folder))
        entries = (FileInfo.of_object(self._path(entry["path"]), entry) for entry in found)
        return (entry for entry in entries if entry.path != folder)

    def _path(self, key: str) -> str:
        """The path of an object below the root."""
        return key[len(self.key("x")) - 1 :]

    def open_input(self, path: str = "", *, min_read: int = MIN_READ) -> pa.NativeFile:
        """A seekable reader. A request to a bucket is for at least `min_read` bytes."""
        if self.bucket:
            from index.storage.objects import open_reader  # imports obstore, which is slow and not needed for folders

            return open_reader(self.bucket, self.key(path), min_read)
        return pa.OSFile(self._checked(path), "r")

    def read(self, path: str, *, max_bytes: int = MAX_READ) -> bytes:
        """The whole file, as it was at one moment. FileNotFoundError if it is missing, UnsafeFileError if it is larger.

        Files with `max_bytes` or less are expected; who writes into a collection may have put a larger one there.
        """
        if self.bucket:
            from index.storage.objects import read

            return read(self.bucket, self.key(path), max_bytes)
        return read_file(self._checked(path), max_bytes)

    def sha256(self, path: str) -> str:
        """Hex digest of a file, read in pieces."""
        digest = hashlib.sha256()
        with self.open_input(path) as file:
            while chunk := file.read(MAX_AT_ONCE):
                digest.update(chunk)
        return digest.hexdigest()

    def write_atomic(self, path: str, data: bytes) -> None:
        if self.bucket:
            from index.storage.objects import put

            put(self.bucket, self.key(path), data)
        else:
            write_atomic(Path(self._checked(path)), data)

    def update(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Atomically replace a file's content with `change(content)`; a missing file counts as empty.

        `change` may be called several times. If it raises, the file stays unchanged. CollectionError if the storage
        refuses.
        """
        if self.bucket:
            from index.storage.objects import update_object

            update_object(self.bucket, self.key(path), change)
        else:
            update_file(Path(self._checked(path)), change)

    def put_file(self, source: Path, path: str) -> None:
        """Move a file written in `scratch` to `path`, complete or not at all."""
        if self.bucket:
            from index.storage.objects import put

            put(self.bucket, self.key(path), source)
            source.unlink()
        else:
            target = Path(self._checked(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            publish(source, target)

    @contextmanager
    def scratch(self, folder: str) -> Iterator[Path]:
        """A temporary local folder for `put_file` to move files from; in `folder` if that is local, for a rename."""
        parent = self.local_path(folder)
        if parent:
            parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".scratch-", dir=parent) as name, name_full_disk(parent or Path(name)):
            yield Path(name)

    def local_path(self, path: str) -> Path | None:
        """The path of a file on this machine; None in a bucket."""
        return Path(self._checked(path)) if self.is_local else None

    def root_here(self, linked: Path) -> Path:
        """The folder with the files on this machine: `root`, or for a bucket the one below which they were `linked`."""
        return Path(self.root) if self.is_local else linked

    def create_folder(self, path: str = "") -> None:
        """Create a folder; does nothing in a bucket, which has none."""
        if self.is_local:
            Path(self._checked(path)).mkdir(parents=True, exist_ok=True)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with its content; does nothing if it is missing."""
        found = self.info(path)
        if found is None:
            return
        if self.bucket:
            from index.storage.list_objects import delete_folder
            from index.storage.objects import delete

            if found.is_folder:
                delete_folder(self.bucket, self.key(path))
            else:
                delete(self.bucket, [self.key(path)])
        elif found.is_folder:
            shutil.rmtree(self._checked(path))
        else:
            Path(self._checked(path)).unlink(missing_ok=True)

    def absolute(self, path: str) -> str:
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def _checked(self, path: str) -> str:
        """`absolute`, after a check of what is there; see `path_below`. A bucket has no links, and `..` is a name."""
        return path_below(self.root, path) if self.is_local else self.absolute(path)

    def key(self, path: str) -> str:
        """The object's key in the bucket."""
        return self.absolute(path).partition("/")[2]
