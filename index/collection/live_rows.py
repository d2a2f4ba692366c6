"""The live rows of a collection: its runs folded so that the newest row of an id wins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.records import ModelRecord, RowFile, RunManifest
from index.collection.row_files import damaged_run, fetch, map_in_threads, open_rows, read_ids, read_schema, valid
from index.collection.rows import (
    EMBEDDING,
    TILES,
    conform,
    in_memory,
    metadata_columns,
    newest_positions,
    row_schema,
    unify,
)
from index.errors import CollectionError, ModelMismatchError
from index.storage.storage import Storage, canonical_address

_AHEAD = 64 << 20  # bytes of row files that are fetched in parallel before the first one is read


@dataclass(frozen=True)
class _Part:
    """A row file of a run, and the ascending positions of its selected rows; None: all of them."""

    file: RowFile
    schema: pa.Schema
    source: str = ""
    model: ModelRecord | None = None
    keep: str | None = None
    exif: bool = False
    positions: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.file.rows if self.positions is None else len(self.positions)

    def at(self, positions: npt.NDArray[np.int64]) -> _Part:
        return replace(self, positions=positions if len(positions) < self.file.rows else None)


class LiveRows:
    """Rows of some row files, in the order in which they were written. No other files are read."""

    def __init__(self, storage: Storage, parts: Sequence[_Part], model: ModelRecord | None) -> None:
        self._storage = storage
        self._parts = parts
        self._model = model

    @classmethod
    def of_files(cls, storage: Storage, files: Sequence[RowFile]) -> LiveRows:
        schemas = _deduplicated(map_in_threads(partial(read_schema, storage), files))
        return cls(storage, list(map(_Part, files, schemas)), None)

    @classmethod
    def of_runs(cls, storage: Storage, runs: Sequence[RunManifest]) -> LiveRows:
        """The newest row of each id, unless it was deleted since. `runs` are sorted, oldest first.

        A run's deletes apply only to the runs before it. A reject hides the earlier embedding of its id.
        """
        files: list[tuple[RowFile, RunManifest | None]] = []
        for run in runs:
            if run.deletes:
                files.append((run.deletes, None))
            files += [(file, run) for file in run.files]
        read = map_in_threads(partial(read_ids, storage), [file for file, _ in files])
        schemas = _deduplicated([schema for _, schema in read])
        for (file, maker), schema in zip(files, schemas, strict=True):
            if maker and (dim := schema.field(EMBEDDING).type.list_size) != maker.model.dim:
                raise damaged_run(file.path, f"vectors of {dim} dimensions, its run's model has {maker.model.dim}")
        newest = newest_positions([ids for ids, _ in read])
        live = [
            _Part(file, schema, canonical_address(run.source), run.model, run.keep, run.exif).at(positions)
            for (file, run), schema, positions in zip(files, schemas, newest, strict=True)
            if run and len(positions)
        ]
        return cls(storage, live, runs[-1].model if runs else None)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def sources(self) -> list[str]:
        """The sources of the rows, each a `canonical_address`."""
        return sorted({part.source for part in self._parts})

    def of_source(self, source: str) -> LiveRows:
        """The rows that a source's runs wrote; `source` is a `canonical_address`."""
        return self._with_parts([part for part in self._parts if part.source == source], self._model)

    def of_model(self, model: ModelRecord) -> LiveRows:
        """The rows, including rejects, that the runs of a model (or of a copy of it) wrote."""
        return self._with_parts([part for part in self._parts if _agree(part.model, model)], model)

    def of_keep(self, keep: str | None) -> LiveRows:
        """The rows of runs that filtered their images with this expression."""
        return self._with_parts([part for part in self._parts if part.keep == keep], self._model)

    def of_exif(self, exif: bool) -> LiveRows:
        """The rows of runs that read EXIF, or of those that did not."""
        return self._with_parts([part for part in self._parts if part.exif == exif], self._model)

    def of_text(self, column: str) -> LiveRows:
        """The rows of files in which a column is text."""
        texts = [
            part
            for part in self._parts
            if column in part.schema.names and part.schema.field(column).type == pa.string()
        ]
        return self._with_parts(texts, self._model)

    def _with_parts(self, parts: list[_Part], model: ModelRecord | None) -> LiveRows:
        if len(parts) == len(self._parts) and _agree(model, self._model):
            return self  # its `schema` may be cached
        return LiveRows(self._storage, parts, model)

    def take(self, positions: npt.NDArray[np.int64]) -> LiveRows:
        """The rows at these positions, which are ascending; files without any of them are not read."""
        ends = np.cumsum([len(part) for part in self._parts])
        cuts = np.searchsorted(positions, ends)
        parts = []
        for part, low, high, end in zip(self._parts, [0, *cuts], cuts, ends, strict=False):
            if low < high:
                here = positions[low:high] - (end - len(part))
                parts.append(part.at(here if part.positions is None else part.positions[here]))
        return LiveRows(self._storage, parts, self._model)

    @property
    def metadata(self) -> list[str]:
        return list(dict.fromkeys(name for part in self._parts for name in metadata_columns(part.schema)))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all files together. ModelMismatchError when their vectors differ in length."""
        if not self._parts:
            return row_schema(self._model.dim if self._model else 0)
        return unify([part.schema for part in self._parts])

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """These columns (None: all) as one table. CollectionError names a column that no file has."""
        schema = self.schema_of(columns)
        tables = map_in_threads(lambda part: self._read_part(part, schema), self._parts)
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def parts(self, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """What `read` returns, in tables of whole files with about `rows` rows each."""
        schema = self.schema_of(columns)
        for files in _slices(list(map(len, self._parts)), rows):
            yield pa.concat_tables(map_in_threads(lambda part: self._read_part(part, schema), self._parts[files]))

    def embedded(self, batch_rows: int = 16_384) -> Iterator[pa.RecordBatch]:
        """The rows that have an embedding, in batches of at most `batch_rows`."""
        for part, data in self._fetch_parts():
            for table in self._batches(part, data, batch_rows):
                rows = table.filter(table.column(EMBEDDING).is_valid())
                if rows.num_rows and not _agree(part.model, self._model):
                    raise ModelMismatchError(
                        f"{part.file.path} has live vectors of {part.model}, the newest run has those of "
                        f"{self._model}: an index takes one model's vectors, so embed every image with one model"
                    )
                yield from conform(rows, self.schema).combine_chunks().to_batches()

    def _fetch_parts(self) -> Iterator[tuple[_Part, bytes | None]]:
        """The parts with their files' content; None: too large to keep in memory."""
        for files in _slices([part.file.size for part in self._parts], _AHEAD):
            parts = self._parts[files]
            data = map_in_threads(partial(fetch, self._storage), [part.file for part in parts])
            yield from zip(parts, data, strict=True)

    def split(self, rows: int) -> list[LiveRows]:
        """The same rows, in equal shares of at most `rows`."""
        parts = max(1, math.ceil(len(self) / rows))
        rows = math.ceil(len(self) / parts)
        shares: list[list[_Part]] = []
        room = 0
        for part in self._parts:
            positions = np.arange(part.file.rows) if part.positions is None else part.positions
            while len(positions):
                if room == 0:
                    shares.append([])
                    room = rows
                here, positions = positions[:room], positions[room:]
                shares[-1].append(part.at(here))
                room -= len(here)
        return [LiveRows(self._storage, share, self._model) for share in shares]

    def schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of what `read` returns."""
        if columns is None:
            return in_memory(self.schema)
        if EMBEDDING in columns:
            schema = self.schema
        else:  # without embeddings, rows of two models fit into one table
            schemas = [
                pa.schema([*(field for field in part.schema if field.name not in (EMBEDDING, TILES)), _NO_EMBEDDING])
                for part in self._parts
            ]
            schema = unify(schemas)
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise CollectionError(f"no column {', '.join(unknown)}: expected some of {', '.join(schema.names)}")
        return in_memory(pa.schema([schema.field(name) for name in columns]))

    def _read_part(self, part: _Part, schema: pa.Schema) -> pa.Table:
        data = fetch(self._storage, part.file) if EMBEDDING in schema.names else None
        with open_rows(self._storage, part.file, data) as file:
            names = [name for name in schema.names if name in file.schema_arrow.names]
            # Parquet reads "a" as every column nested in it, and "a.b" as one of them, so select by name afterwards.
            table = conform(valid(file.read(columns=[*names, "image_id"])).select(names), schema)
        return table if part.positions is None else table.take(part.positions)

    def _batches(self, part: _Part, data: bytes | None, batch_rows: int) -> Iterator[pa.Table]:
        with open_rows(self._storage, part.file, data) as file:
            start = 0
            for batch in map(valid, file.iter_batches(batch_size=batch_rows)):
                if part.positions is None:
                    yield pa.Table.from_batches([batch])
                else:
                    low, high = np.searchsorted(part.positions, [start, start + len(batch)])
                    yield pa.Table.from_batches([batch]).take(part.positions[low:high] - start)
                start += len(batch)


def _agree(one: ModelRecord | None, other: ModelRecord | None) -> bool:
    return one == other or (one is not None and other is not None and one.agrees_with(other))


_NO_EMBEDDING = row_schema(0).field(EMBEDDING)


def _slices(sizes: Sequence[int], max_total: int) -> Iterator[slice]:
    """Consecutive items whose sizes add up to at most `max_total`, or a single larger one."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = ends[first - 1] if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + max_total, side="right")))
        yield slice(first, end)
        first = end


def _deduplicated(schemas: Sequence[pa.Schema]) -> list[pa.Schema]:
    """Equal schemas as one object: a segment's job is sent to a worker and names thousands of files."""
    unique: dict[pa.Schema, pa.Schema] = {}
    return [unique.setdefault(schema, schema) for schema in schemas]
