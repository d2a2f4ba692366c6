"""Listings that are too large for memory: here, sizes at which files are written are small."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from index.collection.catalog.catalog import FIRST_SEQ
from jobs.sources import stored_listing
from jobs.sources.listing import LISTING, listing_table
from jobs.sources.stored_listing import Listing
from tests.support.listings import ids


def part(*names: str, **columns: list[Any]) -> pa.Table:
    return listing_table({"image_id": names, "uri": names}, {n: pa.array(values) for n, values in columns.items()})


@pytest.mark.parametrize("rows_of_a_file", [1, 2, 1000])
def test_metadata_is_read_from_the_files(monkeypatch: pytest.MonkeyPatch, rows_of_a_file: int) -> None:
    monkeypatch.setattr(stored_listing, "ROWS", rows_of_a_file)
    values = [Decimal("1." + "2" * 50), None]
    tables = [
        part("a", "b", label=["x", None]),
        part("c"),
        part("d", "e", tags=[["p"], []]),
        part("f", "g", cost=values),
    ]
    listing = Listing.of(tables)
    everything = listing.read().to_pylist()
    for chosen in ([], [0], [2], [1, 2, 3], [5, 6], list(range(7))):
        query = (
            f"SELECT seq AS number, seq - {FIRST_SEQ} AS n FROM {listing.view} WHERE list_contains({chosen}::INT[], n)"
        )
        parts = list(listing.beside(query))
        assert [n for answer, _ in parts for n in answer["n"].to_pylist()] == chosen
        images = [row for _, each in parts for row in each.select(listing.schema.names).to_pylist()]
        assert images == [everything[n] for n in chosen]
        assert all(each.schema == listing.whole_schema for _, each in parts)
    plain = Listing.of([part("a")])
    [(_, same)] = plain.beside(f"SELECT seq AS number FROM {plain.view}")
    assert same.select(plain.schema.names) == plain.read()


@pytest.mark.parametrize("rows_of_a_file", [1, 3, 1000])
def test_tables_have_all_rows_in_order(monkeypatch: pytest.MonkeyPatch, rows_of_a_file: int) -> None:
    monkeypatch.setattr(stored_listing, "ROWS", rows_of_a_file)
    listing = Listing.of([part(*map(str, range(start, start + 3))) for start in (0, 3, 6)])
    for first in (0, 2, 9):
        images = listing.changed(f"FROM {{listing}} WHERE seq >= {FIRST_SEQ + first}") if first else listing
        for rows in (1, 2, 3, 9, 10):
            tables = list(images.tables(rows))
            assert list(map(ids, tables)) == [
                [*map(str, range(start, min(start + rows, 9)))] for start in range(first, 9, rows)
            ]
            assert all(table.schema == listing.whole_schema for table in tables)


METADATA = {
    "text": pa.array(["one", None, "three"], pa.large_string()),
    "json": pa.array(['{"a": 1}', None, "[1]"], pa.json_(pa.large_string())),
    "money": pa.array([Decimal("1.50"), None, Decimal("-2.00")], pa.decimal256(60, 2)),
    "tags": pa.array([["a", "b"], None, []], pa.large_list(pa.large_string())),
    "taken": pa.array([dt.datetime(2026, 11, 26)] * 3, pa.timestamp("us", "Europe/Berlin")),
    "length": pa.array([1, None, 3], pa.duration("us")),
    "big": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "URI": pa.array(["x", "y", "z"], pa.large_string()),
    "Row_Position": pa.array([7, 8, 9]),
}


def test_tables_keep_values_and_types() -> None:
    table = listing_table({"image_id": ["a", "b", "c"], "uri": ["/a", "/b", "/c"]}, METADATA)
    listing = Listing.of([table, table])
    assert listing.schema == table.schema
    [images] = listing.tables()
    assert images.select(table.schema.names).equals(pa.concat_tables([table, table]))
    nothing = Listing.of([])
    assert (nothing.schema, nothing.num_rows, list(nothing.tables())) == (LISTING, 0, [])


def test_files_go_when_the_last_view_of_them_goes() -> None:
    listing = Listing.of([part("a", "b", "c")])
    [run] = listing.catalog.runs
    assert run.here
    folder, rest = run.here.path, listing.changed(f"FROM {{listing}} WHERE seq > {FIRST_SEQ}")
    del listing, run
    [images] = rest.tables()
    assert ids(images) == ["b", "c"]
    del rest
    assert not folder.exists()


def test_a_changed_listing_leaves_the_first_as_it_was() -> None:
    listing = Listing.of([part("a", "b", "c", label=["x", "y", "z"])])
    changed = listing.changed(f"FROM {{listing}} WHERE seq <> {FIRST_SEQ}")
    again = changed.changed("SELECT * REPLACE ('b2' AS image_id) FROM {listing} WHERE image_id = 'b'")
    assert [ids(each.read()) for each in (listing, changed, again)] == [["a", "b", "c"], ["b", "c"], ["b2"]]
    assert ids(changed.read(where="image_id <> 'b'")) == ["c"]
