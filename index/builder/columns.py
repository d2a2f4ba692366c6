"""Annotation values of a segment's rows, by position, and their words.

Those of the version that is updated are copied, but for the images that later runs of an annotation name: so the cost
is that of writing the files, and of what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from index.arrays import Positions
from index.builder.segment_change import touched_ids
from index.collection.annotations import Annotation
from index.collection.cache.file_cache import first_damage
from index.collection.layout import ROWS, columns_path, segment_path, version_path, words_path
from index.collection.live_rows import LiveRows, annotation_values
from index.collection.records.record import FileRecord
from index.collection.records.version_manifest import SegmentRecord, VersionManifest
from index.collection.rows import in_files, metadata_columns, number_array
from index.errors import CollectionError
from index.storage import Storage
from index.storage.arrow_file import read_batches
from index.storage.scratch import Scratch
from index.versions.files import store_file
from index.words.block import BLOCK_ROWS
from index.words.word_index import WordIndex, text_columns, write_words

Values = Iterator[tuple[Positions, pa.Table]]
"""Positions in a segment, ascending, with the values there, part by part."""


def with_columns(
    storage: Storage, draft: VersionManifest, annotations: Sequence[Annotation], base: VersionManifest | None
) -> list[SegmentRecord]:
    """The segments of a version with the files of their annotations, which are written. What has not changed is copied
    from those of `base`.
    """
    if not annotations:
        return draft.segments
    before = {segment.name: segment for segment in base.segments} if base else {}
    sources = [_Source(each, base.annotations.get(each.name, ()) if base else ()) for each in annotations]
    records = []
    with Scratch("words") as here:
        for segment in draft.segments:
            known = None
            if base and segment.name in before:
                known = _Known.of_version(storage, base, before[segment.name], here.path)
            stored = _store(storage, draft, segment, sources, known)
            columns, words = (path(draft.version, segment.name) for path in (columns_path, words_path))
            update = {"columns": stored.get(columns), "words": stored.get(words)}
            records.append(segment.model_copy(update=update))
    return records


@dataclass(frozen=True)
class _Known:
    """The annotations of a segment in another version, and their words."""

    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]
    words: WordIndex | None

    @classmethod
    def of_version(cls, storage: Storage, base: VersionManifest, record: SegmentRecord, here: Path) -> _Known | None:
        """Those of a version; None if it has none, or if they are damaged. Files of a bucket get links below `here`."""
        if record.columns is None:
            return None
        columns, words = columns_path(base.version, record.name), words_path(base.version, record.name)
        files = {columns: record.columns} | ({words: record.words} if record.words else {})
        with suppress(CollectionError, OSError, ValueError):
            if not first_damage(storage, files, here):
                at = {path: storage.root_here(here) / path for path in files}
                index = WordIndex.open(at[words], record.ntotal) if record.words else None
                return cls(*read_batches(pa.memory_map(str(at[columns]))), index)
        return None


@dataclass(frozen=True)
class _Source:
    """An annotation, and the ids of its runs whose values are `known`."""

    annotation: Annotation
    known: Sequence[str]

    @cached_property
    def _every(self) -> LiveRows:
        return self.annotation.rows  # once for all segments: it opens a catalog

    @cached_property
    def _newer(self) -> tuple[LiveRows, pa.Table] | None:
        """The rows of later runs, and the ids in these, of all images whose values may differ; None if any may."""
        runs, count = self.annotation.runs, len(self.known)
        if self.annotation.run_ids[:count] != [*self.known] or not count:
            return None
        if not runs[count - 1].model.agrees_with(runs[-1].model):
            return None
        newer = LiveRows.of_runs(self.annotation.log.storage, runs[count:]).of_model(runs[-1].model)
        return newer, pa.table({"image_id": touched_ids(newer)})

    def values(self, rows: pa.Table, known: pa.Schema | None) -> tuple[list[pa.Field[Any]], Values]:
        """The columns, and their values in a segment with these rows: all, or those that are not `known`."""
        own = [known.field(name) for name in metadata_columns(known) if self.annotation.has(name)] if known else []
        if known is not None and self.annotation.run_ids == [*self.known]:
            return own, iter(())
        if known is not None and self._newer is not None:
            newer, touched = self._newer
            found = in_files(newer.schema_of(newer.metadata))
            if all(known.field(field.name).type == field.type for field in found if field.name in known.names):
                own += [field for field in found if field.name not in known.names]
                changed = "(FROM segment_rows SEMI JOIN touched USING (image_id))"
                return own, _values(newer, changed, segment_rows=rows, touched=touched)
        every = self._every
        return [*in_files(every.schema_of(every.metadata))], _values(every, "segment_rows", segment_rows=rows)


def _values(source: LiveRows, rows: str, **tables: pa.Table) -> Values:
    return annotation_values(source.catalog, rows, [source] if source.metadata else [], **tables)


def _store(
    storage: Storage, draft: VersionManifest, segment: SegmentRecord, sources: Sequence[_Source], known: _Known | None
) -> dict[str, FileRecord]:
    """Write the columns of a segment, if there are any, and their words; the files' records by path."""
    columns, words = columns_path(draft.version, segment.name), words_path(draft.version, segment.name)
    chosen = draft.settings.words
    with storage.scratch(version_path(draft.version)) as scratch:
        files = {path: scratch / Path(path).name for path in (columns, words)}
        changed = _write_columns(files[columns], storage, segment.name, sources, known)
        if not changed:
            return {}
        if chosen is None:
            ids = [each.annotation for each in sources if each.annotation.has_names]
            chosen = tuple(name for name in changed if not any(each.has(name) for each in ids))
        blocks = {
            name: [None if number in changed[name] else block for number, block in enumerate(blocks)]
            for name, blocks in (known.words.columns if known and known.words else {}).items()
            if name in changed
        }
        schema, batches = read_batches(pa.memory_map(str(files[columns])))
        if names := text_columns(schema, chosen):
            write_words(files[words], names, batches, blocks)
        else:
            del files[words]
        return {path: store_file(storage, file, path) for path, file in files.items()}


def _write_columns(
    path: Path, storage: Storage, segment: str, sources: Sequence[_Source], known: _Known | None
) -> dict[str, set[int]]:
    """Write the values of a segment's rows, in the same batches as the rows. Returns the blocks of words that have
    another value than what is `known`, for each column.
    """
    local = storage.local_path(segment_path(segment, ROWS))
    with pa.memory_map(str(local)) if local else storage.open_input(segment_path(segment, ROWS)) as file:
        batches = read_batches(file, ("image_id", "content_hash"))[1]
    if known and [*map(len, known.batches)] != [*map(len, batches)]:
        known = None
    rows = pa.Table.from_batches(batches)
    rows = rows.append_column("number", number_array(np.arange(len(rows))))
    found = [source.values(rows, known.schema if known else None) for source in sources]
    schema = pa.schema({field.name: field for fields, _ in found for field in fields}.values())
    changed: dict[str, set[int]] = {name: set() for name in schema.names}
    if not changed:
        return changed
    parts = [([field.name for field in fields], _by_batch(values, batches)) for fields, values in found]
    start = 0
    with pa.ipc.new_file(str(path), schema) as writer:
        for number, batch in enumerate(batches):
            columns = {name: _column(schema.field(name), known, number, len(batch)) for name in schema.names}
            for names, part in parts:
                positions, values = next(part)
                if len(positions):
                    blocks = set(((positions + start) // BLOCK_ROWS).tolist())
                    for name in names:
                        columns[name] = _replaced(columns[name], positions, values, name)
                        changed[name] |= blocks
            writer.write_batch(pa.record_batch([*columns.values()], schema=schema))
            start += len(batch)
    return changed


def _by_batch(found: Values, batches: Sequence[pa.RecordBatch]) -> Values:
    """For each batch the positions in it, and their values."""
    positions, tables = np.empty(0, np.int64), list[pa.Table]()
    start = 0
    for batch in batches:
        end = start + len(batch)
        while not len(positions) or positions[-1] < end:
            more = next(found, None)
            if more is None:
                break
            positions, tables = np.concatenate([positions, more[0]]), [*tables, more[1]]
        values = pa.concat_tables(tables) if tables else pa.table({})
        count = int(np.searchsorted(positions, end))
        yield positions[:count] - start, values.slice(0, count)
        positions, tables = positions[count:], [values.slice(count)]
        start = end


def _column(field: pa.Field[Any], known: _Known | None, number: int, rows: int) -> Any:
    """A column of a batch as it is known; nulls if it is not."""
    if known and field.name in known.schema.names and known.schema.field(field.name).type == field.type:
        return known.batches[number].column(field.name)
    return pa.nulls(rows, field.type)


def _replaced(column: Any, positions: Positions, values: pa.Table, name: str) -> Any:
    """A column with other values at these positions: null if the values lack the column."""
    given: Any = pa.nulls(len(positions), column.type)
    if name in values.column_names:
        given = values[name].cast(column.type).combine_chunks()
    order = np.arange(len(column))
    order[positions] = len(column) + np.arange(len(positions))
    return pa.concat_arrays([column, given]).take(number_array(order))
