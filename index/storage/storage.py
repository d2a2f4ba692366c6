"""Files of a collection, in a folder or in a bucket."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from index.errors import CollectionError
from index.storage.bucket import Bucket, is_bucket, without_secrets
from index.storage.disk import full_disk_named, publish, write_atomic

_CHUNK = 8 << 20


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """One entry of a folder. `path` is relative to the storage's root; `size` in bytes, 0 for a folder."""

    path: str
    size: int
    is_folder: bool

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def canonical_address(address: str) -> str:
    """One spelling for all addresses of the same place: no options of a bucket, `..`, file:// or slash at the end.

    `address` is absolute, as in `Storage.location`. No request is sent and no link is followed.
    """
    if not is_bucket(address):
        return os.path.normpath(unquote(urlsplit(address).path) if address.startswith("file://") else address)
    parts = urlsplit(address)
    # An az:// container has its account before it, other buckets only `anonymous`.
    bucket = parts.netloc if parts.scheme == "az" else parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{bucket}/{parts.path.strip('/')}".rstrip("/")


@dataclass(frozen=True)
class Storage:
    """Reads and writes whole files below `root`. Paths are relative, with forward slashes.

    A file appears under its name complete or not at all. Names that start with a dot are files in the making and are
    never listed. A pickled storage is its address, with the credentials in that; others are read from the environment
    where it is opened again.
    """

    filesystem: pafs.FileSystem
    root: str
    location: str
    """The location as it was given, an absolute path or a URI without a password: `open` takes it again."""
    address: str = field(repr=False, compare=False)
    """The location with its credentials, to be opened on another machine."""
    bucket: Bucket | None = None

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Storage:
        """A folder, or a file:// s3:// gs:// az:// (or abfs://) URI. Nothing needs to exist there yet.

        `Bucket` says which environment variables are used. CollectionError for any other location, or a bucket at
        Amazon that cannot be found.
        """
        text = os.fspath(location)
        scheme = urlsplit(text).scheme if "://" in text else ""
        if not scheme:
            # Links are not resolved, so that a link that is changed later is followed.
            root = str(Path(text).expanduser().absolute())
            return cls(pafs.LocalFileSystem(), root, root, root)
        if is_bucket(text):
            bucket, prefix = Bucket.of(text)
            shown = without_secrets(text)
            try:
                filesystem = bucket.filesystem()
            except OSError as error:
                raise CollectionError(f"{shown} cannot be reached: {_reason(error)}") from error
            return cls(filesystem, f"{bucket.name}/{prefix}".rstrip("/"), shown, text, bucket)
        try:
            filesystem, root = pafs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, NotImplementedError) as error:
            raise CollectionError(
                f"{without_secrets(text)}: expected a folder or a file:// s3:// gs:// az:// address "
                f"({without_secrets(str(error))})"
            ) from error
        return cls(filesystem, root.rstrip("/") or "/", without_secrets(text), text)

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage.open, (self.address,)

    @property
    def is_local(self) -> bool:
        """Whether this is a folder of this machine."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def exists(self, path: str = "") -> bool:
        """Whether a file or a folder exists."""
        return bool(self._info(path).type != pafs.FileType.NotFound)

    def is_file(self, path: str = "") -> bool:
        """Whether a file exists."""
        return bool(self._info(path).type == pafs.FileType.File)

    def size(self, path: str) -> int:
        """Size in bytes. FileNotFoundError when there is no such file."""
        info = self._info(path)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(f"{self.location}/{path}")
        return int(info.size)

    def modified(self, path: str) -> datetime:
        """When a file was last written, in UTC. FileNotFoundError when there is no such file."""
        info = self._info(path)
        if info.mtime is None:
            raise FileNotFoundError(f"{self.location}/{path}")
        return info.mtime.astimezone(UTC)

    def list(self, folder: str = "") -> list[FileInfo]:
        """The entries of a folder, by name; none when the folder is missing."""
        selector = pafs.FileSelector(self.absolute(folder), allow_not_found=True)
        with self._refusals_named():
            infos = self.filesystem.get_file_info(selector)
        found = [info for info in infos if not info.base_name.startswith(".")]
        entries = [
            FileInfo(
                path=f"{folder}/{info.base_name}" if folder else info.base_name,
                size=int(info.size or 0),
                is_folder=info.type == pafs.FileType.Directory,
            )
            for info in found
        ]
        return sorted(entries, key=lambda entry: entry.path)

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file to read."""
        if self.bucket:
            from index.storage.objects import open_reader  # obstore takes a while, which folders should not cost

            return open_reader(self.bucket, self.key(path))
        return self.filesystem.open_input_file(self.absolute(path))

    def read(self, path: str) -> bytes:
        """The whole file, as it was at one moment. FileNotFoundError when it is missing."""
        if self.bucket:
            from index.storage.objects import read

            return read(self.bucket, self.key(path))
        with self.open_input(path) as file:
            return bytes(file.read())

    def sha256(self, path: str) -> str:
        """Hex digest of a file, read in pieces."""
        digest = hashlib.sha256()
        with self.open_input(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write `data` to a file, complete or not at all, replacing any file of that name."""
        if self.bucket:
            self._put(path, data)
            return
        write_atomic(Path(self.absolute(path)), data)

    def put_file(self, source: Path, path: str) -> None:
        """Move a file composed in `scratch` to its name, complete or not at all."""
        if self.is_local:
            target = Path(self.absolute(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            publish(source, target)
            return
        self._put(path, source)
        source.unlink()

    @contextmanager
    def scratch(self, folder: str) -> Iterator[Path]:
        """A local folder to compose large files in for `put_file`, removed afterwards.

        With local storage it is a hidden folder in `folder`, so that putting a file is a rename.
        """
        parent = Path(self.absolute(folder)) if self.is_local else None
        if parent:
            parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".scratch-", dir=parent) as name, full_disk_named(parent or Path(name)):
            yield Path(name)

    def local_path(self, path: str) -> Path | None:
        """Where a file lies on this machine, or None for an object store."""
        return Path(self.absolute(path)) if self.is_local else None

    def create_folder(self, path: str = "") -> None:
        """Make a folder. Object stores have none to make."""
        if self.is_local:
            Path(self.absolute(path)).mkdir(parents=True, exist_ok=True)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing when it is missing."""
        kind = self._info(path).type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.absolute(path))
        elif kind == pafs.FileType.File:
            self.filesystem.delete_file(self.absolute(path))

    def absolute(self, path: str) -> str:
        """The path for the file system."""
        return f"{self.root.rstrip('/')}/{path}" if path else self.root

    def key(self, path: str) -> str:
        """The path below the bucket, as its own tools use it."""
        return self.absolute(path).partition("/")[2]

    def _info(self, path: str) -> pafs.FileInfo:
        with self._refusals_named():
            return self.filesystem.get_file_info(self.absolute(path))

    def _put(self, path: str, content: bytes | Path) -> None:
        from index.storage.objects import put

        if self.bucket is None:
            raise CollectionError(f"{self.location}: expected a folder or an s3:// gs:// az:// address to write to")
        put(self.bucket, self.key(path), content)

    @contextmanager
    def _refusals_named(self) -> Iterator[None]:
        """Adds to a store's own errors what to do about them."""
        try:
            yield
        except OSError as error:
            if self.bucket is None or isinstance(error, FileNotFoundError):
                raise
            raise CollectionError(
                f"{self.location} cannot be read ({_reason(error)}): check the address, the network, and the "
                "credentials that the environment of this machine has"
            ) from error


def _reason(error: OSError) -> str:
    return without_secrets(str(error).splitlines()[0])
