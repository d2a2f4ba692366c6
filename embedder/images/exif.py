"""Reads from EXIF when, where and with which camera a picture was taken. Damaged EXIF costs no picture."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

EXIF_COLUMNS: Final = {
    "exif_taken": "timestamp[us]",  # by the camera's clock, without a time zone
    "exif_camera": "string",
    "exif_latitude": "double",
    "exif_longitude": "double",
}
"""The columns that `read_exif` returns, with Arrow's names of their types."""
EXIF_VERSION: Final = 1
"""Raise it when columns or how they are read change: pictures that were read by a lower one are read again."""

_MAX_BYTES: Final = 2**20  # in a JPEG it has at most 64 KiB
_MAX_CHARACTERS: Final = 100
_FIRST_YEAR: Final = 1826  # of the oldest surviving photograph
_END_YEAR: Final = 2100
_TIME: Final = re.compile(
    r"(\d{4})[:/.-](\d{1,2})[:/.-](\d{1,2})"
    r"(?:[ T_-] ?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:[.,](\d+))?)? ?(?:Z|[+-]\d{1,2}(?::?\d{2})?)?)?",
    re.ASCII,
)


def read_exif(image: Image.Image) -> dict[str, Any]:
    """The values of `EXIF_COLUMNS` for an opened picture, without missing and nonsensical ones. Never raises.

    The time is in microseconds since 1970 by the camera's clock, whatever its offset, which EXIF rarely has. Degrees
    are in WGS 84.
    """
    values: dict[str, Any] = {}
    with suppress(Exception):  # for damaged metadata Pillow raises nearly anything
        if len(image.info.get("exif") or b"") > _MAX_BYTES:
            return {}
        exif = image.getexif()
        values["exif_camera"] = _camera(exif.get(Base.Make), exif.get(Base.Model))
        with suppress(Exception):
            # TIFF/EP has them in the first directory.
            directories = (exif.get_ifd(IFD.Exif), exif)
            tags = (Base.DateTimeOriginal, Base.DateTimeDigitized)
            times = (_time(directory.get(tag)) for tag in tags for directory in directories)
            values["exif_taken"] = next((time for time in times if time is not None), None)
        with suppress(Exception):
            place = exif.get_ifd(IFD.GPSInfo)
            latitude = _degrees(place.get(GPS.GPSLatitude), place.get(GPS.GPSLatitudeRef), "NS", 90)
            longitude = _degrees(place.get(GPS.GPSLongitude), place.get(GPS.GPSLongitudeRef), "EW", 180)
            # Devices without a fix write zeros.
            if latitude is not None and longitude is not None and (latitude or longitude):
                values |= {"exif_latitude": latitude, "exif_longitude": longitude}
    return {name: value for name, value in values.items() if value is not None}


def _camera(make: object, model: object) -> str | None:
    """Make and model; most models already begin with the make."""
    names = [_text(make), _text(model)]
    if names[0].split(" ")[0].lower() == names[1].split(" ")[0].lower():
        names = names[1:]
    return " ".join(name for name in names if name) or None


def _text(value: object) -> str:
    value = value.decode("latin-1") if isinstance(value, bytes) else value
    text = "".join(c if c.isprintable() else " " for c in value) if isinstance(value, str) else ""
    return " ".join(text.split())[:_MAX_CHARACTERS]


def _time(value: object) -> int | None:
    """In microseconds; also as editors and messengers write it, with other separators, a fraction or an offset."""
    if isinstance(value, str):  # text ends with its first zero, unless that stands for the space before the hour
        value = value[:11] + value[11:].partition("\0")[0]
    if (found := _TIME.fullmatch(_text(value))) is None:
        return None
    *parts, fraction = found.groups(default="0")
    with suppress(ValueError):  # no such day or hour
        year, month, day, hour, minute, second = map(int, parts)
        taken = datetime(year, month, day, hour, minute, second, int(fraction[:6].ljust(6, "0")), tzinfo=UTC)
        if _FIRST_YEAR <= taken.year < _END_YEAR:
            return (taken - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return None


def _degrees(parts: Any, reference: object, directions: str, limit: int) -> float | None:
    """From degrees, minutes and seconds; the second of the directions is negative."""
    sign = directions.find(_text(reference)[:1].upper() or "?")
    value = sum(float(part) / 60**power for power, part in enumerate(parts))
    return round(-value if sign else value, 7) if sign >= 0 and math.isfinite(value) and 0 <= value <= limit else None
