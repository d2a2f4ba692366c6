"""Minimal DNG files: sensor pixels, and optionally a preview."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image

_FROM_XYZ = (32_406, -15_372, -4_986, -9_689, 18_758, 415, 557, -2_040, 10_570)  # to linear sRGB, × 10,000
_BYTE, _TEXT, _SHORT, _RATIONAL, _SIGNED_RATIONAL = 1, 2, 3, 5, 10


def dng(picture: Image.Image, *, orientation: int = 1, preview: bytes | None = None) -> bytes:
    """The picture as a sensor behind red, green and blue filters sees it, in 16 bits."""
    mosaic = _mosaic(np.asarray(picture.convert("RGB")))
    camera: list[tuple[Any, ...]] = [
        (271, _TEXT, 0, "Drawn", True),
        (274, _SHORT, 1, orientation, True),
        (50706, _BYTE, 4, (1, 4, 0, 0), True),
        (50708, _TEXT, 0, "Drawn", True),
        (50721, _SIGNED_RATIONAL, 9, [part for value in _FROM_XYZ for part in (value, 10_000)], True),
        (50728, _RATIONAL, 3, (10_000, 10_000) * 3, True),
    ]
    sensor: list[tuple[Any, ...]] = [
        (33421, _SHORT, 2, (2, 2), True),
        (33422, _BYTE, 4, (0, 1, 1, 2), True),
        (50714, _SHORT, 1, 0, True),
        (50717, _SHORT, 1, 65535, True),
    ]
    plain: Any = {"metadata": None, "software": False}
    with io.BytesIO() as file, tifffile.TiffWriter(file) as writer:
        if preview:  # the first directory, with the sensor's below it
            with Image.open(io.BytesIO(preview)) as image:
                small: Any = {"shape": (image.height, image.width, 3), "rowsperstrip": image.height, "dtype": "u1"}
            small |= {"photometric": "ycbcr", "compression": "jpeg", "subfiletype": 1, "subifds": 1}
            writer.write(iter([preview]), **small, extratags=camera, **plain)
        tags = sensor if preview else camera + sensor
        writer.write(mosaic, photometric="cfa", rowsperstrip=len(mosaic), extratags=tags, **plain)
        return file.getvalue()


def _mosaic(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    linear = np.round((rgb / 255.0) ** 2.2 * 65535).astype(np.uint16)
    mosaic = linear[..., 1].copy()
    mosaic[::2, ::2], mosaic[1::2, 1::2] = linear[::2, ::2, 0], linear[1::2, 1::2, 2]
    return mosaic
