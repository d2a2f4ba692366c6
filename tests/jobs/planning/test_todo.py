"""The images that a run has to write, in files of this machine."""

import datetime as dt
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index.collection.catalog.catalog import Catalog
from index.collection.catalog.workspace import Workspace
from index.collection.rows import in_parts
from index.storage import Storage
from jobs.planning import known_rows
from jobs.planning.image_filter import EVERY_IMAGE
from jobs.planning.todo import GROUP, POSITION, RowGroup, Todo
from jobs.sources.listing import COPIED, LISTING, listing_table
from tests.support.collections.run_plans import images_to_do

METADATA = {
    "text": pa.array(["one", None, "three"]),
    "json": pa.array(['{"a": 1}', None, "[1]"], pa.json_(pa.large_string())),
    "money": pa.array([Decimal("1.50"), None, Decimal("-2.00")], pa.decimal256(60, 2)),
    "tags": pa.array([["a", "b"], None, []]),
    "taken": pa.array([dt.datetime(2026, 11, 26)] * 3, pa.timestamp("ns", "Europe/Berlin")),
    "length": pa.array([1, None, 3], pa.duration("ns")),
    "half": pa.array(np.array([1, 2, 3], np.float16)),
    "big": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "URI": pa.array(["x", "y", "z"]),
    "Row_Position": pa.array([7, 8, 9]),
}


def listing(*ids: str, **metadata: pa.Array) -> pa.Table:  # type: ignore[type-arg]
    return listing_table({"image_id": ids, "uri": [f"/pictures/{image_id}" for image_id in ids]}, metadata)


def numbered(count: int) -> pa.Table:
    return listing(*map(str, range(count)))


def test_rows_keep_their_values_and_types() -> None:
    table = listing("a", "b", "c", **METADATA)
    todo = Todo([table, table])
    assert todo.schema == table.schema
    assert images_to_do(todo).equals(pa.concat_tables([table, table]))
    names = ["image_id", "money", "json"]
    assert images_to_do(todo.select(names)).equals(pa.concat_tables([table, table]).select(names))
    rows = Workspace(todo.storage.location).table(f"SELECT {POSITION}, image_id, uri FROM {todo.slice(4).sql}")
    assert sorted(map(tuple, rows.to_pandas().to_numpy().tolist())) == [
        (4, "b", "/pictures/b"),
        (5, "c", "/pictures/c"),
    ]


def test_groups_say_where_the_rows_are(tmp_path: Path) -> None:
    todo, elsewhere = Todo([numbered(GROUP + 5)]).slice(4), Storage.open(tmp_path)
    todo.copy_files(elsewhere, "there")
    groups = list(todo.groups(1_500))
    assert [(group.number, group.first, group.rows) for group in groups] == [
        (0, 4, 1_500),
        (0, 1_504, GROUP - 1_504),
        (1, 0, 5),
    ]
    read = [RowGroup.read(group, elsewhere.subfolder("there"), ["image_id"]) for group in groups]
    assert pa.concat_tables(read).equals(images_to_do(todo.select(["image_id"])))


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 3), (2, 5), (3, 4), (4, 9), (7, 9)])
def test_a_part_has_its_rows_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: int, end: int) -> None:
    monkeypatch.setattr("jobs.planning.todo.in_parts", partial(in_parts, rows=1))  # a file for each table
    monkeypatch.setattr("jobs.planning.todo.GROUP", 2)
    part, ids = Todo([numbered(9).slice(first, 3) for first in (0, 3, 6)]).slice(start, end), [*map(str, range(9))]
    assert (part.num_rows, images_to_do(part)["image_id"].to_pylist()) == (end - start, ids[start:end])
    found = Workspace(part.storage.location).table(f"SELECT image_id FROM {part.sql}")["image_id"].to_pylist()
    assert sorted(map(str, found)) == ids[start:end]
    for rows in (1, 2, 3, 9):
        tables = [table["image_id"].to_pylist() for table in part.tables(rows)]
        assert tables == [ids[first : min(first + rows, end)] for first in range(start, end, rows)]
    if end - start > 1:
        assert images_to_do(part.slice(1))["image_id"].to_pylist() == ids[start + 1 : end]
    part.copy_files(Storage.open(tmp_path), "there")
    files = [f"{number:06}.parquet" for number in range(3) if start < 3 * number + 3 and end > 3 * number]
    assert sorted(path.name for path in tmp_path.glob("there/*.parquet")) == (files if end > start else [])


def test_nothing_to_do_has_the_columns_of_a_listing() -> None:
    todo = Todo([])
    assert (todo.schema, todo.num_rows, list(todo.tables())) == (LISTING, 0, [])
    assert Workspace(todo.storage.location).table(f"SELECT image_id FROM {todo.sql}").num_rows == 0


def test_files_go_when_the_last_part_goes() -> None:
    todo = Todo([numbered(3)])
    folder, part = Path(todo.storage.absolute("")), todo.select(["image_id"]).slice(1)
    del todo
    assert images_to_do(part)["image_id"].to_pylist() == ["1", "2"]
    del part
    assert not folder.exists()


def test_copies_come_in_the_order_of_the_rows_that_they_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(known_rows, "_copied_rows", lambda listed, *_: listed)
    seqs = np.random.default_rng(1).permutation(140_000)  # more than are put in order at once
    seqs[:70_000].sort()
    todo, nothing = Todo([pa.table({COPIED: seqs, "image_id": seqs.astype(str)})]), Storage.open(str(tmp_path))
    blocks = [*known_rows.copied_blocks(todo, Catalog(nothing, [], live=False), EVERY_IMAGE)]
    copied = pa.concat_tables(blocks)
    assert copied[COPIED].to_pylist() == list(range(140_000))
    assert copied["image_id"].to_pylist() == list(map(str, range(140_000)))
    assert max(map(len, blocks)) == known_rows.BLOCK
