"""When, with what and where a picture was taken, as its EXIF says. Nothing in it costs the picture."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

EXIF_COLUMNS: Final = ("exif_taken", "exif_camera", "exif_latitude", "exif_longitude")
"""Columns of what `read_exif` returns."""

_MAX_BYTES: Final = 2**20  # a JPEG's has 64 KiB at most
_MAX_LETTERS: Final = 100
_FIRST_YEAR: Final = 1826  # of the oldest photograph that is left
_PAST_ALL_YEARS: Final = 2100


def read_exif(image: Image.Image) -> dict[str, Any]:
    """The values of an opened picture by `EXIF`, without those that are missing or make no sense.

    The time is in microseconds since 1970 by the camera's clock, as EXIF seldom names its time zone. Degrees are those
    of WGS 84. Raises nothing.
    """
    found: dict[str, Any] = {}
    with suppress(Exception):  # damaged metadata makes Pillow raise nearly anything
        if len(image.info.get("exif") or b"") > _MAX_BYTES:
            return {}
        exif = image.getexif()
        found["exif_camera"] = _camera(exif.get(Base.Make), exif.get(Base.Model))
        with suppress(Exception):
            details = exif.get_ifd(IFD.Exif)
            found["exif_taken"] = _time(details.get(Base.DateTimeOriginal) or details.get(Base.DateTimeDigitized))
        with suppress(Exception):
            place = exif.get_ifd(IFD.GPSInfo)
            latitude = _degrees(place.get(GPS.GPSLatitude), place.get(GPS.GPSLatitudeRef), "NS", 90)
            longitude = _degrees(place.get(GPS.GPSLongitude), place.get(GPS.GPSLongitudeRef), "EW", 180)
            # Devices without a fix write zeros.
            if latitude is not None and longitude is not None and (latitude or longitude):
                found |= {"exif_latitude": latitude, "exif_longitude": longitude}
    return {name: value for name, value in found.items() if value is not None}


def _camera(make: object, model: object) -> str | None:
    """Most models begin with their make already."""
    names = [_text(make), _text(model)]
    if names[0].split(" ")[0].lower() == names[1].split(" ")[0].lower():
        names = names[1:]
    return " ".join(name for name in names if name) or None


def _text(value: object) -> str:
    letters = "".join(each if each.isprintable() else " " for each in value) if isinstance(value, str) else ""
    return " ".join(letters.split())[:_MAX_LETTERS]


def _time(value: object) -> int | None:
    taken = datetime.strptime(_text(value), "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC)
    if not _FIRST_YEAR <= taken.year < _PAST_ALL_YEARS:
        return None
    return (taken - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _degrees(parts: Any, reference: object, signs: str, most: int) -> float | None:
    """Of degrees, minutes and seconds; the second of the signs is negative."""
    sign = signs.find(_text(reference)[:1].upper() or "?")
    value = sum(float(part) / 60**power for power, part in enumerate(parts))
    return round(-value if sign else value, 7) if sign >= 0 and math.isfinite(value) and 0 <= value <= most else None
