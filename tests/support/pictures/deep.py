"""Pictures of other types than uint8, as TIFF and PNG."""

import io
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image

from jobs.demo.broken import png_chunk
from tests.support.pictures.sample_images import png, smooth

Pixels = npt.NDArray[Any]

RGB = smooth(48, 32)
GREY = np.array(Image.fromarray(RGB).convert("L"))
GREY[0, :2] = 0, 255
TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")


def tiff(pixels: Pixels, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, **{"photometric": "minisblack", "metadata": None, **options})
    return file.getvalue()


def full_range(pixels: npt.NDArray[np.uint8], kind: str) -> Pixels:
    """The same shades in another type: 255 becomes its highest value, or 1 in floats."""
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        return (pixels / 255).astype(dtype)
    return (pixels.astype(object) * int(np.iinfo(dtype).max) // 255).astype(dtype)


def grey_png(depth: int, values: npt.NDArray[np.int_], transparent: int | None = None) -> bytes:
    """A PNG in grey of 1, 2, 4, 8 or 16 bits."""
    bits = np.unpackbits(values.astype(">u2").view(np.uint8).reshape(*values.shape, 2), axis=2)[..., 16 - depth :]
    rows = b"".join(b"\0" + np.packbits(row.ravel()).tobytes() for row in bits)
    key = b"" if transparent is None else png_chunk(b"tRNS", struct.pack(">H", transparent))
    return png(values.shape[1], values.shape[0], depth, 0, rows, key)


def rgb_png(depth: int, values: npt.NDArray[np.int_], transparent: tuple[int, ...]) -> bytes:
    rows = b"".join(b"\0" + row.astype(">u2" if depth == 16 else np.uint8).tobytes() for row in values)
    key = png_chunk(b"tRNS", struct.pack(">3H", *transparent))
    return png(values.shape[1], values.shape[0], depth, 2, rows, key)
