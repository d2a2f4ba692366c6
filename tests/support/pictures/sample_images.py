"""Pictures with known colours, and their bytes in any format."""

import functools
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from embedder.errors import ImageError
from embedder.images import CropSpec
from jobs.demo.broken import png_chunk
from jobs.demo.gallery import STORED_AS

WHOLE = CropSpec(side=64, shortest_edge=None)
CENTRE = CropSpec(side=64, shortest_edge=64)
RED, GREEN, BLUE, YELLOW = (220, 30, 30), (30, 200, 40), (40, 60, 220), (230, 220, 40)
QUARTERS = (RED, GREEN, BLUE, YELLOW)
SAVE: dict[str, dict[str, object]] = {name: {} for name in ("png", "gif", "bmp", "tiff")}
SAVE |= {"jpeg": {"quality": 95}, "webp": {"quality": 90}, "avif": {"quality": 90}}


def encode(image: Image.Image, name: str, **options: object) -> bytes:
    target = io.BytesIO()
    image.save(target, name, **{**SAVE.get(name, {}), **options})
    return target.getvalue()


def quarters(width: int = 96, height: int = 64) -> Image.Image:
    """Four quarters: red, green / blue, yellow."""
    return four("RGB", *QUARTERS, size=(width, height))


def four(mode: str, *colours: tuple[int, ...], size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Four quarters with these colours: top left, top right, bottom left, bottom right."""
    image, (x, y) = Image.new(mode, size), (size[0] // 2, size[1] // 2)
    for at, colour in zip([(0, 0), (x, 0), (0, y), (x, y)], colours, strict=True):
        image.paste(colour, (*at, size[0], size[1]))
    return image


def corner_error(pixels: npt.NDArray[np.uint8], colours: tuple[tuple[int, ...], ...] = QUARTERS) -> int:
    """Largest difference of a picture's quarters from these colours, in grey levels."""
    a, b = len(pixels) // 4, len(pixels) * 3 // 4
    return int(np.abs(np.subtract([pixels[y, x] for y, x in ((a, a), (a, b), (b, a), (b, b))], colours)).max())


def reason_of(decode: Callable[..., object], *arguments: Any, **options: Any) -> str | None:
    """Why a call rejects its picture; None if it does not."""
    try:
        decode(*arguments, **options)
    except ImageError as error:
        rejection = error
    else:
        return None
    assert rejection.stage == "decode"
    assert len(str(rejection)) > 20
    assert " at 0x" not in str(rejection)
    return rejection.reason


@functools.cache
def smooth(width: int, height: int) -> npt.NDArray[np.uint8]:
    x, y = np.meshgrid(np.linspace(0, 6, width), np.linspace(0, 5, height))
    waves = [128 + 60 * np.sin(x + c) + 60 * np.cos(1.3 * y - c + 0.4 * x) for c in range(3)]
    return np.stack(waves, axis=-1).astype(np.uint8)


def png(width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + extra + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def rotated(image: Image.Image, orientation: int, name: str, **options: object) -> bytes:
    """The encoded picture, stored with this EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = image.transpose(STORED_AS[orientation]) if orientation > 1 else image
    return encode(stored, name, exif=exif, **options)
