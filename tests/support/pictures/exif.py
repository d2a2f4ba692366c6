"""Pictures with EXIF."""

from collections.abc import Mapping
from typing import Any

from PIL import Image
from PIL.ExifTags import IFD, Base

from tests.support.pictures.sample_images import encode


def with_exif(
    form: str,
    taken: str | None = None,
    make: str | None = None,
    model: str | None = None,
    place: Mapping[int, Any] | None = None,
    colour: str = "red",
    details: Mapping[int, Any] | None = None,
) -> bytes:
    """A small picture of one colour in one of Pillow's formats; `place` has GPS tags, `details` further ones."""
    exif = Image.Exif()
    for tag, value in ((Base.Make, make), (Base.Model, model)):
        if value is not None:
            exif[tag] = value
    if taken is not None:
        exif.get_ifd(IFD.Exif)[Base.DateTimeOriginal] = taken
    exif.get_ifd(IFD.Exif).update(details or {})
    exif.get_ifd(IFD.GPSInfo).update(place or {})
    return encode(Image.new("RGB", (64, 48), colour), form, exif=exif.tobytes())
