"""The files of a source: a single file, or all below a folder or a bucket prefix."""

import datetime as dt
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import parse_qs, quote

import pyarrow as pa

from embedder.fetch.uris import WEB_SCHEMES, has_mark
from index.errors import CollectionError
from index.storage import Storage
from index.storage.bucket_address import SCHEMES, split_address, without_secrets
from index.storage.storage import MIN_READ, canonical_address
from jobs.errors import EmptySourceError, SourceError
from jobs.exclusions import Exclusions
from jobs.sources.listing import Refused, escaped, listing_table


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """`name` is the path below the source's root, `path` the path in its storage. A broken link has no size."""

    storage: Storage
    path: str
    name: str
    uri: str
    size: int | None
    modified: dt.datetime | None
    etag: str | None = None
    """That of an object, mostly a hash of its content; it changes whenever the object is rewritten."""
    problem: str | None = None
    """Set if this stands for a folder that cannot be listed: the reason."""
    left_out: str | None = None
    """Set if its name is a reason to leave it out."""

    @property
    def kind(self) -> str:
        """Its `extension`."""
        return extension(self.name)

    def open(self, *, min_read: int = MIN_READ) -> pa.NativeFile:
        """See `Storage.open_input`."""
        # As the root of a storage, because links in a source are followed, unlike those in a collection.
        return self.storage.subfolder(self.path).open_input(min_read=min_read)

    def refused(self, reason: str, message: str) -> Refused:
        """The row that stands for the images in this file."""
        name, size, modified = self.name, self.size, self.modified
        return Refused(image_id=name, uri=self.uri, reason=reason, message=message, size=size, modified=modified)


def file_listing(files: Sequence[SourceFile]) -> pa.Table:
    """One row per image file; `folder` is the path of its folder below the source's root, `label` the last part."""
    folders = [f.name.rpartition("/")[0].rstrip("/") or None for f in files]
    labels = [folder and folder.rpartition("/")[2] for folder in folders]
    columns = {name: [getattr(f, name) for f in files] for name in ("uri", "size", "modified", "etag")}
    metadata = {"label": pa.array(labels, pa.string()), "folder": pa.array(folders, pa.string())}
    return listing_table({"image_id": [f.name for f in files], **columns}, metadata)


def source_files(location: str, exclusions: Exclusions | None = None) -> Iterator[SourceFile]:
    """The files of a source, in any order. Raises `SourceError` if it does not exist or cannot be listed."""
    storage, shown = open_source(location), without_secrets(location)
    files = _local_files if storage.is_local else _stored_files
    try:
        yield from files(storage, exclusions or Exclusions())
    except FileNotFoundError:
        raise _not_found(shown, storage) from None
    except (CollectionError, OSError) as error:
        raise SourceError(f"cannot list {shown}: {error}") from error


def files_in(folder: Storage, uri: str) -> Iterator[SourceFile]:
    """The files in a folder with this address, without hidden ones and those in subfolders; none if it is missing."""
    try:
        entries = folder.list()
    except (CollectionError, OSError) as error:
        raise SourceError(f"cannot list {uri}: {error}") from error
    for entry in entries:
        if not entry.is_folder:
            yield SourceFile(
                storage=folder,
                path=entry.path,
                name=entry.name,
                uri=f"{uri}/{entry.name}",
                size=entry.size,
                modified=entry.modified,
                etag=entry.etag,
            )


def require_source_exists(location: str) -> None:
    """Raise `SourceError` if the source does not exist, in a bucket `EmptySourceError`. Nothing is listed."""
    storage = open_source(location)
    try:
        exists = storage.exists()
    except (CollectionError, OSError) as error:
        raise SourceError(f"cannot list {without_secrets(location)}: {error}") from error
    if not exists:
        raise _not_found(without_secrets(location), storage)


def extension(path: str) -> str:
    """The last extension in lower case, without its dot; empty if there is none."""
    return PurePosixPath(path).suffix.lower().lstrip(".")


def source_address(location: str) -> str:
    """As runs record it: absolute, in one spelling, without credentials. Raises `SourceError` like `open_source`."""
    return canonical_address(open_source(location).location)


def open_source(location: str) -> Storage:
    """The storage of a source, which need not exist. Raises `SourceError` for what cannot be a source."""
    if not location:
        raise SourceError("the source is empty: give a folder, a bucket prefix, a list of URLs, Parquet files or tars")
    shown = without_secrets(location)
    try:
        parts = split_address(location)
        if parts.scheme in WEB_SCHEMES:
            raise SourceError(
                f"{shown}: a source cannot be one web address. Put URLs in a list: a CSV with a column `url`"
            )
        storage = Storage.open(location)
    except (CollectionError, OSError) as error:
        raise SourceError(str(error)) from error
    if "endpoint_override" in parse_qs(parts.query):
        # Each picture is fetched by its own address, which cannot name a server.
        raise SourceError(f"{shown}: name the server in AWS_ENDPOINT_URL, not in the address; set it on every machine")
    if storage.bucket and (parts.password is not None or "sig=" in parts.query):
        raise SourceError(
            f"{shown}: each picture is fetched by its own address, which must not contain credentials: set "
            f"{SCHEMES[parts.scheme].credentials}, or whatever your cloud's tools read, on every machine"
        )
    return storage


def _local_files(storage: Storage, exclusions: Exclusions) -> Iterator[SourceFile]:
    """With broken links, and with names that are not UTF-8."""
    root = storage.root
    below = len(root.rstrip("/")) + 1
    if Path(root).is_dir():
        entries = _walk(root, lambda folder: exclusions.reason_of_folder(escaped(folder[below:])))
        prefix = below
    else:
        entries = iter([_Entry(root, Path(root).stat())])
        prefix = root.rindex("/") + 1
    for path, status, error, left_out in entries:
        name = escaped(path[prefix:])
        yield SourceFile(
            storage=storage,
            path=path[below:],
            name=name,
            uri=_local_uri(path),
            size=status.st_size if status else None,
            modified=_time_of(status.st_mtime) if status else None,
            problem=f"cannot list {escaped(path)}: {error.strerror}" if error else None,
            left_out=left_out or (exclusions.reason(name) if prefix == below else None),
        )


def _time_of(seconds: float) -> dt.datetime | None:
    """None for a time that no calendar has, as on a damaged disk."""
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None


class _Entry(NamedTuple):
    """A file; or a folder that cannot be listed, with the error. Without a status: a broken link, or left out."""

    path: str
    status: os.stat_result | None = None
    error: OSError | None = None
    left_out: str | None = None


def _walk(
    folder: str, reason: Callable[[str], str | None], above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[_Entry]:
    """All files below a folder, and the folders that cannot be listed. Links are followed, but not in circles. In
    folders that are left out for a `reason`, files are only counted.
    """
    try:
        status = Path(folder).stat()
        entries = os.scandir(folder)
    except OSError as error:
        if not above:
            raise
        yield _Entry(folder, error=error)
        return
    here = (status.st_dev, status.st_ino)
    with entries:
        for entry in entries if here not in above else ():
            try:
                found = entry.stat()
            except OSError as error:
                is_folder = entry.is_dir(follow_symlinks=False)
                yield _Entry(entry.path, error=error if is_folder else None)
                continue
            if not stat.S_ISDIR(found.st_mode):
                yield _Entry(entry.path, found)
            elif left_out := reason(entry.path):
                # Without reading more than their names.
                below = (f"{parent}/{name}" for parent, _, names in os.walk(entry.path) for name in names)
                yield from (_Entry(path, left_out=left_out) for path in below)
            else:
                yield from _walk(entry.path, reason, above | {here})


def _local_uri(path: str) -> str:
    """The path, or a file:// URI if the path is not UTF-8 or could be mistaken for a part of a file."""
    if escaped(path) != path or has_mark(path):
        return f"file://{quote(os.fsencode(path))}"
    return path


def _stored_files(storage: Storage, exclusions: Exclusions) -> Iterator[SourceFile]:
    """The files below a prefix of a bucket; if there are none, the object with this key. An empty object below whose
    name there are others stands for their folder, as some tools write it: it is no file.
    """
    source = storage.info()
    if source is None:
        raise FileNotFoundError(storage.location)
    scheme, _, rest = storage.location.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    below = storage.walk()
    first = next(below, None if source.is_folder else source)
    empty, folders = list[SourceFile](), set[str]()
    for found in chain([first] if first else [], below):
        path = found.path
        file = SourceFile(
            storage=storage,
            path=path,
            name=path or storage.root.rpartition("/")[2],
            uri=f"{scheme}://{user}{at}{storage.absolute(path)}",
            size=found.size,
            modified=found.modified,
            etag=found.etag if path else None,
            left_out=exclusions.reason(path) if path else None,
        )
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
        if file.size:
            yield file
        else:
            empty.append(file)
    yield from (file for file in empty if file.path not in folders)


def _not_found(location: str, storage: Storage) -> SourceError:
    if not storage.is_local:
        # A prefix exists only while there are objects below it.
        return EmptySourceError(
            f"{location} does not exist or is empty. Check the bucket, the prefix and the credentials"
        )
    if Path(storage.root).is_symlink():
        return SourceError(f"{location} is a link to {Path(storage.root).readlink()}, which does not exist")
    existing = next(parent for parent in Path(storage.root).parents if parent.exists())
    return SourceError(f"{location} does not exist (the nearest existing folder is {existing})")
