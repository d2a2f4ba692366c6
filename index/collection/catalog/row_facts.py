"""The facts of a run's rows: all their columns but vectors, and where each row is, in a few Parquet files. Those that
say which ids it deletes have no other column.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from index.arrays import Positions
from index.collection.layout import FACTS, run_path
from index.collection.records.run_manifest import RowFile
from index.collection.row_files import open_rows, read_ahead, valid, write_table
from index.collection.rows import (
    DELETED_COLUMNS,
    EMBEDDING,
    LOCATION_COLUMNS,
    PART_BYTES,
    PART_ROWS,
    TILES,
    conform,
    in_files,
    in_parts,
    number_array,
    text_array,
    unify,
)
from index.storage import Storage

MAX_POSITIONS: Final = 1 << 24
"""Maximum files of a run, and rows of a file."""

_DECIMAL: Final = b"likeness.decimal"


def write_facts(storage: Storage, run_id: str, source: Storage, files: Sequence[RowFile]) -> list[RowFile]:
    """Write the facts of a run's rows, which are in `files` of `source`, to files of `storage`."""
    tables = read_ahead(partial(_read, source, run_id), list(enumerate(files)), lambda numbered: numbered[1].size)
    return write_parts(storage, run_path(run_id, FACTS), map(_as_one, in_parts(tables)))


def write_table_facts(storage: Storage, run_id: str, rows: pa.Table, start: int = 0) -> list[RowFile]:
    """Write rows without vectors that are in no row file, as `write_facts` does; `row_position` counts them from
    `start`.
    """
    return write_parts(storage, run_path(run_id, FACTS), map(_as_one, _counted(run_id, rows, start)), first=start)


def write_deletes(storage: Storage, run_id: str, ids: Iterable[pa.Array[Any]], start: int) -> list[RowFile]:
    """Write ids that have left the source as `write_facts` does, to files that are numbered from `start`."""
    tables = (pa.table([each.cast(pa.string())], list(DELETED_COLUMNS)) for each in ids)
    nowhere = ((np.zeros(len(table), np.int64), table) for table in tables)
    placed = in_parts(_placed(run_id, zeros, zeros, table) for zeros, table in nowhere)
    return write_parts(storage, run_path(run_id, FACTS), map(pa.concat_tables, placed), first=start)


def _counted(run_id: str, rows: pa.Table, start: int) -> Iterator[list[pa.Table]]:
    for part in _small_parts(rows):
        numbers = np.arange(start, start + part.num_rows)
        yield [_placed(run_id, numbers // MAX_POSITIONS, numbers % MAX_POSITIONS, part)]
        start += part.num_rows


def _small_parts(rows: pa.Table) -> Iterator[pa.Table]:
    """At least one. Text may have any length, and an array of it 2 GiB."""
    if rows.num_rows <= 1 or (rows.num_rows <= PART_ROWS and rows.nbytes <= PART_BYTES):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _small_parts(rows.slice(0, half))
    yield from _small_parts(rows.slice(half))


def _placed(run_id: str, files: Positions, positions: Positions, rows: pa.Table) -> pa.Table:
    """The rows with `LOCATION_COLUMNS`."""
    run = pa.repeat(text_array([run_id])[0], rows.num_rows)  # `pa.scalar` would import pandas
    places = (run, *(number_array(each.astype(np.int32)) for each in (files, positions)))
    return pa.table([*places, *rows.columns], names=[*LOCATION_COLUMNS, *rows.column_names])


def write_parts(storage: Storage, folder: str, tables: Iterable[pa.Table], first: int = 0) -> list[RowFile]:
    """Write tables of facts as `<folder>/<number>.<token>.parquet`, numbered from `first`."""
    return [
        write_table(storage, f"{folder}/{number:04}", table, row_group_size=PART_ROWS // 2)
        for number, table in enumerate(tables, first)
    ]


def _read(storage: Storage, run_id: str, numbered: tuple[int, RowFile]) -> pa.Table:
    number, file = numbered
    with open_rows(storage, file) as parquet:
        names = [name for name in parquet.schema_arrow.names if name not in (EMBEDDING, TILES, *LOCATION_COLUMNS)]
        # Parquet reads "a" as every column nested in it, and "a.b" as one of them, so select by name afterwards.
        rows = valid(parquet.read(columns=names)).select(names)
        if rows["image_id"].null_count:
            raise OSError(f"{rows['image_id'].null_count} rows have no image_id")
        if max(number, rows.num_rows) >= MAX_POSITIONS:
            raise OSError(f"it is file {number:,} of its run, with {rows.num_rows:,} rows: expected fewer")
    return _placed(run_id, np.full(rows.num_rows, number), np.arange(rows.num_rows), rows)


def _as_one(tables: Sequence[pa.Table]) -> pa.Table:
    schema = in_files(unify([table.schema for table in tables]))
    names = [*LOCATION_COLUMNS, *(name for name in schema.names if name not in (*LOCATION_COLUMNS, EMBEDDING))]
    schema = pa.schema([schema.field(name) for name in names])
    return _for_duckdb(pa.concat_tables([conform(table, schema) for table in tables]))


def _for_duckdb(rows: pa.Table) -> pa.Table:
    """Decimals of more digits than DuckDB has become text; `read_schema` gives them their type again."""
    for number, field in enumerate(rows.schema):
        kind: Any = field.type
        if pa.types.is_decimal256(kind):
            type_ = {_DECIMAL: f"{kind.precision},{kind.scale}"}
            rows = rows.set_column(
                number, pa.field(field.name, pa.string(), metadata=type_), rows[number].cast("string")
            )
    return rows


def read_schema(path: Path, file: RowFile) -> pa.Schema:
    """The columns of a file of facts, without `LOCATION_COLUMNS`, and with the types that the rows have."""
    with open_rows(path, file) as parquet:
        schema = parquet.schema_arrow
        return pa.schema([_logical(field) for field in list(schema)[len(LOCATION_COLUMNS) :]])


def _logical(field: pa.Field[Any]) -> pa.Field[Any]:
    if (digits := (field.metadata or {}).get(_DECIMAL)) is not None:
        precision, _, scale = digits.decode().partition(",")
        return pa.field(field.name, pa.decimal256(int(precision), int(scale)))
    return field.remove_metadata()
