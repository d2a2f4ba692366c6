"""Opens index versions after checking their files against the manifest."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from index.arrays import Positions
from index.collection import Collection
from index.collection.cache.checked import is_checked, remember_checked, sound_key
from index.collection.cache.file_cache import FileCache, cache_too_small
from index.collection.layout import (
    ANN_OF,
    MANIFEST,
    TILE_VECTORS,
    TOMBSTONES,
    VECTORS,
    columns_path,
    segment_path,
    version_path,
    words_path,
)
from index.collection.records.version_manifest import SegmentRecord, VersionManifest
from index.collection.rows import schema_problem
from index.errors import DamagedVersionError
from index.segments.ann_check import Job, first_refused
from index.segments.exact import max_exact_rows
from index.segments.segment import Segment
from index.segments.segmented_index import SegmentedIndex
from index.segments.vector_file import require_flat
from index.versions.files import read_tombstones, version_files
from index.versions.servable import check_version

_ATTEMPTS = 3


def open_segments(
    collection: Collection,
    manifest: VersionManifest,
    cache: Path,
    *,
    verify: bool = True,
    opened: Sequence[Segment] = (),
) -> SegmentedIndex:
    """Check every file of a version, then map its segments, in the manifest's order. DamagedVersionError names a file.

    Files of a bucket are first linked or copied into the folder `cache`, through this machine's `FileCache`. Without
    `verify`, for a version that was just written or verified, altered bytes are not noticed. Segments that are `opened`
    already, with the tombstones of this version, are not opened again.
    """
    known = {segment.folder.name: segment for segment in opened}
    root = collection.storage.root_here(cache)
    for _ in range(_ATTEMPTS):
        check_version(collection, manifest, verify=verify, here=cache)
        try:
            return _map_segments(root, manifest, known, verify=verify)
        except (DamagedVersionError, FileNotFoundError):
            # If `cache` is on another disk, its files are symbolic links, whose targets may just have been removed.
            if all((root / path).is_file() for path in version_files(manifest)):
                raise
    raise cache_too_small(FileCache.from_environment().folder)


def _map_segments(
    folder: Path, manifest: VersionManifest, known: Mapping[str, Segment], *, verify: bool
) -> SegmentedIndex:
    """Map the segments below a folder, whose files have been checked against the manifest."""
    tombstones_path = version_path(manifest.version, TOMBSTONES)
    with _as_damaged(manifest, tombstones_path):
        tombstones = read_tombstones(folder / tombstones_path, manifest)
    if verify:
        _require_searchable(folder, manifest)
    segments = zip(manifest.segments, tombstones, strict=True)
    return SegmentedIndex(
        [
            known[record.name] if record.name in known else _open_segment(folder, manifest, record, dead)
            for record, dead in segments
        ]
    )


def _require_searchable(folder: Path, manifest: VersionManifest) -> None:
    """Check the indexes of a version, whose author may be anyone, before faiss maps them into this process.

    Approximate ones are checked in another process, and their digests remembered, so that this happens once.
    """
    jobs: dict[str, Job] = {}  # by what they ask: the same file may not be sound for other rows
    for record in manifest.segments:
        tiles = record.ntotal * len(manifest.model.boxes)
        for vectors, ntotal in ((VECTORS, record.ntotal), (TILE_VECTORS, tiles)):
            path = segment_path(record.name, vectors)
            if vectors in record.files:
                with _as_damaged(manifest, path):
                    require_flat(folder / path, ntotal, manifest.dim)
            if ann := record.files.get(ANN_OF[vectors]):
                path = str(folder / segment_path(record.name, ANN_OF[vectors]))
                jobs[sound_key(ann.sha256, ntotal, manifest.dim)] = (path, ntotal, manifest.dim)
    new = {key: job for key, job in jobs.items() if not is_checked(key)}
    if new and (refused := first_refused(list(new.values()))):
        path, problem = refused
        raise _damaged(manifest, Path(path).relative_to(folder).as_posix(), problem)
    remember_checked(new)


def _open_segment(folder: Path, manifest: VersionManifest, record: SegmentRecord, tombstones: Positions) -> Segment:
    path = segment_path(record.name)
    with _as_damaged(manifest, path):
        opened = Segment(
            folder / path,
            parameters=record.parameters,
            tile_parameters=record.tile_parameters,
            tombstones=tombstones,
            max_exact_rows=max_exact_rows(manifest.settings, manifest.dim),
            columns=folder / columns_path(manifest.version, record.name) if record.columns else None,
            words=folder / words_path(manifest.version, record.name) if record.words else None,
            files=record.files,  # others were not verified
        )
        if problem := schema_problem(opened.schema):
            raise ValueError(problem)
    if (opened.ntotal, opened.live_count, opened.dim) != (record.ntotal, record.live, manifest.dim):
        raise DamagedVersionError(
            f"{path} has {opened.ntotal} vectors of {opened.dim} dimensions, {opened.live_count} of them live; the "
            f"manifest of index version {manifest.version}, {version_path(manifest.version, MANIFEST)}, says "
            f"{record.ntotal} of {manifest.dim}, {record.live} live: build it again with `likeness compact`",
            path,
        )
    return opened


@contextmanager
def _as_damaged(manifest: VersionManifest, path: str) -> Iterator[None]:
    """Raises DamagedVersionError for the errors of faiss, Arrow and our own checks of a file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (RuntimeError, OSError, ValueError, TypeError, KeyError, MemoryError, pa.ArrowException) as error:
        raise _damaged(manifest, path, error) from error


def _damaged(manifest: VersionManifest, path: str, problem: object) -> DamagedVersionError:
    return DamagedVersionError(
        f"index version {manifest.version} is damaged: {path} cannot be read ({problem}), or is not what "
        f"{version_path(manifest.version, MANIFEST)} says; build it again with `likeness compact`",
        path,
    )
