"""Listings on this machine's disk, as files of facts, so that they need no memory in proportion to a source."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.collection.catalog.catalog import NO_RUN, Catalog, RunRows, Seqs, split_seq
from index.collection.catalog.row_facts import MAX_POSITIONS, read_schema, write_table_facts
from index.collection.records.run_manifest import RowFile
from index.collection.rows import TEXT, conform, in_memory, metadata_columns
from index.storage.scratch import Scratch
from jobs.sources.listing import FILE_FACTS, LISTING, REFUSAL, common_schema, without_types_of_nulls

ROWS: Final = 1 << 17  # in memory
_BYTES: Final = 1 << 28
_STORED: Final = "written"
"""The view of a listing as its files have it."""


class Listing:
    """The images of a source: the rows of a `view` of `catalog`, in the order of `seq`."""

    def __init__(self, catalog: Catalog, view: str = _STORED) -> None:
        self.catalog, self.view = catalog, f"{catalog.name}.{view}"
        self._is_stored = view == _STORED

    @classmethod
    def of(cls, tables: Iterable[pa.Table]) -> Listing:
        """A listing with the rows of several, see `ListingWriter`."""
        writer = ListingWriter()
        for table in tables:
            writer.add(table)
        return writer.listing()

    @cached_property
    def num_rows(self) -> int:
        return self.count("true")

    def count(self, where: str) -> int:
        """How many rows there are that satisfy a condition in SQL."""
        [row] = self.catalog.table(f"SELECT count(*) AS rows FROM {self.view} WHERE {where}").to_pylist()
        return int(row["rows"])

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of `LISTING`, then metadata. Columns without any value are text."""
        found = in_memory(self.catalog.schema_of())
        metadata = (found.field(name) for name in metadata_columns(found))
        return pa.schema(
            [*LISTING, *(field.with_type(TEXT) if field.type == pa.null() else field for field in metadata)]
        )

    @cached_property
    def whole_schema(self) -> pa.Schema:
        """The same, and why rows are refused, and what is known of their files."""
        return pa.schema([*self.schema, *REFUSAL, *FILE_FACTS])

    def read(self, names: Sequence[str] | None = None, where: str = "true", **tables: pa.Table) -> pa.Table:
        """These columns of the rows that satisfy a condition in SQL, which may name Arrow `tables`; by default, the
        columns of `schema` of all rows.
        """
        schema = self.schema if names is None else pa.schema([self.whole_schema.field(name) for name in names])
        found = self.catalog.read(schema, f"{self.view} WHERE {where} ORDER BY seq", ROWS, **tables)
        return pa.concat_tables([schema.empty_table(), *found])

    def tables(self, rows: int | None = None) -> Iterator[pa.Table]:
        """The images, with the columns of `whole_schema`, in tables of `rows` rows each, but for the last; by default
        as they are read, a row group at a time.
        """
        if self._is_stored:
            read = self._stored_tables()
        else:
            read = (images for _, images in self.beside(f"SELECT seq AS number FROM {self.view}"))
        if rows is None:
            yield from read
            return
        rest = self.whole_schema.empty_table()
        for images in read:
            rest = pa.concat_tables([rest, images])
            while rest.num_rows >= rows:
                yield rest.slice(0, rows)
                rest = rest.slice(rows)
        if rest.num_rows:
            yield rest

    def _stored_tables(self) -> Iterator[pa.Table]:
        """From the files: DuckDB would sort all rows before the first one comes."""
        for file, group, *_ in self._row_groups:
            yield conform(_read(self._folder, file, group), self.whole_schema)

    def beside(self, answer: str, rows: int = ROWS) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The answer to a query in this catalog, in the order of its `number`, and beside it the images with these
        `seq`, with the columns of `whole_schema`, in tables of at most `rows`.

        Metadata is read from the files, as DuckDB takes 2,048 rows at a time, whose text may be larger than its memory.
        """
        names = [*LISTING.names, *REFUSAL.names, *FILE_FACTS.names]
        images = f"(SELECT seq, {self.catalog.columns(names)} FROM {self.view}) AS image"
        sql = f"SELECT answer.*, image.* EXCLUDE (seq) FROM ({answer}) AS answer JOIN {images} ON image.seq = number"
        for found in self.catalog.query(f"{sql} ORDER BY number", rows):
            first, start = found.num_columns - len(names), 0
            for metadata in self._metadata(np.asarray(found["number"], np.int64)):
                part = found.slice(start, len(metadata))
                columns = [*part.columns[first:], *metadata.columns[1:]]
                listed = pa.table(columns, names=[*names, *metadata.column_names[1:]])
                yield part.select(range(first)), conform(listed, self.whole_schema)
                start += len(metadata)

    def _metadata(self, seqs: Seqs) -> Iterator[pa.Table]:
        """The metadata of the images at these places, which are ascending, in tables that have a column before it."""
        names, done = list(self.schema.names)[len(LISTING) :], 0
        if not names:
            yield pa.table([pa.nulls(len(seqs))], names=[""])
            return
        _, files, positions = split_seq(seqs)
        numbers = files * MAX_POSITIONS + positions
        for file, group, first, end in self._row_groups:
            if (until := int(np.searchsorted(numbers, end))) > done:
                rows = _read(self._folder, file, group, [LISTING.names[0], *names])  # some may have no metadata
                yield rows.take(pa.array(numbers[done:until] - first))
                done = until

    @cached_property
    def _row_groups(self) -> list[tuple[RowFile, int, int, int]]:
        """The row groups of the files, each with its number there, and its first row and the one after its last."""
        found, first = list[tuple[RowFile, int, int, int]](), 0
        for file in self.catalog.runs[0].facts or ():
            metadata = pq.read_metadata(self._folder / file.path)
            for group in range(metadata.num_row_groups):
                end = first + metadata.row_group(group).num_rows
                found.append((file, group, first, end))
                first = end
        return found

    @property
    def _folder(self) -> Path:
        [run] = self.catalog.runs
        if run.here is None:
            raise TypeError("expected the catalog of a ListingWriter")
        return run.here.path

    def changed(self, select: str) -> Listing:
        """The listing that a query gives, whose columns are those of this one; `{listing}` in it is this one."""
        name = f"changed_{next(_numbers)}"
        self.catalog.create(f"CREATE VIEW {name} AS {select.replace('{listing}', self.view)}")
        return Listing(self.catalog, name)


_numbers = itertools.count()


class ListingWriter:
    """Writes listings, one after the other, as one. Each column gets a type that holds all its values, and null where a
    listing lacks it. Where no other type holds them, such as that of 2**60 and 1.5, it is text.
    """

    def __init__(self) -> None:
        self._pending, self._kinds = list[pa.Table](), dict[str, pa.DataType]()
        self._files = list[RowFile]()
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:  # its columns would decide about types
            return
        table = without_types_of_nulls(table)
        kinds = {field.name: field.type for field in table.schema if not pa.types.is_null(field.type)}
        if any(self._kinds.get(name, kind) != kind for name, kind in kinds.items()):
            self._flush()
        self._kinds |= kinds
        self._pending.append(table)
        self.rows += table.num_rows
        if sum(each.num_rows for each in self._pending) >= ROWS or sum(each.nbytes for each in self._pending) >= _BYTES:
            self._flush()

    @cached_property
    def _scratch(self) -> Scratch:
        return Scratch("listing")

    def _flush(self) -> None:
        if self._pending:
            rows = pa.concat_tables(self._pending, promote_options="default")
            self._files += write_table_facts(self._scratch.storage, NO_RUN, rows, self.rows - rows.num_rows)
            self._pending.clear()
            self._kinds.clear()

    def listing(self) -> Listing:
        """What was written so far."""
        self._flush()
        self._settle_types()
        run = RunRows(facts=self._files, here=self._scratch)
        return Listing(Catalog(self._scratch.storage, [run], live=False))

    def _settle_types(self) -> None:
        """Write files again whose columns have other types than those of others."""
        folder = self._scratch.path
        schemas = [in_memory(read_schema(folder / file.path, file)) for file in self._files]
        kinds = {(field.name, field.type) for schema in schemas for field in schema if field.type != pa.null()}
        if len(kinds) == len({name for name, _ in kinds}):
            return
        read = partial(_read, folder)
        common, start, files = common_schema(map(read, self._files), map(read, self._files)), 0, list[RowFile]()
        for file, schema in zip(self._files, schemas, strict=True):
            wanted = pa.schema([common.field(name) for name in schema.names])
            if wanted == schema:
                files.append(file)
            else:
                files += write_table_facts(self._scratch.storage, NO_RUN, conform(read(file), wanted), start)
            start += file.rows
        self._files = files


def _read(folder: Path, file: RowFile, group: int | None = None, names: Sequence[str] | None = None) -> pa.Table:
    """The rows of a file, or of a row group, with the types that they had; those of these columns that it has."""
    schema = in_memory(read_schema(folder / file.path, file))
    schema = pa.schema([field for field in schema if names is None or field.name in names])
    with pq.ParquetFile(folder / file.path) as parquet:
        groups = range(parquet.num_row_groups) if group is None else [group]
        rows = parquet.read_row_groups(list(groups), schema.names)
    return conform(rows.select(schema.names), schema)


class StoredTables:
    """Tables, with the `schemas` that they have, metadata of their fields included."""

    def __init__(self) -> None:
        self._scratch, self.schemas = Scratch("tables"), list[pa.Schema]()

    def add(self, table: pa.Table) -> None:
        path, options = self._path(len(self.schemas)), pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
        self.schemas.append(table.schema)

    def read(self, number: int, options: pa.ipc.IpcReadOptions | None = None) -> pa.Table:
        with pa.OSFile(self._path(number), "rb") as file, pa.ipc.open_file(file, options=options) as reader:
            return reader.read_all()

    def column(self, number: int, name: str) -> pa.ChunkedArray[Any]:
        """A column of a table, read alone."""
        wanted = [self.schemas[number].get_field_index(name)]
        return self.read(number, pa.ipc.IpcReadOptions(included_fields=wanted))[0]

    def columns(self, name: str) -> Iterator[pa.ChunkedArray[Any]]:
        """A column that all tables have, of each."""
        return (self.column(number, name) for number in range(len(self.schemas)))

    def _path(self, number: int) -> str:
        return str(self._scratch.path / f"{number:06}.arrow")
