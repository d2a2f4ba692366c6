"""The words of a segment's columns. Those of rows that have not changed are copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from index.collection.layout import WORDS
from index.collection.records import IndexSettings
from index.segments.segment import Segment
from index.storage.arrow_file import read_batches
from index.words.block import BLOCK_ROWS, BlockWords
from index.words.word_index import text_columns, write_words

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


def write_column_words(path: Path, columns: Path, chosen: Sequence[str], known: KnownBlocks) -> bool:
    """Write the words of the `chosen` columns in a file of annotations. False, and no file, if none of them has any."""
    schema, batches = read_batches(pa.memory_map(str(columns)))
    if names := text_columns(schema, chosen):
        write_words(path, names, batches, known)
    return bool(names)
