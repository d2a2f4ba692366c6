"""Rows of a collection: the live ones, or all of some row files, as the catalog finds them."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.catalog.catalog import Catalog, RunRows, Seqs, file_of, split_seq
from index.collection.records import ModelRecord, RowFile, RunManifest
from index.collection.row_files import map_in_threads, read_schema
from index.collection.rows import (
    EMBEDDING,
    TILES,
    conform,
    embedding_type,
    in_memory,
    metadata_columns,
    row_schema,
    unify,
)
from index.collection.stored_rows import Part, StoredRows, agree
from index.errors import CollectionError
from index.storage.storage import Storage

_HAVE_VECTORS = frozenset({EMBEDDING, TILES})
_SEQS = 1 << 16  # places of rows in memory
_SEQ = "\x1fseq"  # hardly the name of a column


class LiveRows:
    """Rows of `catalog` in the order in which they were written: those that some `runs` (numbers in the catalog) wrote
    and that are live, or, of files, all.
    """

    def __init__(
        self, catalog: Catalog, runs: Sequence[int], model: ModelRecord | None, *, view: str, seqs: Seqs | None = None
    ) -> None:
        self.catalog, self.runs, self._model, self._view, self._chosen = catalog, runs, model, view, seqs

    @classmethod
    def of_files(cls, storage: Storage, files: Sequence[RowFile]) -> LiveRows:
        catalog = Catalog(storage, [RunRows(files=files)], live=False)
        return cls(catalog, [0], None, view="written")

    @classmethod
    def of_runs(cls, storage: Storage, runs: Sequence[RunManifest]) -> LiveRows:
        """The newest row of each id, unless it was deleted since. `runs` are sorted, oldest first."""
        catalog = Catalog(storage, list(map(RunRows.of, runs)))
        return cls(catalog, list(catalog.live_counts), runs[-1].model if runs else None, view="live_rows")

    @classmethod
    def at(cls, catalog: Catalog, seqs: Seqs) -> LiveRows:
        """The rows that were written at these places, which are ascending."""
        return cls(catalog, list(map(int, np.unique(split_seq(seqs)[0]))), None, view="written", seqs=seqs)

    def __len__(self) -> int:
        if self._chosen is not None:
            return len(self._chosen)
        if self._view == "written":
            return sum(file.rows for run in self.runs for file in self.catalog.runs[run].files)
        return sum(self.catalog.live_counts[run] for run in self.runs)

    @property
    def sources(self) -> list[str]:
        """The sources of the rows, each a `canonical_address`."""
        return sorted({self.catalog.runs[run].source for run in self.runs})

    def of_source(self, source: str) -> LiveRows:
        """The rows that a source's runs wrote; `source` is a `canonical_address`."""
        return self._of([run for run in self.runs if self.catalog.runs[run].source == source], self._model)

    def of_model(self, model: ModelRecord) -> LiveRows:
        """The rows, including rejects, that the runs of a model (or of a copy of it) wrote."""
        return self._of([run for run in self.runs if agree(self.catalog.runs[run].model, model)], model)

    def _of(self, runs: list[int], model: ModelRecord | None) -> LiveRows:
        if len(runs) == len(self.runs) and agree(model, self._model):
            return self  # its `schema` may be cached
        return LiveRows(self.catalog, runs, model, view=self._view)

    def take(self, positions: npt.NDArray[np.int64]) -> LiveRows:
        """The rows at these positions, which are ascending."""
        return LiveRows(self.catalog, self.runs, self._model, view=self._view, seqs=self._seqs[positions])

    @cached_property
    def _seqs(self) -> Seqs:
        if self._chosen is not None:
            return self._chosen
        seqs = self.catalog.table(f"SELECT seq FROM {self._view} WHERE {self._in_runs} ORDER BY seq")["seq"]
        return np.asarray(seqs, np.int64)

    @property
    def _in_runs(self) -> str:
        return f"run IN ({', '.join(map(str, self.runs)) or 'NULL'})"

    @property
    def sql(self) -> str:
        """These rows, but for a choice by `take`, in the queries of any catalog."""
        return f"(FROM {self.catalog.name}.{self._view} WHERE {self._in_runs})"

    @property
    def metadata(self) -> list[str]:
        return metadata_columns(self._facts)

    @cached_property
    def _facts(self) -> pa.Schema:
        return self.catalog.schema_of(self.runs)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all rows. ModelMismatchError if their vectors differ in length."""
        if not self.runs:
            return row_schema(self._model.dim if self._model else 0)
        return unify([schema for run in self.runs for schema in self._schemas_of(run)])

    def _schemas_of(self, run: int) -> list[pa.Schema]:
        if (model := self.catalog.runs[run].model) is None:
            return map_in_threads(partial(read_schema, self.catalog.storage), self.catalog.runs[run].files)
        facts = self.catalog.schema_of([run])
        schema = facts.set(facts.names.index(EMBEDDING), pa.field(EMBEDDING, embedding_type(model.dim)))
        tiles = [pa.field(TILES, embedding_type(model.dim * len(model.boxes)))] if model.boxes else []
        return [pa.schema([*schema, *tiles])]

    def schema_of(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of what `read` returns."""
        if columns is None:
            return in_memory(self.schema)
        # Without embeddings, rows of two models fit into one table.
        schema = self.schema if not _HAVE_VECTORS.isdisjoint(columns) else self._facts
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise CollectionError(f"no column {', '.join(unknown)}: expected some of {', '.join(schema.names)}")
        return in_memory(pa.schema([schema.field(name) for name in columns]))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """These columns (None: all) as one table. CollectionError names a column that no file has."""
        schema = self.schema_of(columns)
        return pa.concat_tables([schema.empty_table(), *self._tables(schema, max(1, len(self)))])

    def parts(self, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """What `read` returns, in tables of about `rows` rows each."""
        return self._tables(self.schema_of(columns), rows)

    def _tables(self, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
        if not _HAVE_VECTORS.isdisjoint(schema.names):
            for table in self._stored(self._seqs).tables(schema.names, rows):
                yield conform(table, schema)
            return
        yield from self.catalog.read(schema, f"{self._source} ORDER BY seq", rows, **self._choice)

    def embedded(self, batch_rows: int = 16_384, annotations: Sequence[LiveRows] = ()) -> Iterator[pa.RecordBatch]:
        """The rows that have an embedding, in batches of at most `batch_rows`, with the metadata of their annotations:
        null if one lacks the image, or has it with other content.
        """
        for table in self._whole_files(annotations):
            yield from self._stored(np.asarray(table[_SEQ], np.int64)).embedded(batch_rows, table.drop_columns(_SEQ))

    def _whole_files(self, annotations: Sequence[LiveRows]) -> Iterator[pa.Table]:
        """`_SEQ` of all rows, ascending, and their annotations, in tables that end with the last row of a file."""
        select, joins, fields = "SELECT seq", f"FROM (FROM {self._source})", [pa.field(_SEQ, pa.int64())]
        for number, each in enumerate(annotations):
            schema = each.schema_of(each.metadata)
            columns = each.catalog.columns(schema.names)
            select += f", a{number}.* EXCLUDE (id, hash)"
            joins += (
                f" LEFT JOIN (SELECT image_id AS id, content_hash AS hash, {columns} FROM {each.sql}) AS a{number}"
                f" ON a{number}.id = image_id AND a{number}.hash IS NOT DISTINCT FROM content_hash"
            )
            fields += schema
        names = [field.name for field in fields]
        rest = pa.schema({field.name: field for field in fields}.values()).empty_table()
        with self.catalog.query(f"{select} {joins} ORDER BY seq", _SEQS, **self._choice) as reader:
            for batch in reader:
                values = pa.table(dict(zip(names, batch.columns, strict=True)))
                rest = pa.concat_tables([rest, conform(values, rest.schema)])
                files = file_of(np.asarray(rest[_SEQ]))
                complete = int(np.searchsorted(files, files[-1]))
                yield rest.slice(0, complete)
                rest = rest.slice(complete)
        yield rest

    @property
    def _source(self) -> str:
        """The rows in queries of this catalog that name `_choice`."""
        return f"{self._view} {'SEMI JOIN chosen USING (seq)' if self._choice else f'WHERE {self._in_runs}'}"

    @property
    def _choice(self) -> dict[str, pa.Table]:
        return {} if self._chosen is None else {"chosen": pa.table({"seq": self._chosen})}

    def split(self, rows: int) -> list[StoredRows]:
        """The same rows, in equal shares of at most `rows`."""
        shares = max(1, math.ceil(len(self) / rows))
        size = max(1, math.ceil(len(self) / shares))
        return [self._stored(self._seqs[start : start + size]) for start in range(0, len(self), size)]

    def _stored(self, seqs: Seqs) -> StoredRows:
        bounds = [*np.flatnonzero(np.diff(file_of(seqs), prepend=-1)), len(seqs)]
        parts = []
        for start, end in pairwise(bounds):
            runs, files, positions = split_seq(seqs[start:end])
            run = self.catalog.runs[runs[0]]
            file = run.files[files[0]]
            parts.append(Part(file, run.model, None if len(positions) == file.rows else positions.astype(np.int32)))
        return StoredRows(self.catalog.storage, parts, self.schema, self._model)
