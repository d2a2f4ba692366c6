"""The live rows of a collection, as the catalog finds them."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.catalog.catalog import Catalog, RunRows, Seqs, file_of, split_seq
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunManifest
from index.collection.rows import (
    EMBEDDING,
    TILES,
    conform,
    embedding_type,
    in_memory,
    metadata_columns,
    numbers_of,
    unify,
)
from index.collection.stored_rows import Part, StoredRows
from index.errors import CollectionError
from index.storage.storage import Storage

_HAVE_VECTORS = frozenset({EMBEDDING, TILES})
_IN_MEMORY = 1 << 16  # rows, without their vectors


class LiveRows:
    """Rows of `catalog` in the order in which they were written: the live ones of some `runs`, which are numbers in the
    catalog; or those at the places `seqs`. An index of them takes the vectors of `model` alone.
    """

    def __init__(
        self, catalog: Catalog, runs: Sequence[int], model: ModelRecord | None, seqs: Seqs | None = None
    ) -> None:
        self.catalog, self.runs, self.model, self._chosen = catalog, runs, model, seqs

    @classmethod
    def of_runs(cls, storage: Storage, runs: Sequence[RunManifest]) -> LiveRows:
        """The newest row of each id, unless it was deleted since. `runs` are sorted, oldest first."""
        catalog = Catalog(storage, [RunRows.of(storage, run) for run in runs])
        return cls(catalog, list(catalog.live_counts), runs[-1].model if runs else None)

    @classmethod
    def at(cls, catalog: Catalog, seqs: Seqs) -> LiveRows:
        """The rows that were written at these places, which are ascending, live or not."""
        runs = list(map(int, np.unique(split_seq(seqs)[0])))
        return cls(catalog, runs, catalog.runs[runs[-1]].model if runs else None, seqs)

    def __len__(self) -> int:
        if self._chosen is not None:
            return len(self._chosen)
        return sum(self.catalog.live_counts[run] for run in self.runs)

    @property
    def sources(self) -> list[str]:
        """The sources of the rows, each a `canonical_address`."""
        return sorted({self.catalog.runs[run].source for run in self.runs})

    def of_source(self, source: str) -> LiveRows:
        """The rows that a source's runs wrote; `source` is a `canonical_address`."""
        runs = [run for run in self.runs if self.catalog.runs[run].source == source]
        return LiveRows(self.catalog, runs, self.model)

    def of_model(self, model: ModelRecord) -> LiveRows:
        """The rows, including rejects, that the runs of a model (or of a copy of it) wrote."""
        runs = [run for run in self.runs if self.catalog.runs[run].model.agrees_with(model)]
        return LiveRows(self.catalog, runs, model)

    def take(self, positions: npt.NDArray[np.int64]) -> LiveRows:
        """The rows at these positions, which are ascending."""
        return LiveRows(self.catalog, self.runs, self.model, self._seqs[positions])

    @cached_property
    def _seqs(self) -> Seqs:
        if self._chosen is not None:
            return self._chosen
        return numbers_of(self.catalog.table(f"SELECT seq FROM {self._source} ORDER BY seq")["seq"])

    @property
    def sql(self) -> str:
        """These rows, but for a choice by `take`, in the queries of any catalog."""
        return f"(FROM {self.catalog.name}.live_rows WHERE run IN ({', '.join(map(str, self.runs)) or 'NULL'}))"

    @property
    def _source(self) -> str:
        """The rows in queries of this catalog that name `_choice`."""
        return self.sql if self._chosen is None else "(FROM written SEMI JOIN chosen USING (seq))"

    @property
    def _choice(self) -> dict[str, pa.Table]:
        return {} if self._chosen is None else {"chosen": pa.table({"seq": self._chosen})}

    @property
    def metadata(self) -> list[str]:
        return metadata_columns(self._facts)

    @cached_property
    def _facts(self) -> pa.Schema:
        return self.catalog.schema_of(self.runs)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all rows. ModelMismatchError if their vectors differ in length."""
        models = [self.catalog.runs[run].model for run in self.runs] or ([self.model] if self.model else [])
        facts = self._facts.remove(self._facts.get_field_index(EMBEDDING))
        return unify([facts, *map(_vector_columns, dict.fromkeys(models))])

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
        if not _HAVE_VECTORS.isdisjoint(schema.names):
            return conform(self._stored(self._seqs).read(schema.names), schema)
        tables = self.catalog.read(schema, f"{self._source} ORDER BY seq", max(1, len(self)), **self._choice)
        return pa.concat_tables([pa.Table.from_batches([], schema), *tables])

    def embedded(self, annotations: Sequence[LiveRows] = ()) -> Iterator[pa.RecordBatch]:
        """The rows that have an embedding, in batches of at most `BATCH_ROWS`, with the values of their annotations."""
        for seqs, values in self._whole_files(annotations):
            yield from self._stored(seqs).embedded(values)

    def _whole_files(self, annotations: Sequence[LiveRows]) -> Iterator[tuple[Seqs, pa.Table]]:
        """The places of all rows, ascending, and the values of annotations, in parts that end with the last row of a
        file.
        """
        seqs, values = np.empty(0, np.int64), list[pa.Table]()
        rows = f"(SELECT seq AS number, image_id, content_hash FROM {self._source})"
        for numbers, found in annotation_values(self.catalog, rows, annotations, **self._choice):
            seqs, table = np.concatenate([seqs, numbers]), pa.concat_tables([*values, found])
            files = file_of(seqs)
            complete = int(np.searchsorted(files, files[-1]))
            yield seqs[:complete], table.slice(0, complete)
            seqs, values = seqs[complete:], [table.slice(complete)]
        for table in values:
            yield seqs, table

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
        return StoredRows(self.catalog.storage, parts, self.schema, self.model)


def annotation_values(
    catalog: Catalog, rows: str, annotations: Sequence[LiveRows], /, **tables: pa.Table
) -> Iterator[tuple[npt.NDArray[np.int64], pa.Table]]:
    """The `number` of each of some rows, ascending, and beside it the metadata of the row's annotations: null if one
    lacks the image, or has it with other content. The rows are a query of `catalog`, which may name Arrow `tables`,
    with the columns `number`, `image_id` and `content_hash`.
    """
    select, joins = "SELECT number", f"FROM {rows}"
    fields: list[pa.Field[Any]] = []
    for number, each in enumerate(annotations):
        schema = each.schema_of(each.metadata)
        columns = each.catalog.columns(schema.names)
        select += f", a{number}.* EXCLUDE (id, hash)"
        joins += (
            f" LEFT JOIN (SELECT image_id AS id, content_hash AS hash, {columns} FROM {each.sql}) AS a{number}"
            f" ON a{number}.id = image_id AND a{number}.hash IS NOT DISTINCT FROM content_hash"
        )
        fields += schema
    names, schema = [field.name for field in fields], pa.schema({field.name: field for field in fields}.values())
    with catalog.query(f"{select} {joins} ORDER BY number", _IN_MEMORY, **tables) as batches:
        for numbers, *values in (batch.columns for batch in batches):
            yield numbers_of(numbers), conform(pa.table(dict(zip(names, values, strict=True))), schema)


def _vector_columns(model: ModelRecord) -> pa.Schema:
    sizes = {EMBEDDING: model.dim} | ({TILES: model.dim * len(model.boxes)} if model.boxes else {})
    return pa.schema([pa.field(name, embedding_type(size)) for name, size in sizes.items()])
