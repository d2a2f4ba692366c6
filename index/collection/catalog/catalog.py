"""The catalog of a collection: DuckDB over the facts of its runs, to be asked in SQL.

- `written` has every row that the runs wrote, in the order of `seq`, which also says where the row is (`split_seq`).
  Columns of the source's metadata are named `m0`, `m1`, …, because DuckDB ignores case in names.
- `dead` has the `seq` of the rows that a newer one of their id replaces, or that were deleted since. A run's deletes
  apply only to the runs before it, and a reject hides the earlier embedding of its id.
- `live_rows` has the other rows of `written`. They are not listed, because there are far more of them.
- `deleted` has the ids that the runs delete, each with a `seq` before that of the run's rows.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.catalog.database import database, run_statement
from index.collection.catalog.row_facts import MAX_POSITIONS, read_schema, write_facts
from index.collection.catalog.sql import cast, parquet, quoted, shape, without_nan
from index.collection.catalog.workspace import Workspace
from index.collection.merged.sets import MergedRun
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RowFile, RunManifest, RunStart
from index.collection.row_files import FileList, copies_here
from index.collection.rows import (
    DELETED_COLUMNS,
    EMBEDDING,
    LOCATION_COLUMNS,
    RUN_COLUMN,
    common_field,
    conform,
    is_list,
    row_schema,
    unify,
)
from index.errors import CollectionError
from index.storage import Storage
from index.storage.scratch import Scratch
from index.storage.storage import canonical_address

Seqs: TypeAlias = npt.NDArray[np.int64]

FILE_BITS, _RUN_BITS = 24, 48
FIRST_SEQ: Final = 1 << FILE_BITS
"""The `seq` of the first row of the first run."""
NO_RUN: Final = "00000000T000000Z-0000"
"""What facts say of rows without a run."""
_FEW, _SMALL = 100_000, 32 << 20  # rows, and bytes of their files, that are read once
_FIXED: Final = tuple(name for name in row_schema(0).names if name != EMBEDDING)


@dataclass(frozen=True, kw_only=True)
class RunRows:
    """What a run has written: its row files, in order, with their facts (None: not written yet).

    Files of facts may have those of other runs too. Rows of a run that is not `committed` are `written`,
    but not `live`. Rows that are in no row file have their facts in a folder of this process, `here`.
    """

    run: RunStart | None = None
    files: Sequence[RowFile] = ()
    facts: Sequence[RowFile] | None = None
    committed: bool = True
    here: Scratch | None = None

    @classmethod
    def of(cls, storage: Storage, manifest: RunManifest) -> RunRows:
        facts = manifest.merged_facts if isinstance(manifest, MergedRun) else manifest.facts
        return cls(run=manifest, files=FileList(storage, manifest.files), facts=facts)

    @property
    def model(self) -> ModelRecord:
        if self.run is None:
            raise TypeError("expected the rows of a run, which has a model")
        return self.run.model

    @property
    def run_id(self) -> str:
        return self.run.run_id if self.run else NO_RUN

    @cached_property
    def source(self) -> str:
        return canonical_address(self.run.source) if self.run else ""


@dataclass(frozen=True)
class _File:
    """A file of facts, its path on this machine, and the numbers of the runs that it has something of."""

    file: RowFile
    path: Path
    runs: Sequence[int]


def split_seq(seqs: Seqs) -> tuple[Seqs, Seqs, Seqs]:
    """The numbers of each row's run, of its file in the run, and of the row in the file."""
    return seqs >> _RUN_BITS, (seqs >> FILE_BITS) % MAX_POSITIONS - 1, seqs % MAX_POSITIONS


def file_of(seqs: Seqs) -> Seqs:
    """A number for each row's file, unique among all runs."""
    return seqs >> FILE_BITS


class Catalog(Workspace):
    """The rows of some runs, oldest first; without `live`, `written` alone. DamagedRunError if a file was altered."""

    def __init__(self, storage: Storage, runs: Sequence[RunRows], *, live: bool = True) -> None:
        super().__init__(storage.location)
        self.storage, self.runs = storage, list(runs)
        self._scratch = Scratch("catalog")
        self._made = list[RowFile]()
        files, deletes = self._find_files(), list[_File]()
        self._rows = sum(each.file.rows for each in files)
        self._facts = dict[pa.Schema, list[_File]]()
        """The files with the same columns; there may be thousands of files, and mostly few schemas."""
        schemas = [read_schema(each.path, each.file) for each in files]  # threads take twice as long
        for schema, file in zip(schemas, files, strict=True):
            of_rows = schema.names != [*DELETED_COLUMNS]
            (self._facts.setdefault(schema, []) if of_rows else deletes).append(file)
        self._create_written(deletes)
        if live:
            self._create_live()

    def _find_files(self) -> list[_File]:
        """The files on this machine, in the order of their first run."""
        named, found = dict[RowFile, list[int]](), list[_File]()
        for number, run in enumerate(self.runs):
            if run.here is not None:
                found += [_File(file, run.here.path / file.path, [number]) for file in run.facts or ()]
            elif run.facts is None:
                written = write_facts(self._scratch.storage, run.run_id, self.storage, run.files)
                self._made += written
                found += [_File(file, self._scratch.path / file.path, [number]) for file in written]
            else:
                for file in run.facts:
                    named.setdefault(file, []).append(number)
        paths = copies_here(self.storage, list(named), self._scratch.path)
        found += [_File(file, path, runs) for (file, runs), path in zip(named.items(), paths, strict=True)]
        return sorted(found, key=lambda each: each.runs[0])

    def store_facts(self) -> list[RowFile]:
        """Copy the facts of a run that had none to the collection, for its manifest."""
        for file in self._made:
            self.storage.write_atomic(file.path, self._scratch.storage.read(file.path))
        return self._made

    def schema_of(self, runs: Iterable[int] | None = None) -> pa.Schema:
        """The columns of some runs' rows, or of all, as in files. The embedding has no length."""
        return unify(self.schemas(range(len(self.runs)) if runs is None else runs))

    def schemas(self, runs: Iterable[int]) -> list[pa.Schema]:
        """The different columns of the rows of these runs."""
        facts, wanted = self._facts.items(), frozenset(runs)
        return [schema for schema, files in facts if any(not wanted.isdisjoint(file.runs) for file in files)]

    def text_runs(self, column: str) -> list[int]:
        """The runs in which a column is text."""
        texts = [each for each in self._facts if column in each.names and each.field(column).type == pa.string()]
        return sorted({run for schema in texts for file in self._facts[schema] for run in file.runs})

    @cached_property
    def _schema_of_all(self) -> pa.Schema:
        return self.schema_of()

    @cached_property
    def _mixed(self) -> dict[str, CollectionError]:
        """Columns whose types have nothing in common, each with what is wrong."""
        found = dict[str, CollectionError]()
        for field in itertools.chain.from_iterable(self._facts):
            try:
                conform(
                    pa.table({field.name: pa.nulls(0, field.type)}), pa.schema([self._schema_of_all.field(field.name)])
                )
            except CollectionError as error:
                found[field.name] = error
        return found

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The name that each column has in SQL."""
        metadata = [name for name in self._schema_of_all.names if name not in (*_FIXED, EMBEDDING)]
        return {name: name for name in _FIXED} | {name: f"m{number}" for number, name in enumerate(metadata)}

    @cached_property
    def live_counts(self) -> dict[int, int]:
        """How many live rows each run has that has some, by its number."""
        counts = self.table("SELECT run, count(*) AS rows FROM live_rows GROUP BY run ORDER BY run")
        return {row["run"]: row["rows"] for row in counts.to_pylist()}

    def columns(self, names: Sequence[str]) -> str:
        """These columns in SQL, in this order. CollectionError if the types of one have nothing in common."""
        for name in names:
            if name in self._mixed:
                raise self._mixed[name]
        return ", ".join(f'{self.aliases[name]} AS "{number}"' for number, name in enumerate(names))

    def read(self, schema: pa.Schema, source: str, rows: int, /, **tables: pa.Table) -> Iterator[pa.Table]:
        """These columns of the rows `FROM` a source in SQL, in tables of at most `rows`."""
        sql = f"SELECT {self.columns(schema.names)} FROM {source}"
        for part in self.query(sql, rows, **tables):
            yield conform(part.rename_columns(schema.names), schema)

    def shared_columns(self, other: Catalog, names: Sequence[str]) -> list[tuple[str, str]]:
        """For each of these columns, it in SQL in rows of this catalog and of another, in a type that holds the values
        of both; null where a catalog lacks it. NaN counts as null.
        """
        both = [catalog._schema_of_all for catalog in (self, other)]
        fields = [[schema.field(name) for schema in both if name in schema.names] for name in names]
        schema = pa.schema([common_field(each[0], each[-1]) for each in fields])
        kinds = _kinds_of(schema)
        return [(self._typed(field, kinds[field.name]), other._typed(field, kinds[field.name])) for field in schema]

    def _typed(self, field: pa.Field[Any], kind: str) -> str:
        name = field.name
        if name in self._mixed:
            raise self._mixed[name]
        if name not in self.aliases:
            return f"CAST(NULL AS {kind})"
        found = self._schema_of_all.field(name)
        column = cast(self.aliases[name], found.type, field.type, kind)
        if is_list(field.type) and pa.types.is_floating(field.type.value_type):
            return f"list_transform({column}, lambda each: {without_nan('each')})"
        return without_nan(column) if pa.types.is_floating(field.type) else column

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return _kinds_of(self._schema_of_all)

    def _create_written(self, deletes: Sequence[_File]) -> None:
        nothing = ", ".join(f"CAST(NULL AS {self._kinds[name]}) AS {alias}" for name, alias in self.aliases.items())
        empty = f"SELECT CAST(NULL AS BIGINT) AS seq, CAST(NULL AS BIGINT) AS run, {nothing} WHERE false"
        written = f"written AS {' UNION ALL '.join(itertools.starmap(self._select, self._facts.items())) or empty}"
        gone = "SELECT CAST(NULL AS BIGINT) AS seq, CAST(NULL AS VARCHAR) AS image_id WHERE false"
        if deletes:
            gone = f"SELECT place.run << {_RUN_BITS} AS seq, image_id {self._from(deletes)}"
        deleted = f"CREATE OR REPLACE VIEW deleted AS {gone}"
        size = sum(each.file.size for each in itertools.chain.from_iterable(self._facts.values()))
        if self._rows <= _FEW and size <= _SMALL:  # opening Parquet files takes longer than most queries
            with suppress(CollectionError):  # of one column, which others need not know
                self.create(f"{deleted}; CREATE TABLE {written}")
                return
        self.create(f"{deleted}; CREATE VIEW {written}")

    def _select(self, schema: pa.Schema, files: Sequence[_File]) -> str:
        """The rows of files that have this schema, with the columns of all."""
        _, file, position = LOCATION_COLUMNS
        # By position, as names may differ in case alone.
        found = {name: f"c{number}" for number, name in enumerate(schema.names)}
        columns = []
        for name, alias in self.aliases.items():
            have = pa.null() if name not in found or name in self._mixed else schema.field(name).type
            kind, wanted = self._schema_of_all.field(name).type, self._kinds[name]
            columns.append(f"{cast(found.get(name, 'NULL'), have, kind, wanted)} AS {alias}")
        seq = f"(place.run << {_RUN_BITS}) | ((CAST({file} AS BIGINT) + 1) << {FILE_BITS}) | {position}"
        source = self._from(files, f"({', '.join([*LOCATION_COLUMNS, *found.values()])})")
        return f"SELECT {seq} AS seq, place.run, {', '.join(columns)} {source}"

    def _create_live(self) -> None:
        unfinished = [number for number, run in enumerate(self.runs) if not run.committed]
        committed = f"WHERE run NOT IN ({', '.join(map(str, unfinished))})" if unfinished else ""
        ids = f"SELECT seq, image_id FROM written {committed} UNION ALL FROM {self.name}.deleted"
        statements = ["CREATE TABLE dead (seq BIGINT)"]
        for part in self._passes(ids, "image_id"):
            statements += [
                f"CREATE OR REPLACE TABLE several AS SELECT image_id, max(seq) AS newest FROM {part} "
                "GROUP BY image_id HAVING count(*) > 1",
                # Mostly few or none, and then DuckDB does not read the ids again.
                f"INSERT INTO dead SELECT seq FROM {part} AS each JOIN several "
                "ON each.image_id IS NOT DISTINCT FROM several.image_id WHERE seq < newest",
            ]
        rows = f"FROM {self.name}.written ANTI JOIN {self.name}.dead USING (seq) {committed}"
        self.create("; ".join([*statements, "DROP TABLE several", f"CREATE VIEW live_rows AS {rows}"]))

    def _from(self, files: Sequence[_File], columns: str = "") -> str:
        """The rows of some files that are of this catalog's runs, each with its `place`. Columns may get names."""
        rows = f"{parquet(file.path for file in files)} AS rows{columns}"
        runs = sorted({run for file in files for run in file.runs})
        places = ", ".join(f"({quoted(self.runs[run].run_id)}, {run}::BIGINT)" for run in runs)
        return f"FROM {rows} JOIN (VALUES {places}) AS place(id, run) ON {RUN_COLUMN} = place.id"


@lru_cache(256)
def _kinds_of(schema: pa.Schema) -> dict[str, str]:
    """The type of each column in SQL."""
    if not len(schema):
        return {}
    found = pa.Table.from_batches([], shape(schema))  # `empty_table` would import pandas
    with database().cursor() as cursor:
        statement = "SELECT column_type FROM (DESCRIBE FROM found)"
        kinds = run_statement(cursor, lambda: cursor.register("found", found).execute(statement).fetchall())
    return {name: kind for name, (kind,) in zip(schema.names, kinds, strict=True)}
