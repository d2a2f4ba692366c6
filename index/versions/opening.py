"""Opens index versions after checking their files against the manifest."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from index.arrays import Positions
from index.collection import Collection
from index.collection.layout import columns_path, segment_path
from index.collection.records import SegmentRecord, VersionManifest
from index.errors import CollectionError, DamagedVersionError
from index.segments.exact import max_exact_rows
from index.segments.segment import Segment
from index.segments.segmented_index import SegmentedIndex
from index.storage import Storage
from index.versions.file_cache import FileCache, cache_too_small
from index.versions.files import read_tombstones, version_files
from index.versions.servable import check_version

_ATTEMPTS = 3
_DOWNLOADS = 8  # in parallel: one alone does not use the full bandwidth, and each takes a few megabytes of memory


def open_segments(
    collection: Collection, manifest: VersionManifest, cache: Path, *, verify: bool = True
) -> SegmentedIndex:
    """Check every file of a version, then map its segments, in the manifest's order. DamagedVersionError names a file.

    Files of a bucket are first linked or copied into the folder `cache`, through this machine's `FileCache`. Without
    `verify`, for a version that was just written or verified, altered bytes are not noticed.
    """
    if not collection.storage.bucket:
        check_version(collection, manifest, verify=verify)
        return _map_segments(collection.storage, manifest)
    for _ in range(_ATTEMPTS):
        copies = _copy_to_disk(collection, manifest, cache, verify=verify)
        try:
            return _map_segments(copies, manifest)
        except (DamagedVersionError, FileNotFoundError):
            # If `cache` is on another disk, its files are symbolic links, whose targets may just have been removed.
            if all((cache / path).is_file() for path in version_files(manifest)):
                raise
    raise cache_too_small(FileCache.from_environment().folder)


def _map_segments(storage: Storage, manifest: VersionManifest) -> SegmentedIndex:
    segments = zip(manifest.segments, read_tombstones(storage, manifest), strict=True)
    return SegmentedIndex([_open_segment(storage, manifest, record, tombstones) for record, tombstones in segments])


def _copy_to_disk(collection: Collection, manifest: VersionManifest, cache: Path, *, verify: bool) -> Storage:
    """The files of a version on this machine, checked, under the same paths."""
    files, file_cache = version_files(manifest), FileCache.from_environment()
    file_cache.make_room(files)

    def copy(path: str) -> CollectionError | FileNotFoundError | None:
        target = cache / path
        # An existing file is never replaced: another version's segment may be mapped from it.
        if target.is_file() and target.stat().st_size == files[path].size:
            return None
        try:
            file_cache.place(collection.storage, path, files[path], target, verify=verify)
        except (CollectionError, FileNotFoundError) as error:
            return error
        return None

    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        errors = [error for error in pool.map(copy, files) if error]
    if errors:
        check_version(collection, manifest)  # its error names the bucket's damaged file
        raise errors[0]
    return Storage.open(cache)


def _open_segment(storage: Storage, manifest: VersionManifest, record: SegmentRecord, tombstones: Positions) -> Segment:
    path = segment_path(record.name)
    try:
        opened = Segment(
            Path(storage.absolute(path)),
            parameters=record.parameters,
            tile_parameters=record.tile_parameters,
            tombstones=tombstones,
            max_exact_rows=max_exact_rows(manifest.settings, manifest.dim),
            columns=Path(storage.absolute(columns_path(manifest.version, record.name))) if record.columns else None,
            files=record.files,  # others were not verified
        )
    except (RuntimeError, OSError, pa.ArrowException) as error:  # altered bytes, if only sizes were checked
        problem = f"index version {manifest.version} is damaged: {path} cannot be read"
        raise DamagedVersionError(f"{problem}; build it again with `likeness compact`", path) from error
    if (opened.ntotal, opened.live_count, opened.dim) != (record.ntotal, record.live, manifest.dim):
        raise DamagedVersionError(
            f"{path} has {opened.ntotal} vectors of {opened.dim} dimensions, {opened.live_count} of them live; the "
            f"manifest of index version {manifest.version} says {record.ntotal} of {manifest.dim}, {record.live} live: "
            "build it again with `likeness compact`",
            path,
        )
    return opened
