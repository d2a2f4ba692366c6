"""The words of a segment's text columns, and their file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.records.bounds import parse_json
from index.collection.rows import is_list, is_text
from index.storage.arrow_file import read_batches
from index.words.block import BLOCK_ROWS, SCHEMA, BlockWords, is_among
from index.words.text import Term, path_of

_COLUMNS: Final = b"columns"
"""Key of the names of the columns in a file's metadata: a batch for each, block by block."""
NOT_WORDS: Final = frozenset(
    ("image_id", "content_hash", "etag", "format", "error_stage", "error_reason", "error_message")
)
"""Columns of text that are no metadata; `uri` has the names of files and folders."""


@dataclass(frozen=True, eq=False)
class WordIndex:
    """The words of `ntotal` rows: the blocks of each column."""

    ntotal: int
    columns: Mapping[str, Sequence[BlockWords]]

    @classmethod
    def open(cls, path: Path, ntotal: int) -> WordIndex:
        """Map a file of words. ValueError for a damaged one."""
        try:
            return cls(ntotal, _read(path, ntotal))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from error

    @classmethod
    def joined(
        cls, ntotal: int, own: WordIndex | None, further: WordIndex | None, replaced: Collection[str]
    ) -> WordIndex:
        """The words of columns of two files; those of `own` that were `replaced` do not count."""
        kept = {name: blocks for name, blocks in own.columns.items() if name not in replaced} if own else {}
        return cls(ntotal, {**kept, **(further.columns if further else {})})

    @property
    def starts(self) -> range:
        """The first row of each block."""
        return range(0, self.ntotal, BLOCK_ROWS)

    def with_terms(self, column: str, terms: Sequence[Term]) -> npt.NDArray[np.bool_]:
        """Which rows have all terms in a column, `(ntotal,)`; none if there are no terms."""
        mask = np.zeros(self.ntotal, bool)
        for start, block in zip(self.starts, self.columns[column], strict=True):
            mask[start + rows_with_all(block, terms).astype(np.int64)] = True
        return mask

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """How many rows have words in each column, and how many words."""
        lengths = {name: [block.lengths for block in blocks] for name, blocks in self.columns.items()}
        return {
            name: (sum(map(np.count_nonzero, each)), sum(int(block.sum(dtype=np.int64)) for block in each))
            for name, each in lengths.items()
        }


def matching(name: str, values: Any, terms: Sequence[Term]) -> npt.NDArray[np.bool_]:
    """Which values of a column, an Arrow array, have all terms; none if there are no terms."""
    mask = np.zeros(len(values), bool)
    for start in range(0, len(values), BLOCK_ROWS) if terms else ():
        block = BlockWords.of(texts_of(name, values.slice(start, BLOCK_ROWS)))
        mask[start + rows_with_all(block, terms).astype(np.int64)] = True
    return mask


def rows_with_all(block: BlockWords, terms: Sequence[Term]) -> npt.NDArray[np.uint16]:
    """The rows of a block that have all terms, ascending; none if there are no terms."""
    rows = np.empty(0, np.uint16)
    for number, term in enumerate(terms):
        found = block.find(term).rows
        rows = rows[is_among(rows, found)] if number else found
        if not len(rows):
            break
    return rows


def text_columns(schema: pa.Schema, chosen: Sequence[str] | None) -> list[str]:
    """The columns with words, or those of them that are `chosen`."""
    names = [field.name for field in schema if field.name not in NOT_WORDS and _has_text(field.type)]
    return names if chosen is None else [name for name in names if name in chosen]


def _has_text(kind: Any) -> bool:
    """Whether values are texts, or lists of them."""
    if pa.types.is_dictionary(kind) or is_list(kind):
        return _has_text(kind.value_type)
    return is_text(kind)


def texts_of(name: str, values: Any) -> Iterator[Sequence[str]]:
    """The texts of each value of a column, which may be null or a list."""
    read = path_of if name == "uri" else str
    for value in values.to_pylist():
        parts = value if isinstance(value, list) else (value,)
        yield [read(part) for part in parts if part is not None]


def write_words(
    path: Path,
    columns: Sequence[str],
    batches: Sequence[pa.RecordBatch],
    known: Mapping[str, Sequence[BlockWords | None]] | None = None,
) -> None:
    """Write the words of columns of some rows. The blocks that are `known`, by column, are copied."""
    table = pa.Table.from_batches([batch.select(list(columns)) for batch in batches])
    with pa.ipc.new_file(str(path), SCHEMA.with_metadata({_COLUMNS: json.dumps(list(columns))})) as writer:
        for number, start in enumerate(range(0, len(table), BLOCK_ROWS)):
            rows = table.slice(start, BLOCK_ROWS)
            for name in columns:
                blocks = known.get(name, ()) if known else ()
                block = blocks[number] if number < len(blocks) else None
                writer.write_batch((block or BlockWords.of(texts_of(name, rows[name]))).batch)


def _read(path: Path, ntotal: int) -> dict[str, list[BlockWords]]:
    schema, batches = read_batches(pa.memory_map(str(path)), expected=SCHEMA)
    columns = parse_json((schema.metadata or {}).get(_COLUMNS, b"null"))
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise ValueError("it does not name its columns")
    starts = range(0, ntotal, BLOCK_ROWS)
    if len(batches) != len(starts) * len(set(columns)):
        raise ValueError(f"it has {len(batches):,} blocks: expected those of {ntotal:,} rows")
    for number, batch in enumerate(batches):
        _require_sound(batch, min(BLOCK_ROWS, ntotal - starts[number // len(columns)]))
    blocks = list(map(BlockWords, batches))
    return {name: blocks[number :: len(columns)] for number, name in enumerate(columns)}


def _require_sound(batch: pa.RecordBatch, rows: int) -> None:
    """ValueError if values are missing, or rows."""
    words, lists = batch.columns
    values: Any = lists.values  # type: ignore[attr-defined]
    fields = [values.field(number) for number in range(2)]
    if any(each.null_count for each in (words, lists, values, *fields)):
        raise ValueError("it has nulls")
    if rows < BLOCK_ROWS and len(values) and np.from_dlpack(fields[0]).max() >= rows:
        raise ValueError(f"it has rows beyond the {rows:,} of a block")
