"""Signatures that show whether two files have the same picture: a digest of its pixels, and a small copy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from PIL import Image
from PIL.ExifTags import IFD, Base

from embedder.images.decode import CropSpec, render, upright
from embedder.images.formats import picture_format
from embedder.images.limits import ImageLimits
from embedder.images.opening import open_image
from embedder.images.pixel_modes import DeepGrey
from embedder.images.resize import Box, Size

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_STRIP: Final = 2**20  # pixels that are converted at a time
_EIGHT_BITS: Final = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX"})
_LOSSLESS: Final = frozenset({"PNG", "GIF", "BMP", "RAW"})
_CAMERA_TAGS: Final = {Base.Make, Base.Model, Base.DateTime, IFD.Exif, IFD.GPSInfo}
"""Without the orientation and a TIFF's sizes, which are no loss."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """`pixels` are the whole picture squashed into `(side, side, 3)` RGB. Equal digests mean equal pixels as displayed.

    `digest` is None for an animation, because it would only cover the first frame. `exif`: whether the file says when,
    where or with which camera the picture was taken.
    """

    digest: str | None
    lossless: bool
    exif: bool
    pixels: npt.NDArray[np.uint8]


def signature(data: bytes, side: int, *, limits: ImageLimits) -> tuple[dict[str, Any], bytes]:
    """The facts and the pixels of a `Signature`; raises `ImageError`. Works without NumPy, like `decode_rgb`."""
    with open_image(data, limits) as opened:
        [rgb], _ = render(opened, [CropSpec(side=side, shortest_edge=None).fit])
        image = opened.image
        facts = {
            "digest": None if _is_animation(image) else _digest(upright(image), DeepGrey.of(image)),
            "lossless": _is_lossless(image, data),
            "exif": _has_exif(image),
        }
        return facts, rgb.tobytes()


def whole_picture(data: bytes, max_pixels: int, *, limits: ImageLimits) -> tuple[dict[str, Any], bytes]:
    """The size and RGB pixels of a whole picture as displayed, reduced to `max_pixels`; raises `ImageError`."""

    def fit(width: int, height: int) -> tuple[Size, Box]:
        scale = min(1.0, (max_pixels / (width * height)) ** 0.5)
        return (max(1, round(width * scale)), max(1, round(height * scale))), (0, 0, width, height)

    with open_image(data, limits) as opened:
        [rgb], _ = render(opened, [fit])
        return {"size": rgb.size}, rgb.tobytes()


def _digest(image: Image.Image, deep: DeepGrey | None) -> str:
    """A digest of size and pixels, which does not depend on format or palette."""
    mode = "RGBA" if image.mode in _EIGHT_BITS and deep is None else image.mode
    digest = hashlib.blake2b(f"{mode} {deep or ''} {image.width}x{image.height} ".encode(), digest_size=16)
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        digest.update((strip.convert("RGBA") if mode == "RGBA" else strip).tobytes())
    return digest.hexdigest()


def _is_animation(image: Image.Image) -> bool:
    # An MPO, as phones write it, has several views of the same moment.
    return image.format != "MPO" and bool(getattr(image, "is_animated", False))


def _is_lossless(image: Image.Image, data: bytes) -> bool:
    match picture_format(data):
        case "WEBP":
            return b"VP8L" in data[:4096]
        case "TIFF":
            return image.info.get("compression") not in ("jpeg", "tiff_jpeg", "webp")
        case name:
            return name in _LOSSLESS


def _has_exif(image: Image.Image) -> bool:
    try:
        return not _CAMERA_TAGS.isdisjoint(image.getexif())
    except Exception:  # broken metadata must not make a picture unusable
        return False
