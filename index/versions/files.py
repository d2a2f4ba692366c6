"""The files of an index version: their paths, and whether they still agree with the manifest."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from index.collection.layout import segment_path, version_path
from index.collection.records import FileRecord, VersionManifest
from index.storage import Storage


def file_record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        return FileRecord(size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def version_files(manifest: VersionManifest) -> dict[str, FileRecord]:
    """The manifest's record of each file of a version, by path below the collection; without the manifest itself."""
    own = {version_path(manifest.version, name): record for name, record in manifest.files.items()}
    shared = {
        segment_path(segment.name, name): record
        for segment in manifest.segments
        for name, record in segment.files.items()
    }
    return own | shared


def first_damage(storage: Storage, files: Mapping[str, FileRecord], *, verify: bool = True) -> tuple[str, str] | None:
    """Path and problem of the first file that is not as recorded, or None. `verify` false: compare only sizes.

    Sizes are compared first, which costs nothing; then every byte is read, with a thread for each core.
    """
    checks = [_size_problem, _content_problem] if verify else [_size_problem]
    # hashlib lets other threads run; with an object store the threads wait in parallel.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for check in checks:
            problems: Iterator[str | None] = pool.map(check, [storage] * len(files), files, files.values())
            found = next(((path, problem) for path, problem in zip(files, problems, strict=True) if problem), None)
            if found:
                pool.shutdown(cancel_futures=True)
                return found
    return None


def _size_problem(storage: Storage, path: str, expected: FileRecord) -> str | None:
    try:
        size = storage.size(path)
    except FileNotFoundError:
        return "is missing"
    return None if size == expected.size else f"has {size:,} bytes, expected {expected.size:,}"


def _content_problem(storage: Storage, path: str, expected: FileRecord) -> str | None:
    try:
        digest = storage.sha256(path)
    except FileNotFoundError:  # removed since its size was read
        return "is missing"
    return None if digest == expected.sha256 else "has been altered: its SHA-256 is not the recorded one"
