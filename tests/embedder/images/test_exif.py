"""Values that are read from EXIF, and EXIF that must not make a picture unusable or slow."""

import io
import struct
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from embedder.images import CropSpec
from embedder.images.decoder_pool import DecodePool
from embedder.images.exif import read_exif
from tests.support.pictures.exif import with_exif
from tests.support.pictures.sample_images import encode

BERLIN: dict[int, Any] = {GPS.GPSLatitudeRef: "N", GPS.GPSLatitude: (52.0, 31.0, 12.0)}
BERLIN |= {GPS.GPSLongitudeRef: "E", GPS.GPSLongitude: (13.0, 24.0, 18.0)}
SANTIAGO: dict[int, Any] = {GPS.GPSLatitudeRef: "S", GPS.GPSLatitude: (33.0, 27.0, 0.0)}
SANTIAGO |= {GPS.GPSLongitudeRef: "W", GPS.GPSLongitude: (70.0, 40.0, 0.0)}
NOON = int(datetime(2024, 5, 31, 12, 0, 5, tzinfo=UTC).timestamp()) * 10**6


def as_microseconds(time: datetime | None) -> int | None:
    return None if time is None else (time - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def exif_of(data: bytes) -> dict[str, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return read_exif(image)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_time_camera_and_place_are_read(form: str) -> None:
    north_east = exif_of(with_exif(form, "2024:05:31 12:00:05", "Canon", "Canon EOS R5", BERLIN))
    assert north_east == {
        "exif_taken": NOON,
        "exif_camera": "Canon EOS R5",
        "exif_latitude": pytest.approx(52.52),
        "exif_longitude": pytest.approx(13.405),
    }
    south_west = exif_of(with_exif(form, None, "Google", "Pixel 8", SANTIAGO))
    assert south_west["exif_camera"] == "Google Pixel 8"
    assert "exif_taken" not in south_west
    assert (south_west["exif_latitude"], south_west["exif_longitude"]) == pytest.approx((-33.45, -70.6666667))


@pytest.mark.parametrize(
    ("taken", "make", "place"),
    [
        ("0000:00:00 00:00:00", "", {}),
        ("yesterday", "\0\0", {GPS.GPSLatitude: (1.0, 2.0, 3.0)}),  # without its hemisphere
        ("2024:13:31 12:00:05", " ", BERLIN | {GPS.GPSLatitude: (91.0, 0.0, 0.0)}),
        ("0001:01:01 00:00:00", None, {}),
        ("9999:12:31 23:59:59", None, {}),
        (None, None, BERLIN | {GPS.GPSLatitude: (0.0, 0.0, 0.0), GPS.GPSLongitude: (0.0, 0.0, 0.0)}),
    ],
)
def test_nonsensical_values_are_left_out(taken: str | None, make: str | None, place: dict[int, Any]) -> None:
    assert exif_of(with_exif("JPEG", taken, make, None, place)) == {}


TIMES: dict[str | None, list[str]] = {
    "2020-01-02 03:04:05": [
        *("2020:01:02 03:04:05", "2020-01-02 03:04:05", "2020/01/02 03:04:05", "2020.01.02 03:04:05"),
        *("2020:01:02T03:04:05", "2020-01-02T03:04:05Z", "2020:01:02  03:04:05", " 2020:01:02 03:04:05"),
        *("2020:01:02 03:04:05\0\0", "2020:01:02\x0003:04:05", "2020:01:02\x0003:04:05\0rest", "2020:1:2 3:4:5"),
        *("2020:01:02 03:04:05\0old value", "2020-01-02 03:04:05+02", "2020-01-02-03:04:05"),
        *("2020:01:02 03:04:05+02:00", "2020:01:02 03:04:05 -0330"),
    ],
    "2020-01-02 03:04:00": ["2020:01:02 03:04", "2020-01-02T03:04Z"],
    "2020-01-02 00:00:00": ["2020:01:02"],
    "2020-01-02 03:04:05.123": ["2020:01:02 03:04:05.123"],
    "2020-01-02 03:04:05.5": ["2020:01:02 03:04:05,5", "2020-01-02T03:04:05.5+02:00"],
    "2020-01-02 03:04:05.123456": ["2020:01:02 03:04:05.1234567"],
    None: [
        *("2020:02:30 03:04:05", "2020:01:02 24:00:00", "2020:01:02 03:04:60", "02/01/2020 03:04:05", "2020", ""),
        *("٢٠٢٠:01:02 03:04:05", "2020:01:02 03:04:05 and more", "    :  :     :  :  ", "0000:00:00 00:00:00"),
    ],
}


@pytest.mark.parametrize(("text", "expected"), [(text, time) for time, texts in TIMES.items() for text in texts])
def test_times_in_the_forms_that_programs_write(text: str, expected: str | None) -> None:
    taken = None if expected is None else datetime.fromisoformat(expected)
    digitized: dict[int, Any] = {Base.DateTimeDigitized: "2018:05:06 07:08:09"}
    for details, fallback in (({}, None), (digitized, datetime(2018, 5, 6, 7, 8, 9))):
        found = exif_of(with_exif("JPEG", text, details=details)).get("exif_taken")
        assert found == as_microseconds(taken or fallback)


def test_times_in_the_first_directory_are_read() -> None:
    exif = Image.Exif()
    exif[Base.DateTimeOriginal] = "2020:01:02 03:04:05"  # as TIFF/EP has it
    data = encode(Image.new("L", (8, 8)), "TIFF", exif=exif.tobytes())
    assert exif_of(data) == {"exif_taken": as_microseconds(datetime(2020, 1, 2, 3, 4, 5))}


def hostile() -> dict[str, bytes]:
    """EXIF that is damaged, points to itself, or would be read many times."""
    good = Image.Exif()
    good[Base.Make] = "Canon"
    whole = good.tobytes()
    head = b"Exif\0\0II*\0\x08\0\0\0"
    entries = [struct.pack("<HHII", tag, 7, 60_000, 8) for tag in range(1, 5_000)]
    return {
        "cut": whole[:-3],
        "noise": b"Exif\0\0" + np.random.default_rng(0).bytes(5_000),
        "far directory": b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\x99" * 40,
        "itself": head + struct.pack("<H", 1) + struct.pack("<HHII", IFD.Exif, 4, 1, 8) + b"\0" * 4,
        "overlapping": head + struct.pack("<H", len(entries)) + b"".join(entries) + b"\0" * 4,
        "far": head + struct.pack("<H", 1) + struct.pack("<HHII", IFD.GPSInfo, 4, 1, 2**32 - 1) + b"\0" * 4,
    }


def test_hostile_exif_makes_no_picture_unusable() -> None:
    crop = CropSpec(side=32, shortest_edge=32)
    with closing(DecodePool(1)) as pool:
        for name, exif in hostile().items():
            decoded = pool.decode(encode(Image.new("RGB", (40, 40), "red"), "jpeg", exif=exif), crop, exif=True)
            assert (decoded.width, decoded.format) == (40, "jpeg"), name
            assert decoded.exif.keys() <= {"exif_camera"}, name
        large = Image.Exif()
        large[Base.Make] = "x" * 2**21
        file = encode(Image.new("RGB", (40, 40), "red"), "webp", exif=large.tobytes())
        assert pool.decode(file, crop, exif=True).exif == {}  # over a mebibyte
