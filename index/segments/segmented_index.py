"""The segments of a version as one: positions run through all segments, and every row has the columns of all."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import LRUCache, cachedmethod

from index.arrays import Ids, Parts, Positions, Scores, Vectors, by_part, read_parts
from index.collection.rows import EMBEDDING, TILES, conform, number_array, unify
from index.errors import CollectionError
from index.filters.columns import Column
from index.filters.facets import MAX_ROWS, Counts, count_values
from index.filters.filter import Filter
from index.segments.eligible import Eligible
from index.segments.hits import Hits
from index.segments.nearest import Part, nearest
from index.segments.segment import Segment
from index.segments.vector_file import BLOCK_ROWS
from index.words.ranked import FoundWords, Statistics, WordQuery, WordRanking

_CACHE_BYTES = 64 << 20  # of the rows that pass recent filters, a bit for each row and filter
_JOINED = 1 << 16  # rows
_ENTRY_BYTES = 500  # of Python objects for each filter


class SegmentedIndex:
    """Searches `parts` and reads their rows. `schema` is the version's, if these are only some of its segments."""

    def __init__(self, segments: Sequence[Segment], schema: pa.Schema | None = None) -> None:
        self.parts = list(segments)
        self._starts = np.cumsum([0, *(segment.ntotal for segment in segments)])
        self.ntotal = int(self._starts[-1])  # including rows with tombstones
        self._grids = sorted({segment.tiles_per_row for segment in segments} - {0})
        self.schema = schema if schema is not None else union_schema([segment.schema for segment in segments])
        self._recast = [_recast(segment.schema, self.schema) for segment in segments]
        self._passing_by_filter: LRUCache[bytes, list[Eligible]] = LRUCache(_CACHE_BYTES, _size)
        self._lock = threading.Lock()

    @property
    def live_count(self) -> int:
        return sum(segment.live_count for segment in self.parts)

    def eligible(self, where: Filter | None) -> list[Eligible] | None:
        """The live rows that pass a filter, for each segment; None: all of them."""
        return None if where is None else self._passing(where)

    @cachedmethod(
        attrgetter("_passing_by_filter"),
        key=lambda _, where: hashlib.sha256(where.typed_key.encode()).digest(),
        lock=attrgetter("_lock"),
    )
    def _passing(self, where: Filter) -> list[Eligible]:
        return [segment.eligible(segment.passing(where)) for segment in self.parts]

    def eligible_at(self, positions: Positions) -> list[Eligible]:
        """The live rows among these positions, for each segment."""
        mask = np.zeros(self.ntotal, bool)
        mask[positions] = True
        return list(map(Segment.eligible, self.parts, np.split(mask, self._starts[1:-1])))

    def count_values(self, columns: Sequence[str], where: Filter | None = None) -> Counts:
        """How many rows have each value of these columns, counted in a sample if there are many rows."""
        positions = self.eligible_positions(self.eligible(where))
        blocks = np.split(positions, np.searchsorted(positions, np.arange(BLOCK_ROWS, self.ntotal, BLOCK_ROWS)))
        step = max(1, math.ceil(self.ntotal / MAX_ROWS))
        sample = self.batches_at(np.concatenate(blocks[::step]), ["image_id", *columns])
        return count_values(sample, [Column.of(self.schema.field(name)) for name in columns])

    def batches_at(self, positions: Positions, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows at these positions, which ascend, batch by batch, few of them as one; without columns that a segment
        lacks.
        """
        for segment, start in zip(self.parts, self._starts.tolist(), strict=False):
            names = [name for name in columns if name in segment.schema.names]
            bounds = np.searchsorted(positions, segment.starts + start)
            taken = _taken(segment.batches, names, positions - start, bounds.tolist())
            if bounds[-1] - bounds[0] <= _JOINED:
                # Each call of Arrow's takes longer than it does for thousands of rows.
                table = pa.Table.from_batches([*taken], pa.schema(map(segment.schema.field, names)))
                yield from table.combine_chunks().to_batches()
            else:
                yield from taken

    def table_at(self, positions: Positions, columns: Sequence[str]) -> pa.Table:
        """The rows at these positions, which ascend: `image_id`, then `columns`, null where a segment lacks one."""
        schema = pa.schema([self.schema.field(name) for name in dict.fromkeys(("image_id", *columns))])
        batches = self.batches_at(positions, schema.names)
        return pa.concat_tables(
            [pa.Table.from_batches([], schema), *(conform(pa.Table.from_batches([batch]), schema) for batch in batches)]
        )

    def sort_keys(self, positions: Positions, column: Column) -> npt.NDArray[np.object_]:
        """What the rows at these positions, which ascend, are sorted by."""
        keys = (column.sortable(batch).to_pylist() for batch in self.batches_at(positions, [column.name]))
        return np.array([key for part in keys for key in part], object)

    def search(
        self, queries: Vectors, k: int, eligible: Sequence[Eligible] | None = None, *, width: float = 1.0
    ) -> Hits:
        """The k nearest whole pictures. See `nearest`."""
        return nearest(self._whole(eligible), queries, k, width=width)

    def search_parts(
        self, queries: Vectors, k: int, eligible: Sequence[Eligible] | None = None, *, width: float = 1.0
    ) -> Hits:
        """Like `search`, but also among tiles: each picture once, by its nearest part."""
        hits = self.search(queries, k, eligible, width=width)
        if not self._grids:
            return hits
        found = [
            nearest(self._tiles(count, eligible), queries, k * count, width=width).of_tiles(count)  # k pictures or more
            for count in self._grids
        ]
        return Hits.joined([hits, *found]).distinct(k)

    def scores(self, query: Vectors, positions: Positions) -> tuple[Scores, Parts]:
        """Cosines of a query, `(1, dim)`, with the nearest part of each of these pictures, and which part that is."""
        scores, parts = np.empty(len(positions), np.float32), np.empty(len(positions), np.int64)
        for number, slots, local in by_part(positions, self._starts):
            of_parts = self.parts[number].part_scores(query, local)
            scores[slots], parts[slots] = of_parts.max(axis=0), of_parts.argmax(axis=0)
        return scores, parts

    def within(self, query: Vectors, min_score: float, eligible: Sequence[Eligible] | None = None) -> Hits:
        """All rows that score `min_score` or more, in no order."""
        return Hits.joined([part.within(query, min_score) for part in self._whole(eligible)])

    def parts_within(self, query: Vectors, min_score: float, eligible: Sequence[Eligible] | None = None) -> Hits:
        """Like `within`, but also among tiles: each picture once, by its best part, the best first."""
        found = [self.within(query, min_score, eligible)]
        for count in self._grids:
            found += [part.within(query, min_score).of_tiles(count) for part in self._tiles(count, eligible)]
        hits = Hits.joined(found)
        return hits.distinct(hits.scores.shape[1]) if self._grids else hits.best(hits.scores.shape[1])

    def scans(self, k: int, eligible: Sequence[Eligible] | None = None) -> bool:
        """Whether `search_parts` for the k nearest compares all of these rows."""
        parts = [(k, part) for part in self._whole(eligible)]
        parts += [(k * count, part) for count in self._grids for part in self._tiles(count, eligible)]
        return all(part.index.scans(depth, part.eligible) for depth, part in parts)

    def _whole(self, eligible: Sequence[Eligible] | None) -> list[Part]:
        """The vectors of whole pictures."""
        allowed: Sequence[Eligible | None] = eligible or [None] * len(self.parts)
        return list(map(Part, self.parts, allowed, self._starts.tolist()))

    def _tiles(self, count: int, eligible: Sequence[Eligible] | None) -> list[Part]:
        """The vectors of the tiles of pictures that have so many, in the order of their pictures' positions."""
        return [
            Part(segment.tiles, part.eligible.tiles if part.eligible else None, part.start * count)
            for segment, part in zip(self.parts, self._whole(eligible), strict=True)
            if segment.tiles is not None and segment.tiles_per_row == count
        ]

    def find_words(self, query: WordQuery) -> FoundWords:
        """Where the words of a query are."""
        return FoundWords.of([segment.words for segment in self.parts], self._starts[:-1].tolist(), query)

    def word_statistics(self, query: WordQuery) -> Statistics:
        """How often the words of a query occur."""
        return self.find_words(query).statistics

    def rank_words(
        self, query: WordQuery, found: FoundWords, eligible: Sequence[Eligible] | None = None
    ) -> tuple[Positions, Scores]:
        """The rows that a query finds, ascending, and their scores; see `WordRanking`."""
        allowed = [
            segment.mask_of(part.eligible) for segment, part in zip(self.parts, self._whole(eligible), strict=True)
        ]
        return WordRanking(found, query.statistics or found.statistics, query.k, allowed).rows

    def live_blocks(self) -> Iterator[tuple[Positions, Vectors]]:
        """Positions and vectors of all live rows, block by block."""
        for number in range(len(self.parts)):
            yield from self.live_blocks_of(number)

    def live_blocks_of(self, number: int, first: int = 0) -> Iterator[tuple[Positions, Vectors]]:
        """`live_blocks` of one segment, from its position `first`."""
        for positions, vectors in self.parts[number].live_blocks(first):
            yield positions + self._starts[number], vectors

    def eligible_positions(self, eligible: Sequence[Eligible] | None) -> Positions:
        """The positions of these rows; None: all live ones."""
        if eligible is None:
            return self.live_positions()
        starts = self._starts[:-1]
        return np.concatenate([np.flatnonzero(rows.mask) + start for rows, start in zip(eligible, starts, strict=True)])

    def count(self, eligible: Sequence[Eligible] | None, without: Positions) -> int:
        """The number of these rows (None: the live ones) that are not at the positions `without`; -1 is none."""
        without = without[without >= 0]
        if eligible is None:
            return self.live_count - len(without)
        among = (int(eligible[number].at(local).sum()) for number, _, local in by_part(without, self._starts))
        return sum(rows.count for rows in eligible) - sum(among)

    def live_positions(self, numbers: npt.NDArray[np.int64] | None = None) -> Positions:
        """Positions of the live rows, or of those with these numbers among the live rows."""
        if numbers is None:
            parts = zip(self.parts, self._starts, strict=False)
            return np.concatenate([segment.live_positions() + start for segment, start in parts])
        firsts = np.cumsum([0, *(segment.live_count for segment in self.parts)])
        live = np.empty(len(numbers), np.int64)
        return read_parts(
            live, numbers, firsts, lambda n, local: self.parts[n].live_positions()[local] + self._starts[n]
        )

    def positions(self, ids: pa.Array[Any]) -> Positions:
        """The positions of the live rows with these ids; -1 for an id without one."""
        if len(ids) > 1:
            encoded = ids.dictionary_encode()
            places = np.from_dlpack(encoded.indices)  # `to_numpy` would import pandas
            return self._positions(encoded.dictionary)[places]  # type: ignore[no-any-return]
        return self._positions(ids)

    def _positions(self, ids: pa.Array[Any]) -> Positions:
        """Those of ids that are distinct."""
        found = np.full(len(ids), -1, np.int64)
        for segment, start in zip(self.parts, self._starts, strict=False):
            positions = segment.positions(ids)
            found = np.where(positions >= 0, positions + start, found)
        return found

    def vectors(self, positions: Positions) -> Vectors:
        found = np.empty((len(positions), self.parts[0].dim), np.float32)
        return read_parts(found, positions, self._starts, lambda number, local: self.parts[number].vectors(local))

    def ids(self, positions: Positions) -> Ids:
        found = np.empty(len(positions), object)
        return read_parts(found, positions, self._starts, lambda number, local: self.parts[number].ids(local))

    def rows(self, positions: Positions, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The rows at these positions; a value is None if its segment lacks the column."""

        def read(number: int, local: Positions) -> list[dict[str, Any]]:
            segment = self.parts[number]
            rows = segment.rows(local, [name for name in columns if name in segment.schema.names])
            for name in self._recast[number].intersection(columns):
                values = pa.table([pa.array([row[name] for row in rows], segment.schema.field(name).type)], [name])
                with suppress(CollectionError):  # what no type can hold stays as it is
                    values = conform(values, pa.schema([self.schema.field(name)]))
                for row, value in zip(rows, values[name].to_pylist(), strict=True):
                    row[name] = value
            return [{name: row.get(name) for name in columns} for row in rows]

        return read_parts(np.empty(len(positions), object), positions, self._starts, read).tolist()


def _taken(
    batches: Sequence[pa.RecordBatch], names: list[str], positions: Positions, bounds: list[int]
) -> Iterator[pa.RecordBatch]:
    """The rows at positions in these batches; those in the n-th batch are from `bounds[n]` on."""
    start = 0
    for batch, (low, high) in zip(batches, pairwise(bounds), strict=True):
        if high - low == len(batch):
            yield batch.select(names)
        elif high > low:
            yield batch.select(names).take(number_array(positions[low:high] - start))
        start += len(batch)


def _size(eligible: Sequence[Eligible]) -> int:
    return _ENTRY_BYTES + sum(each.nbytes for each in eligible)


def union_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of all segments, without the vectors, which are stored elsewhere."""
    return pa.schema([field for field in unify(schemas) if field.name not in (EMBEDDING, TILES)])


def _recast(schema: pa.Schema, union: pa.Schema) -> frozenset[str]:
    """The columns with another type in the union, to which values are cast, as when segments are merged."""
    return frozenset(
        field.name for field in schema if field.name in union.names and field.type != union.field(field.name).type
    )
