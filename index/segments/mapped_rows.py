"""The file of a segment's rows, mapped from disk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Ids, Positions, read_parts
from index.collection.rows import FIXED_COLUMNS, number_array
from index.segments.eligible import Eligible
from index.storage.arrow_file import read_batches, require_columns

_FEW = 64  # rows; up to here reading value by value takes less time than a call of Arrow's
_SCANNED = 4_096  # rows whose ids are compared in the time that a binary search takes
POSITION = "position"
"""The column of the file of positions, which are in the order of the rows' ids."""


class MappedRows:
    """Rows in batches, without embeddings. Thread-safe.

    The file `by_id` has their positions in the order of their ids. The file `columns` has further columns of the same
    rows, in the same batches. ValueError for a damaged file.
    """

    def __init__(self, path: Path, by_id: Path, columns: Path | None = None) -> None:
        self.schema, self.batches = _mapped(path)
        self.replaced = frozenset[str]()
        """The columns whose values are those of the file `columns`."""
        if columns is not None:
            schema, further = _mapped(columns)
            if fixed := sorted(set(schema.names).intersection(FIXED_COLUMNS)):
                raise ValueError(f"{columns.name} has {', '.join(fixed)}, which only {path.name} may have")
            if [*map(len, further)] != [*map(len, self.batches)]:
                raise ValueError(f"{columns.name} has other rows than {path.name}")
            self.replaced = frozenset(schema.names)
            self.schema = with_columns(self.schema, schema)
            self.batches = [
                pa.RecordBatch.from_arrays(
                    [(more if name in schema.names else rows).column(name) for name in self.schema.names],
                    schema=self.schema,
                )
                for rows, more in zip(self.batches, further, strict=True)
            ]
        self.starts = np.cumsum([0, *(len(batch) for batch in self.batches)])
        self._ids = pa.chunked_array([batch.column("image_id") for batch in self.batches], pa.string())
        if self._ids.null_count:
            raise ValueError(f"{self._ids.null_count} rows have no image_id")
        self._by_id = _positions_in(by_id, len(self))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self, positions: Positions, columns: list[str]) -> list[dict[str, Any]]:
        """The rows at these positions, in their order."""
        if len(positions) <= _FEW:
            return self._few(columns, positions)
        return list(self._taken(lambda batch: batch.select(columns), positions))

    def ids(self, positions: Positions) -> Ids:
        """The ids at these positions, as strings."""
        batches = np.count_nonzero(np.bincount(np.searchsorted(self.starts, positions, side="right")))
        if len(positions) <= _FEW * batches:  # each of which would take a call
            return np.array([self._ids[position].as_py() for position in positions.tolist()], object)
        return self._taken(lambda batch: batch.column("image_id"), positions)

    def _few(self, columns: list[str], positions: Positions) -> list[dict[str, Any]]:
        numbers = np.searchsorted(self.starts, positions, side="right") - 1
        local = (positions - self.starts[numbers]).tolist()
        parts = {
            number: [(name, self.batches[number].column(name)) for name in columns] for number in {*numbers.tolist()}
        }
        places = zip(numbers.tolist(), local, strict=True)
        return [{name: _value(values[row]) for name, values in parts[number]} for number, row in places]

    def _taken(self, part: Callable[[pa.RecordBatch], Any], positions: Positions) -> npt.NDArray[np.object_]:
        # Batch by batch, because taking from a table of many batches would first join them all.
        def read(number: int, local: Positions) -> list[Any]:
            taken = part(self.batches[number]).take(number_array(local))
            try:
                values: list[Any] = taken.to_pylist()
            except OverflowError:
                values = _with_nulls(taken)
            return values

        return read_parts(np.empty(len(positions), object), positions, self.starts, read)

    def positions(self, ids: pa.Array[Any], live: Eligible | None) -> Positions:
        """The positions of the `live` rows (None: all) with these ids, which are distinct; -1 for an id without one."""
        if (len(ids) - 2) * _SCANNED < len(self):  # that many in the time that a scan of few rows takes
            return np.array([self._position(id_, live) for id_ in ids.to_pylist()], np.int64)
        indices: Any = pc.index_in(self._ids.cast(ids.type), value_set=ids)
        # `fill_null` and `to_numpy` would import pandas, a third of the time of a search by id from the terminal.
        rows = np.from_dlpack(pc.indices_nonzero(indices.is_valid()))
        slots = np.from_dlpack(indices.drop_null().combine_chunks())
        positions = np.full(len(ids), -1, np.int64)
        if live is not None:
            alive = live.at(rows)
            rows, slots = rows[alive], slots[alive]
        positions[slots] = rows
        return positions

    def _position(self, id_: str | None, live: Eligible | None) -> int:
        if id_ is None:
            return -1
        # Arrow sorts text by its bytes in UTF-8, which is the order of Python's strings too.
        places = range(len(self))
        start = bisect_left(places, id_, key=self._id_at)
        end = bisect_right(places, id_, lo=start, key=self._id_at)  # an updated image has dead rows as well
        found = self._by_id[start:end]
        if live is not None:
            found = found[live.at(found)]
        return int(found.max()) if len(found) else -1

    def _id_at(self, place: int) -> str:
        id_: str = self._ids[int(self._by_id[place])].as_py()
        return id_


def with_columns(rows: pa.Schema, columns: pa.Schema) -> pa.Schema:
    """The columns of rows and their further `columns`, which replace those with the same name."""
    return pa.schema([*(field for field in rows if field.name not in columns.names), *columns])


def write_by_id(rows: Path, target: Path) -> None:
    """Write the positions of a file of rows in the order of their ids: 4 bytes for each, and 8 in memory meanwhile."""
    with pa.memory_map(str(rows)) as file:
        batches = [batch.column("image_id") for batch in pa.ipc.open_file(file).read_all().to_batches()]
        order = pc.sort_indices(pa.chunked_array(batches, pa.string())).cast(pa.uint32())
    batch = pa.record_batch({POSITION: order})
    with pa.ipc.new_file(str(target), batch.schema) as writer:
        writer.write_batch(batch)


def _positions_in(path: Path, rows: int) -> npt.NDArray[np.uint32]:
    """The positions in a file, all below `rows`."""
    schema, batches = _mapped(path)
    require_columns(schema, {POSITION: pa.uint32()})
    columns = [batch.column(0) for batch in batches]
    if [*map(len, columns)] != [rows] or columns[0].null_count:
        raise ValueError(f"{path.name} does not have the positions of {rows:,} rows")
    positions = np.from_dlpack(columns[0]).astype(np.uint32, copy=False)
    if rows and positions.max() >= rows:
        raise ValueError(f"{path.name} has the position {positions.max():,} among {rows:,} rows")
    return positions


def _with_nulls(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [dict(zip(rows.schema.names, map(_value, row), strict=True)) for row in zip(*rows.columns, strict=True)]


def _value(stored: pa.Scalar[Any]) -> Any:
    """None for a time that Python cannot represent, such as a database's infinity."""
    try:
        return stored.as_py()
    except OverflowError:
        return None


def _mapped(path: Path) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    try:
        return read_batches(pa.memory_map(str(path)))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
