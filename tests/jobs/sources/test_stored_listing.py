"""Listings that are too large for memory: here, sizes at which files are written are small."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from index.collection.catalog.catalog import FIRST_SEQ
from jobs.sources import beside, sorted_files, stored_listing
from jobs.sources.listing import concat_listings, listing_table
from jobs.sources.stored_listing import Listing
from tests.support.listings import ids, list_images, metadata, put, tar_of


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_listing, "ROWS", 3)
    monkeypatch.setattr(sorted_files, "ROWS", 3)
    monkeypatch.setattr(sorted_files, "_BATCH", 2)
    monkeypatch.setattr(sorted_files, "_IN_MEMORY", 4)
    monkeypatch.setattr(beside, "_CAPTIONS", 2)


def part(*names: str, **columns: list[Any]) -> pa.Table:
    return listing_table({"image_id": names, "uri": names}, {n: pa.array(values) for n, values in columns.items()})


@pytest.mark.parametrize(
    "tables",
    [
        [part(*"ab", x=[1, 2]), part(*"cde", x=[1.5, None, 3.0]), part("f"), part("g", x=[7])],
        [part("a", x=[2**60]), part("b", x=[1.5]), part("c", x=[None])],
        [part(*"abcd", x=["one", None, None, None]), part(*"efg", x=[1, 2, 3]), part("h", y=[True])],
        [part(*"abc", x=[["p"], [], None]), part("d", x=["q"]), part("e", x=[["1", "2"]])],
        [part("a", x=[{"deep": 1}]), part("b", x=["text"]), part("c", x=[None])],
        [part(*"abc", x=[None] * 3), part(*"def", x=[None] * 3)],
        [part(*"abc", X=[1, 2, 3], x=["a", "b", "c"]), part("d", x=[4], X=["five"])],
        [],
    ],
    ids=["float", "large", "text", "lists", "json", "nothing", "case", "empty"],
)
def test_files_of_other_types_are_one_listing(tables: list[pa.Table]) -> None:
    listing = Listing.of(tables)
    expected = concat_listings([part(), *tables])
    assert listing.read().to_pylist() == expected.to_pylist()
    assert listing.schema.types == expected.schema.types
    assert listing.num_rows == expected.num_rows
    if expected.num_rows:
        numbers = listing.catalog.table(f"SELECT seq FROM {listing.view} ORDER BY seq")["seq"].to_pylist()
        assert numbers == list(range(FIRST_SEQ, FIRST_SEQ + expected.num_rows))


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
    for chosen in ([], [0], [2], [1, 2, 3], [5, 6], list(range(7)), [0, 6, 1 << 45]):
        rows = pa.table({"n": pa.array(chosen, pa.int64())})
        parts = list(listing.with_metadata(rows, np.array(chosen, np.int64) + FIRST_SEQ))
        everything = [*listing.read().select(listing.schema.names[5:]).to_pylist(), *[{}] * 9]
        expected = [{"n": n, **(everything[n] if n < 7 else dict.fromkeys(everything[0]))} for n in chosen]
        assert [row for each in parts for row in each.to_pylist()] == expected
        assert all(each.schema == parts[0].schema for each in parts)
    [same] = Listing.of([part("a")]).with_metadata(rows, np.array([0, 6, 1 << 45]) + FIRST_SEQ)
    assert same == rows


def test_a_changed_listing_leaves_the_first_as_it_was() -> None:
    listing = Listing.of([part("a", "b", "c", label=["x", "y", "z"])])
    changed = listing.changed(f"FROM {{listing}} WHERE seq <> {FIRST_SEQ}")
    again = changed.changed("SELECT * REPLACE ('b2' AS image_id) FROM {listing} WHERE image_id = 'b'")
    assert [ids(each.read()) for each in (listing, changed, again)] == [["a", "b", "c"], ["b", "c"], ["b2"]]
    assert ids(changed.read(where="image_id <> 'b'")) == ["c"]


def test_many_files_are_sorted_and_get_their_captions(tmp_path: Path) -> None:
    names = [f"{folder}/{number:02}.jpg" for folder in "zax" for number in range(7)]
    for name in names:
        put(tmp_path / name)
    captions = {name: f"picture {number}" for number, name in enumerate(names) if number % 3}
    for name, caption in captions.items():
        put(tmp_path / f"{name.removesuffix('.jpg')}.txt", caption.encode())
    put(tmp_path / "a" / "without picture.txt")
    put(tmp_path / "x" / ".nomedia")
    left_out = Counter[str]()
    listing = list_images(str(tmp_path), left_out=left_out)
    kept = sorted(name for name in names if not name.startswith("x"))
    assert ids(listing) == kept
    assert metadata(listing)["txt"] == [captions.get(name) for name in kept]
    assert (left_out[".txt"], left_out["in folders with .nomedia"]) == (1, 7 + 5)


def test_lists_name_some_of_many_files(tmp_path: Path) -> None:
    names = [f"{number:02}.jpg" for number in range(11)]
    for name in names:
        put(tmp_path / name)
    rows = "\n".join(f'{{"file_name": "{name}", "stars": {number}}}' for number, name in enumerate(names) if number % 2)
    put(tmp_path / "metadata.jsonl", rows.encode())
    put(tmp_path / "more.tar", tar_of(**{"00.jpg": b"picture"}))
    listing = list_images(str(tmp_path))
    stars = dict(zip(ids(listing), metadata(listing)["stars"], strict=True))
    assert stars == {name: number if number % 2 else None for number, name in enumerate(names)} | {
        "more.tar/00.jpg": None
    }
