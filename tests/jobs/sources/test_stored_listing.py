"""Listings that are too large for memory: here, sizes at which files are written are small."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from index.collection.catalog.catalog import FIRST_SEQ
from jobs.sources import stored_listing
from jobs.sources.listing import listing_table
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


def test_a_changed_listing_leaves_the_first_as_it_was() -> None:
    listing = Listing.of([part("a", "b", "c", label=["x", "y", "z"])])
    changed = listing.changed(f"FROM {{listing}} WHERE seq <> {FIRST_SEQ}")
    again = changed.changed("SELECT * REPLACE ('b2' AS image_id) FROM {listing} WHERE image_id = 'b'")
    assert [ids(each.read()) for each in (listing, changed, again)] == [["a", "b", "c"], ["b", "c"], ["b2"]]
    assert ids(changed.read(where="image_id <> 'b'")) == ["c"]
