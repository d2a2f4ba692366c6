"""Annotation values of a segment's rows, by position, and their words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from index.arrays import Positions
from index.builder.words import KnownColumns, write_column_words
from index.collection.annotations import MATCH
from index.collection.layout import ROWS, TOMBSTONES, columns_path, segment_path, version_path, words_path
from index.collection.live_rows import LiveRows, annotation_values
from index.collection.records import FileRecord, SegmentRecord, VersionManifest
from index.collection.rows import in_files
from index.matches import SEARCHES
from index.storage import Storage
from index.storage.arrow_file import read_batches
from index.storage.scratch import Scratch
from index.versions.files import read_tombstones, store_file


def with_columns(
    storage: Storage, draft: VersionManifest, annotations: Sequence[LiveRows], base: VersionManifest | None
) -> list[SegmentRecord]:
    """The segments of a version with the files of their annotations, which are written. Words are copied from those of
    `base` where they are the same.
    """
    before = {segment.name: segment for segment in base.segments} if base else {}
    chosen = draft.settings.words
    if chosen is None:
        chosen = tuple(name for each in annotations if not _has_names(each) for name in each.metadata)
    records = []
    with Scratch("words") as here:
        for segment, dead in zip(draft.segments, _tombstones(storage, draft, here.path), strict=True):
            known = None
            if base and segment.name in before:
                known = KnownColumns.of_version(storage, base, before[segment.name], dead, here.path)
            stored = _store(storage, draft, segment.name, annotations, chosen, known)
            columns, words = (path(draft.version, segment.name) for path in (columns_path, words_path))
            records.append(segment.model_copy(update={"columns": stored[columns], "words": stored.get(words)}))
    return records


def _has_names(annotation: LiveRows) -> bool:
    """Whether its text says nothing about pictures: ids of images, or names of searches."""
    return annotation.model is not None and annotation.model.id in (MATCH, SEARCHES)


def _tombstones(storage: Storage, draft: VersionManifest, here: Path) -> list[Positions]:
    path = version_path(draft.version, TOMBSTONES)
    local = storage.local_path(path) or here / TOMBSTONES
    if TOMBSTONES in draft.files and not storage.is_local:
        local.write_bytes(storage.read(path))
    return read_tombstones(local, draft)


def _store(
    storage: Storage,
    draft: VersionManifest,
    segment: str,
    annotations: Sequence[LiveRows],
    chosen: Sequence[str],
    known: KnownColumns | None,
) -> dict[str, FileRecord]:
    """Write the columns of a segment and the words of the `chosen` ones; the files' records by path."""
    columns, words = columns_path(draft.version, segment), words_path(draft.version, segment)
    with storage.scratch(version_path(draft.version)) as scratch:
        files = {path: scratch / Path(path).name for path in (columns, words)}
        write_columns(files[columns], storage, segment, annotations)
        if not write_column_words(files[words], files[columns], chosen, known):
            del files[words]
        return {path: store_file(storage, file, path) for path, file in files.items()}


def write_columns(path: Path, storage: Storage, segment: str, annotations: Sequence[LiveRows]) -> None:
    """Write the values of a segment's rows, in the same batches as the rows."""
    with storage.open_input(segment_path(segment, ROWS)) as file:
        batches = read_batches(file, ("image_id", "content_hash"))[1]
    rows = pa.Table.from_batches(batches)
    rows = rows.append_column("number", pa.array(np.arange(len(rows))))
    found = annotation_values(annotations[0].catalog, "segment_rows", annotations, segment_rows=rows)
    _, values = next(found)
    schema = in_files(values.schema)
    with pa.ipc.new_file(str(path), schema) as writer:
        for batch in batches:
            while len(values) < len(batch):
                values = pa.concat_tables([values, next(found)[1]])
            part = values.slice(0, len(batch)).cast(schema).combine_chunks()
            writer.write_table(part, max_chunksize=max(1, len(batch)))
            values = values.slice(len(batch))
