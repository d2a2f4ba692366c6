"""Rows that a listing refuses, and columns of other types, night by night: each has the rows of a new collection."""

from __future__ import annotations  # pyarrow's types are generic only in its stubs

from pathlib import Path
from typing import Any

import pytest

from index.collection import Collection
from tests.support.listings import write_files
from tests.support.nights.reembed_nights import DEMO, Nights, bmp

_NUMBERS = {"column_types": {"price": "number"}}
_IDS = {"id_column": "sku"}
NIGHTS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "an id is repeated for an address that is known": [
        ("uri,sku\na.bmp,1\nb.bmp,2\n", {}),
        ("uri,sku\na.bmp,1\na.bmp,1\nb.bmp,1\n", _IDS),
    ],
    "an id is repeated, then not": [
        ("uri,sku\na.bmp,1\nb.bmp,1\n", _IDS),
        ("uri,sku\na.bmp,1\nb.bmp,2\n", _IDS),
    ],
    "a row with another id takes the address of a repeated one": [
        ("uri,sku\na.bmp,1\nb.bmp,1\n", _IDS),
        ("uri,sku\nb.bmp,2\na.bmp,1\nb.bmp,1\n", _IDS),
    ],
    "types are given": [("uri,price\na.bmp,cheap\nb.bmp,1\n", {}), ("uri,price\na.bmp,cheap\nb.bmp,1\n", _NUMBERS)],
    "values come to a column that had none": [
        ("uri,price\na.bmp,\n", {}),
        ("uri,price\na.bmp,\nb.bmp,4\n", {}),
    ],
    "types are no longer given": [
        ("uri,price\na.bmp,cheap\nb.bmp,1\n", _NUMBERS),
        ("uri,price\na.bmp,cheap\nb.bmp,1\n", {}),
    ],
    "a bad value is mended": [("uri,price\na.bmp,cheap\n", _NUMBERS), ("uri,price\na.bmp,5\n", _NUMBERS)],
    "a bad value is removed": [("uri,price\na.bmp,cheap\n", _NUMBERS), ("uri,price\na.bmp,\n", _NUMBERS)],
    "a value becomes bad": [("uri,price\na.bmp,\nb.bmp,1\n", _NUMBERS), ("uri,price\na.bmp,x\nb.bmp,1\n", _NUMBERS)],
    "a bad value in a row that is left out": [
        ("uri,price\na.bmp,x\nb.bmp,1\n", {**_NUMBERS, "keep": {"price": {"$gt": 0}}}),
        ("uri,price\na.bmp,2\nb.bmp,1\n", {**_NUMBERS, "keep": {"price": {"$gt": 1}}}),
        ("uri,price\na.bmp,x\nb.bmp,1\n", _NUMBERS),
        ("uri,price\na.bmp,3\nb.bmp,x\n", _NUMBERS),
    ],
}  # fmt: skip


def night(folder: Path, text: str, fields: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The reason, the vector and the price of each row, after a night with this list."""
    source = write_files(folder.parent / "source", {"a.bmp": bmp(1), "b.bmp": bmp(2)})
    (source / "list.csv").write_text(text)
    Collection.create_or_open(str(folder))
    options = {"max_reject_rate": 1, "max_missing": 1, "index": False, **fields}
    Nights(source, str(folder)).night(DEMO, source=source / "list.csv", **options)
    rows = Collection.open(str(folder)).live_rows().to_pylist()
    return {
        row["image_id"]: (row["error_reason"], row["error_message"], row["embedding"], row.get("price")) for row in rows
    }


@pytest.mark.parametrize(
    "nights",
    [
        pytest.param(nights, id=name, marks=[pytest.mark.long] if number % 2 else [])
        for number, (name, nights) in enumerate(NIGHTS.items())
    ],
)
def test_each_night_equals_a_new_collection(tmp_path: Path, nights: list[tuple[str, dict[str, Any]]]) -> None:
    for number, (text, fields) in enumerate(nights):
        found = night(tmp_path / "collection", text, fields)
        assert number == 0 or found == night(tmp_path / f"new-{number}", text, fields)
