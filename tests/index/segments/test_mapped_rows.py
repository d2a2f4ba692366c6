"""Rows of a segment are read at any positions, few or many."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index.segments import mapped_rows
from index.segments.eligible import Eligible
from index.segments.mapped_rows import MappedRows, write_by_id


def mapped(folder: Path, table: pa.Table, by_id: pa.Table | None = None) -> MappedRows:
    """Rows in batches of 110, with their positions by id, or other ones."""
    rows, ids = folder / "rows.arrow", folder / "ids.arrow"
    for path, content in ((rows, table), (ids, by_id)):
        if content is not None:
            with pa.ipc.new_file(str(path), content.schema) as file:
                file.write_table(content, max_chunksize=110)
    if by_id is None:
        write_by_id(rows, ids)
    return MappedRows(rows, ids)


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
    rows, positions = mapped(tmp_path, table), np.random.default_rng(0).permutation(300)[:count]
    assert rows.ids(positions).tolist() == [f"{number:03}" for number in positions]
    expected = [{"tags": [number, None], "image_id": f"{number:03}"} for number in positions.tolist()]
    assert rows.rows(positions, ["tags", "image_id"]) == expected
    for number, row in zip(positions.tolist(), rows.rows(positions, rows.schema.names), strict=True):
        assert list(row) == ["image_id", "tags", "taken"]
        assert (row["taken"] is None) == (number % 7 == 0)


@pytest.mark.parametrize("scanned", [0, 1_000])
def test_the_newest_live_row_of_an_id_is_found(tmp_path: Path, scanned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_rows, "_SCANNED", scanned)  # by binary search, or by comparing all rows
    names = ["", "a", "a ", "A", "é", "z", "\uff5e", "\U0001f431", "b/1.jpg", "b/10.jpg", "b/2.jpg"]
    random = np.random.default_rng(0)
    ids, live = random.choice(names, 500).tolist(), random.random(500) < 0.1
    live[[n for n, name in enumerate(ids) if name == "z"]] = False
    rows = mapped(tmp_path, pa.table({"image_id": ids}))
    expected = dict.fromkeys([*names, "no", "zz"], -1)
    expected |= {name: position for position, name in enumerate(ids) if live[position]}
    assert -1 < expected["a"] < 500
    assert expected["z"] == -1
    for name, position in expected.items():
        assert rows.positions(pa.array([name]), Eligible.of(live)).tolist() == [position], name
    assert rows.positions(pa.array([*expected, None]), Eligible.of(live)).tolist() == [*expected.values(), -1]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0, 1], "does not have the positions of 3 rows"),
        ([0, 1, None], "does not have the positions of 3 rows"),
        ([0, 3, 1], "has the position 3 among 3 rows"),
    ],
)
def test_positions_that_do_not_fit_the_rows(tmp_path: Path, positions: list[int | None], message: str) -> None:
    by_id = pa.table({"position": pa.array(positions, pa.uint32())})
    with pytest.raises(ValueError, match=message):
        mapped(tmp_path, pa.table({"image_id": ["a", "b", "c"]}), by_id)
