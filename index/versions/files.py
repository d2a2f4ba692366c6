"""The files of an index version: their paths and records, and reading and writing tombstones."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Positions
from index.collection.cache.checked import remember_written
from index.collection.layout import TOMBSTONES, columns_path, segment_path, version_path, words_path
from index.collection.records.record import FileRecord
from index.collection.records.version_manifest import VersionManifest
from index.collection.rows import numbers_of, text_array
from index.storage import Storage
from index.storage.arrow_file import read_batches, require_columns
from index.storage.disk import sha256_of


def file_record(path: Path) -> FileRecord:
    return FileRecord(size=path.stat().st_size, sha256=sha256_of(path))


def store_file(storage: Storage, file: Path, path: str) -> FileRecord:
    """Move a file written in `scratch` to `path`. This machine need not check it again before it opens it."""
    record = file_record(file)
    storage.put_file(file, path)
    if local := storage.local_path(path):
        remember_written(local, record.sha256)
    return record


def version_files(manifest: VersionManifest) -> dict[str, FileRecord]:
    """The record of each file of a version except its manifest, by path in the collection."""
    files = {version_path(manifest.version, name): record for name, record in manifest.files.items()}
    for segment in manifest.segments:
        files |= {segment_path(segment.name, name): record for name, record in segment.files.items()}
        if segment.columns:
            files[columns_path(manifest.version, segment.name)] = segment.columns
        if segment.words:
            files[words_path(manifest.version, segment.name)] = segment.words
    return files


def write_tombstones(path: Path, tombstones: Mapping[str, Positions]) -> None:
    """Write the dead rows of older segments, with the columns `segment` (string) and `position` in it (int64)."""
    names = np.repeat(list(tombstones), [len(positions) for positions in tombstones.values()])
    positions = np.concatenate(list(tombstones.values())).astype(np.int64)
    table = pa.table({"segment": pa.array(names.tolist(), pa.string()), "position": positions})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def read_tombstones(path: Path, manifest: VersionManifest) -> list[Positions]:
    """The positions of dead rows, for each segment of a version. ValueError for a file that is not of this version."""
    names = [segment.name for segment in manifest.segments]
    if TOMBSTONES not in manifest.files:
        return [np.empty(0, np.int64)] * len(names)
    with pa.memory_map(str(path)) as file:
        schema, batches = read_batches(file)
    require_columns(schema, {"segment": pa.string(), "position": pa.int64()})
    table = pa.Table.from_batches(batches, schema)
    if table["position"].null_count:
        raise ValueError("it has rows without a position")
    segment = numbers_of(pc.index_in(table["segment"], value_set=text_array(names)), -1)
    order = np.argsort(segment, kind="stable")
    bounds = np.searchsorted(segment[order], np.arange(len(names) + 1))
    positions = numbers_of(table["position"])[order]
    parts = [positions[start:end] for start, end in pairwise(bounds)]
    for record, part in zip(manifest.segments, parts, strict=True):
        if len(part) and not (part.min() >= 0 and part.max() < record.ntotal):
            raise ValueError(f"it has the rows {part.min():,} to {part.max():,} of a segment of {record.ntotal:,}")
    return parts
