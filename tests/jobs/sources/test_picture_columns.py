"""Parquet files that hold pictures: which column is theirs, whatever else is in the file."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from jobs.errors import SourceError
from tests.support.listings import fetched, list_images, metadata, parquet, put, refused, uris


def picture(shade: int, form: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (shade, 99, 255 - shade)).save(file, form)
    return file.getvalue()


JPEGS = [picture(shade) for shade in (0, 80, 160)]
PNGS = [picture(shade, "PNG") for shade in (0, 80, 160)]
DEAD = [f"http://dead.test/{number}.jpg" for number in range(3)]
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FIXED = pa.binary(32)  # all values have as many bytes
HASHES = [bytes([255, number]) * 16 for number in range(3)]


def structs(pictures: list[bytes]) -> "pa.Array[Any]":
    return pa.array([{"bytes": each, "path": "x.jpg"} for each in pictures], STRUCT)


CASES: dict[str, tuple[dict[str, Any], str | None, list[bytes]]] = {  # columns, --uri-column, pictures
    "bytes before a dead url": ({"key": list("abc"), "jpg": JPEGS, "url": DEAD}, None, JPEGS),
    "bytes after a dead url": ({"url": DEAD, "uri": DEAD, "webp": JPEGS}, None, JPEGS),
    "named bytes": ({"jpg": JPEGS, "url": DEAD}, "jpg", JPEGS),
    "a hash before": ({"sha256": HASHES, "jpg": JPEGS}, None, JPEGS),
    "a hash of a fixed size before": ({"sha256": pa.array(HASHES, FIXED), "jpg": JPEGS}, None, JPEGS),
    "a hash before, and a url": ({"sha256": HASHES, "jpg": JPEGS, "url": DEAD}, None, JPEGS),
    "text as bytes before": ({"caption": [b"a", b"b", b"c"], "content": PNGS}, None, PNGS),
    "vectors before": ({"embedding": [b"\0" * 2048] * 3, "image": structs(JPEGS)}, None, JPEGS),
    "pickles and archives before": ({"a": [b"\x80\x04K\x01."] * 3, "b": [b"PK\3\4zip"] * 3, "c": PNGS}, None, PNGS),
    "masks, named": ({"image": structs(JPEGS), "mask": structs(PNGS)}, "mask", PNGS),
    "masks, not named": ({"image": structs(JPEGS), "mask": structs(PNGS)}, None, JPEGS),
    "large binary": ({"hash": HASHES, "x": pa.array(PNGS, pa.large_binary())}, None, PNGS),
    "first rows without a picture": ({"hash": HASHES * 20, "x": [*[None] * 57, *PNGS]}, None, PNGS),
    "broken ones": ({"jpg": [b"broken", b"", b"\xff"]}, None, [b"broken", b"", b"\xff"]),
    "broken ones, named": ({"url": DEAD, "jpg": [b"br\xf6ken", b"", b"\xff"]}, "jpg", [b"br\xf6ken", b"", b"\xff"]),
    "one broken one": ({"hash": HASHES, "jpg": [b"broken", *PNGS[:2]]}, None, [b"broken", *PNGS[:2]]),
    "dictionary": ({"x": pa.array(JPEGS).dictionary_encode(), "url": DEAD}, None, JPEGS),
    "codes that begin like a BMP": ({"code": [b"BMW 320d, a car", b"BMX", b"BM"], "x": PNGS, "url": DEAD}, None, PNGS),
    "BMPs": ({"hash": HASHES, "x": [picture(9, "BMP")] * 3}, None, [picture(9, "BMP")] * 3),
    "a binary id": ({"id": [b"x", b"y", b"z"], "jpg": JPEGS}, None, JPEGS),
    "a column named url": ({"url": JPEGS, "caption": DEAD}, None, JPEGS),
    "dots in the name": ({"a.b": HASHES, "image.bytes": PNGS}, None, PNGS),
    "a struct with more": ({"x": [{"size": 1, "bytes": each, "meta": {"bytes": b"x"}} for each in JPEGS]}, None, JPEGS),
}


@pytest.mark.parametrize(("columns", "named", "pictures"), CASES.values(), ids=CASES.keys())
def test_pictures_are_found_by_their_content(
    tmp_path: Path, columns: dict[str, Any], named: str | None, pictures: list[bytes]
) -> None:
    put(tmp_path / "a.parquet", parquet(**columns))
    listing = list_images(str(tmp_path), uri_column=named)
    assert listing.num_rows == len(next(iter(columns.values())))
    assert fetched(listing.slice(listing.num_rows - 3)) == pictures


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"jpg": JPEGS, "url": DEAD}, "url"),
        ({"jpg": JPEGS, "link": DEAD}, "link"),
        ({"sha256": HASHES, "url": DEAD}, None),
        ({"jpg": pa.nulls(3, pa.binary()), "url": DEAD}, None),
        ({"url": pa.array(DEAD).cast(pa.binary())}, None),  # as Impala and old versions of Spark write text
        ({"hash": HASHES, "link": pa.array(DEAD).cast(pa.binary())}, "link"),
    ],
)
def test_addresses_are_read_where_no_column_has_pictures(
    tmp_path: Path, columns: dict[str, Any], named: str | None
) -> None:
    location = str(put(tmp_path / "a.parquet", parquet(**columns)))
    assert uris(list_images(location, uri_column=named)) == DEAD


@pytest.mark.parametrize(
    ("columns", "named", "notes"),
    [
        ({"jpg": JPEGS, "url": DEAD, "label": [1, 2, 3]}, None, []),
        ({"jpg": JPEGS, "mask": PNGS, "sha": HASHES}, None, ["columns of bytes are left out (`mask`, `sha`)"]),
        ({"url": DEAD, "sha": pa.array(HASHES, FIXED)}, None, ["columns of bytes are left out (`sha`)"]),
        (
            {"url": DEAD, "x": pa.array([[each] for each in HASHES], pa.list_(FIXED))},
            None,
            ["columns of bytes are left out (`x`)"],
        ),
        ({"url": DEAD, "x": [[each] for each in JPEGS]}, None, ["columns of bytes are left out (`x`)"]),
        ({"url": DEAD, "x": [{"data": each} for each in JPEGS]}, None, ["columns of bytes are left out (`x`)"]),
        (
            {"url": DEAD, "__index_level_0__": [4, 7, 9]},
            None,
            ["columns of an unnamed index of pandas are left out (`__index_level_0__`)"],
        ),
        ({"jpg": JPEGS}, "jgp", ["lists have no column `jgp`, so their pictures in `jpg` are taken"]),
    ],
)
def test_columns_that_are_not_read_are_said(
    tmp_path: Path, columns: dict[str, Any], named: str | None, notes: list[str]
) -> None:
    put(tmp_path / "a.parquet", parquet(**columns))
    said: dict[str, list[str]] = {}
    assert list_images(str(tmp_path), uri_column=named, notes=said).num_rows == 3
    assert said == {note: ["a.parquet"] for note in notes}


def test_the_address_of_a_picture_in_the_file_is_metadata(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", parquet(sha=HASHES, jpg=JPEGS, url=DEAD, status=["ok"] * 3, boxes=[[HASHES[0]]] * 3))
    assert metadata(list_images(str(tmp_path))) == {"url": DEAD, "status": ["ok"] * 3}


def test_a_table_of_hashes_beside_pictures_is_no_list(tmp_path: Path) -> None:
    put(tmp_path / "a.jpg", JPEGS[0])
    put(tmp_path / "a.parquet", parquet(sha=pa.array(HASHES, FIXED)))
    left_out = Counter[str]()
    assert uris(list_images(str(tmp_path), left_out=left_out)) == [f"{tmp_path}/a.jpg"]
    assert left_out == {".parquet without addresses or pictures": 1}


@pytest.mark.parametrize("values", [[[JPEGS[0], JPEGS[1]]], [[{"bytes": JPEGS[0], "path": None}]]])
def test_several_pictures_in_a_row_are_refused(tmp_path: Path, values: list[Any]) -> None:
    location = str(put(tmp_path / "a.parquet", parquet(id=["a"], images=values)))
    with pytest.raises(SourceError, match="one picture in each row, got lists or structs of bytes in `images`"):
        list_images(location)


def test_a_column_name_that_is_not_utf8_rejects_only_its_file(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", parquet(jpg=JPEGS))
    put(tmp_path / "b.parquet", parquet(**{"caf_": ["x"], "jpg": JPEGS[:1]}).replace(b"caf_", b"caf\xe9"))
    listing = list_images(str(tmp_path))
    assert listing.num_rows == 4
    assert refused(listing)["b.parquet"][0] == "unreadable"
