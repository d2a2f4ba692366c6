"""The words of a segment's columns. Those of rows that have not changed are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from index.arrays import Positions
from index.collection.cache.file_cache import first_damage
from index.collection.layout import WORDS, columns_path, words_path
from index.collection.records import IndexSettings, SegmentRecord, VersionManifest
from index.errors import CollectionError
from index.segments.segment import Segment
from index.storage import Storage
from index.storage.arrow_file import read_batches
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
