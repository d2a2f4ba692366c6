"""The columns that a version writes beside its segments' rows: values of annotations, by position, and the words of
these and of a segment's own columns. Words of rows that have not changed are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from index.arrays import Positions
from index.collection.annotations import MATCH
from index.collection.cache.file_cache import first_damage
from index.collection.layout import ROWS, TOMBSTONES, WORDS, columns_path, segment_path, version_path, words_path
from index.collection.live_rows import LiveRows, annotation_values
from index.collection.records import FileRecord, IndexSettings, SegmentRecord, VersionManifest
from index.collection.rows import in_files
from index.errors import CollectionError
from index.segments.segment import Segment
from index.storage import Storage
from index.storage.arrow_file import read_batches
from index.storage.scratch import Scratch
from index.versions.files import read_tombstones, store_file
from index.words.block import BLOCK_ROWS, BlockWords
from index.words.word_index import WordIndex, text_columns, write_words

KnownBlocks = Mapping[str, Sequence[BlockWords | None]]


def write_row_words(segment: Segment, settings: IndexSettings, base: Segment | None) -> None:
    """Write the words of a segment's own columns into its folder. The first rows are those of `base`."""
    if settings.words == ():
        return
    names = text_columns(segment.schema, settings.words)
    known: KnownBlocks = {}
    if base is not None:
        whole = base.ntotal // BLOCK_ROWS
        known = {name: blocks[:whole] for name, blocks in base.words.columns.items()}
    write_words(segment.folder / WORDS, names, segment.batches, known)


def write_column_words(path: Path, columns: Path, chosen: Sequence[str], known: KnownColumns | None) -> bool:
    """Write the words of the `chosen` columns in a file of annotations. False, and no file, if none of them has any."""
    schema, batches = read_batches(pa.memory_map(str(columns)))
    names = text_columns(schema, chosen)
    if names:
        blocks = known.unchanged(pa.Table.from_batches(batches).select(names)) if known else {}
        write_words(path, names, batches, blocks)
    return bool(names)


class KnownColumns:
    """The annotations of a segment in another version, and their words. `dead` rows may have other values since."""

    def __init__(self, columns: Path, words: Path, ntotal: int, dead: Positions) -> None:
        self._values = pa.Table.from_batches(read_batches(pa.memory_map(str(columns)))[1])
        self._words = WordIndex.open(words, ntotal)
        self._live = np.ones(ntotal, bool)
        self._live[dead] = False

    @classmethod
    def of_version(
        cls, storage: Storage, base: VersionManifest, record: SegmentRecord, dead: Positions, here: Path
    ) -> KnownColumns | None:
        """Those of a version; None if it has none, or if they are damaged. Files of a bucket get links below `here`."""
        columns, words = columns_path(base.version, record.name), words_path(base.version, record.name)
        if record.columns is None or record.words is None:
            return None
        with suppress(CollectionError, OSError, ValueError):
            if not first_damage(storage, {columns: record.columns, words: record.words}, here):
                at = [storage.local_path(path) or here / path for path in (columns, words)]
                return cls(at[0], at[1], record.ntotal, dead)
        return None

    def unchanged(self, values: pa.Table) -> KnownBlocks:
        """The blocks of each column in which no live row has another value."""
        return {
            name: [
                block if self._is_unchanged(values[name], name, number * BLOCK_ROWS) else None
                for number, block in enumerate(blocks)
            ]
            for name, blocks in self._words.columns.items()
            if name in values.column_names and name in self._values.column_names
        }

    def _is_unchanged(self, values: pa.ChunkedArray, name: str, start: int) -> bool:  # type: ignore[type-arg]
        live = pa.array(self._live[start : start + BLOCK_ROWS])
        before, now = (each.slice(start, BLOCK_ROWS).filter(live) for each in (self._values[name], values))
        return before.equals(now)


def with_columns(
    storage: Storage, draft: VersionManifest, annotations: Sequence[LiveRows], base: VersionManifest | None
) -> list[SegmentRecord]:
    """The segments of a version with the files of their annotations, which are written. Words are copied from those of
    `base` where they are the same.
    """
    before = {segment.name: segment for segment in base.segments} if base else {}
    chosen = draft.settings.words
    if chosen is None:
        chosen = tuple(name for each in annotations if not _has_ids(each) for name in each.metadata)
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


def _has_ids(annotation: LiveRows) -> bool:
    return annotation.model is not None and annotation.model.id == MATCH


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
