"""Checks that the files of an index version are those that its manifest names."""

import hashlib
from pathlib import Path

from index.collection import Collection
from index.errors import CollectionError, DamagedVersionError
from index.records import FileRecord, SegmentRecord, VersionManifest
from index.segment import Segment


def open_segments(collection: Collection, manifest: VersionManifest, cache: Path) -> list[Segment]:
    """Verify every file of a version, then map its segments.

    Files of an object store are copied into `cache` first. DamagedVersionError names a file that is missing,
    truncated or altered, and the other versions.
    """
    return [_open_segment(collection, manifest, segment, cache) for segment in manifest.segments]


def file_record(path: Path) -> FileRecord:
    """Size and SHA-256 of a local file."""
    with path.open("rb") as file:
        return FileRecord(size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _open_segment(collection: Collection, manifest: VersionManifest, segment: SegmentRecord, cache: Path) -> Segment:
    folder = cache
    for relative, expected in segment.files.items():
        path = f"index/{manifest.version}/{relative}"
        try:
            local = _local_file(collection, path, cache)
            found = file_record(local)
        except FileNotFoundError as error:
            raise _damaged(collection, manifest, path, "is missing") from error
        if found.size != expected.size:
            raise _damaged(collection, manifest, path, f"has {found.size:,} bytes, expected {expected.size:,}")
        if found != expected:
            raise _damaged(collection, manifest, path, "has been altered: its SHA-256 is not the recorded one")
        folder = local.parent
    opened = Segment.open(folder)
    if (opened.ntotal, opened.dim) != (segment.ntotal, manifest.dim):
        raise CollectionError(
            f"{folder} holds {opened.ntotal} vectors of {opened.dim} dimensions, its manifest says "
            f"{segment.ntotal} of {manifest.dim}: build the index again"
        )
    return opened


def _local_file(collection: Collection, path: str, cache: Path) -> Path:
    local = collection.storage.local_path(path)
    if local is None:
        local = cache / path
        local.parent.mkdir(parents=True, exist_ok=True)
        collection.storage.download(path, local)
    return local


def _damaged(collection: Collection, manifest: VersionManifest, path: str, problem: str) -> DamagedVersionError:
    others = collection.other_versions(manifest.version)
    return DamagedVersionError(
        f"index version {manifest.version} is damaged: {path} {problem}; other versions: {others}; "
        "build it again with `likeness index`",
        path,
    )
