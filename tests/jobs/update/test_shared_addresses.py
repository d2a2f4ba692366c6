"""Rows of a list that share an address: the picture is read and embedded once, and each row is as if it were alone."""

from __future__ import annotations  # pyarrow's types are generic only in its stubs

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index.collection import Collection
from tests.support.collections.storage_steps import KilledError, expire, kill
from tests.support.listings import write_files
from tests.support.nights.reembed_nights import BROKEN, DEMO, Nights, bmp
from tests.support.pictures.sample_images import encode

WIDE = encode(Image.fromarray(np.full((40, 60, 3), 99, np.uint8)), "PNG")
PICTURES = {"a.bmp": bmp(1), "b.bmp": bmp(2), "wide.png": WIDE, "broken.jpg": BROKEN}
ADDRESSES = [
    "a.bmp",
    "broken.jpg",
    "b.bmp",
    "a.bmp",
    "wide.png",
    "missing.jpg",
    None,
    "a.bmp",
    "wide.png",
    "broken.jpg",
]
ROWS = [
    {"uri": uri, "id": f"row-{night}-{row}", "price": row % 7, "Number": night}
    for night in range(3)
    for row, uri in enumerate(ADDRESSES)
]


def new_nights(folder: Path) -> Nights:
    Collection.create_or_open(str(folder / "collection"))
    return Nights(write_files(folder / "pictures", PICTURES), str(folder / "collection"))


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return new_nights(tmp_path)


def write(nights: Nights, rows: list[dict[str, Any]]) -> None:
    (nights.pictures / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))


def night(nights: Nights, **fields: Any) -> Any:
    fields = {"max_reject_rate": 1, "max_missing": 1, "index": False, **fields}
    return nights.night(DEMO, source=nights.pictures / "list.jsonl", **fields)


def outcomes(nights: Nights) -> dict[str, tuple[Any, ...]]:
    """What each row says of its picture."""
    rows = nights.collection.live_rows().to_pylist()
    names = ("content_hash", "size", "width", "height", "format", "error_reason", "retryable", "embedding", "tiles")
    facts = {str(row["image_id"]): tuple(row.get(name) for name in (*names, "exif_taken", "price")) for row in rows}
    assert len(facts) == len(rows)
    return facts


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """The outcomes of the same rows, each with a copy of its picture."""
    return outcomes_apart(tmp_path_factory.mktemp("apart"))


def outcomes_apart(folder: Path, **fields: Any) -> dict[str, tuple[Any, ...]]:
    nights = new_nights(folder)
    rows = [row | {"uri": row["uri"] and f"{row['id']}-{row['uri']}"} for row in ROWS]
    for row, copy in zip(ROWS, rows, strict=True):
        if row["uri"] in PICTURES:
            shutil.copy(nights.pictures / str(row["uri"]), nights.pictures / str(copy["uri"]))
    write(nights, rows)
    night(nights, **fields)
    return outcomes(nights)


KEEPS: list[dict[str, Any]] = [
    {"price": {"$lt": 4}},
    {"width": {"$gte": 32}},
    {"width": {"$gte": 32}, "price": {"$gt": 2}},
    {"$or": [{"width": {"$gte": 32}}, {"price": {"$gt": 2}}]},
    {"$or": [{"width": {"$lt": 32}}, {"price": {"$in": [0, 4]}}]},
    {"$not": {"$and": [{"format": "bmp"}, {"price": {"$lt": 3}}]}},
    {"$or": [{"near_uniform": True}, {"price": {"$lt": 3}}]},  # measured, so each row is read
]


FIELDS = [{"tiles": "2x2"}, {"exif": True}, *({"keep": keep} for keep in KEEPS)]
SLOW = (pytest.param(fields, marks=pytest.mark.slow) for fields in FIELDS)


@pytest.mark.parametrize("fields", [{}, *SLOW], ids=str)
def test_each_row_is_as_if_it_were_alone(
    tmp_path: Path, apart: dict[str, tuple[Any, ...]], fields: dict[str, Any]
) -> None:
    nights = new_nights(tmp_path / "together")
    write(nights, ROWS)
    report = night(nights, **fields)
    assert outcomes(nights) == (outcomes_apart(tmp_path / "apart", **fields) if fields else apart)
    assert report.embedded + report.rejected + report.failed + report.filtered == len(ROWS)
    night(nights, **fields)
    assert nights.embedded[-1] == ["row-0-5"] or "keep" in fields  # the missing file is looked for once


def test_a_picture_is_read_once_whatever_is_added_later(nights: Nights) -> None:
    write(nights, ROWS)
    night(nights)
    read = ["row-0-0", "row-0-1", "row-0-2", "row-0-4", "row-0-5"]
    without_uri = [f"row-{number}-6" for number in range(3)]
    assert sorted(nights.embedded[-1]) == sorted([*read, *without_uri])
    write(nights, [*ROWS, *({"uri": uri, "id": f"new-{uri}", "price": 1} for uri in ("a.bmp", "wide.png"))])
    night(nights)
    assert {*nights.embedded[-1]} <= {image_id for image_id in outcomes(nights) if image_id[-1] in "56"}
    rows = outcomes(nights)
    assert rows["new-a.bmp"][:-1] == rows["row-0-0"][:-1]


def test_another_column_of_ids_reads_nothing_again(nights: Nights) -> None:
    rows = [row for row in ROWS if row["uri"] in ("a.bmp", "b.bmp", "wide.png")]
    write(nights, [{"uri": row["uri"], "sku": row["id"]} for row in rows])
    night(nights)
    a = f"{nights.pictures}/a.bmp"
    assert {a, f"{a}#2", f"{a}#9"} <= outcomes(nights).keys()
    assert len(nights.embedded[-1]) == 3
    night(nights, id_column="sku")
    assert nights.embedded[-1] == []
    assert outcomes(nights).keys() == {row["id"] for row in rows}


def test_a_changed_address_is_read_again(nights: Nights) -> None:
    write(nights, [{"uri": "a.bmp", "id": "1"}, {"uri": "a.bmp", "id": "2"}])
    night(nights)
    write(nights, [{"uri": "a.bmp", "id": "1"}, {"uri": "b.bmp", "id": "2"}])
    night(nights)
    assert nights.embedded[-1] == ["2"]
    write(nights, [{"uri": "b.bmp", "id": "1"}, {"uri": "b.bmp", "id": "2"}, {"uri": "b.bmp", "id": "3"}])
    night(nights)
    rows = outcomes(nights)
    assert rows["1"] == rows["2"] == rows["3"]
    assert nights.embedded[-1] == ["1"]


def test_a_killed_job_continues_with_what_it_has(tmp_path: Path, apart: dict[str, tuple[Any, ...]]) -> None:
    nights = new_nights(tmp_path / "together")
    nights.block = 2
    write(nights, ROWS)
    with pytest.raises(KilledError):
        night(nights, before_block=kill)
    expire(nights.collection.storage)
    night(nights)
    assert outcomes(nights) == apart
    first = {image_id for image_id in nights.embedded[0][:2] if image_id[-1] in "024"}
    assert first.isdisjoint(nights.embedded[1])
    assert len(nights.collection.live_rows()) == len(ROWS)
