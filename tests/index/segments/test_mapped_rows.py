"""Rows of a segment are read at any positions, few or many."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index.segments.mapped_rows import MappedRows


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300])
def test_rows_are_those_of_their_positions(tmp_path: Path, count: int) -> None:
    numbers = list(range(300))
    taken = [2**63 - 1 if number % 7 == 0 else number for number in numbers]  # infinity, as databases write it
    table = pa.table(
        {
            "image_id": [f"{number:03}" for number in numbers],
            "tags": [[number, None] for number in numbers],
            "taken": pa.array(taken, pa.timestamp("us")),
        }
    )
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=110)
    rows, positions = MappedRows(tmp_path / "rows.arrow"), np.random.default_rng(0).permutation(300)[:count]
    assert rows.ids(positions).tolist() == [f"{number:03}" for number in positions]
    expected = [{"tags": [number, None], "image_id": f"{number:03}"} for number in positions.tolist()]
    assert rows.rows(positions, ["tags", "image_id"]) == expected
    for number, row in zip(positions.tolist(), rows.rows(positions), strict=True):
        assert list(row) == ["image_id", "tags", "taken"]
        assert (row["taken"] is None) == (number % 7 == 0)
