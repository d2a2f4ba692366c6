"""Pixels of other types than uint8, which Pillow cannot hold or averages wrongly: their range of values, as 8 bits.

A type's range is known for RGB. Grey pictures often use only a part of it, without saying so: a camera's 12 bits in 16,
fractions from 0 to 1. For them the narrowest usual range that fits is taken.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]
Range = tuple[float, float]
"""The values of black and white."""

_USUAL_WHITES: Final = (255, 4095, 65535)
# Floats may hold anything. Integers of 32 and 64 bits that use less than a 16th of their range are counts or heights.
_LEAST_SHARE: Final = 1 / 16


def extremes(values: Array, no_data: float | None = None) -> Range:
    """The lowest and highest value, without those that mean nothing; (inf, -inf) if there are no others."""
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    if no_data is not None:
        values = values[values != no_data]
    return (float(values.min()), float(values.max())) if values.size else (float("inf"), float("-inf"))


def value_range(low: float, high: float, dtype: np.dtype[Any], *, bits: int | None = None) -> Range:
    """The range of a grey picture with these extremes. With values below 0 it is the picture's own.

    `bits` are those that the file declares, if they are fewer than the type's.
    """
    if low > high:
        return 0, 1
    if low < 0:
        return low, high
    if dtype.kind == "f":
        return 0, next((white for white in (1, *_USUAL_WHITES) if high <= white), high)
    top = type_range(dtype, bits=bits)[1]
    if top <= _USUAL_WHITES[0]:
        return 0, top
    least = top if high >= top * _LEAST_SHARE else high
    return 0, next((white for white in _USUAL_WHITES if high <= white < top), least)


def type_range(dtype: np.dtype[Any], *, bits: int | None = None) -> Range:
    """The range of a type of integers: 0 to its highest value."""
    return 0, 2**bits - 1 if bits else 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


def levels(values: Array, black: float, white: float, no_data: float | None = None) -> npt.NDArray[np.uint8]:
    """The values as 0 … 255. NaN and `no_data` become black; `black` may be the higher one."""
    grey = values.astype(np.float64)
    if no_data is not None:
        grey[values == no_data] = np.nan
    scale = 255 / (white - black or 1e-12)
    grey = np.clip((np.nan_to_num(grey, nan=np.nan, posinf=1e300, neginf=-1e300) - black) * scale, 0, 255)
    return np.nan_to_num(grey, nan=0.0).round().astype(np.uint8)


def image_of(
    pixels: Array,
    *,
    alpha: str | None = None,
    inverted: bool = False,
    bits: int | None = None,
    no_data: float | None = None,
) -> Image.Image:
    """`(height, width)` or `(height, width, bands)` of any real type as a picture of 8 bits: the first band in grey, or
    from three bands on the first three as RGB.

    `alpha` says whether the band after them is "straight" or "premultiplied". `inverted`: 0 is white. Raises TypeError
    for other types.
    """
    if pixels.dtype.kind not in "buif" or pixels.dtype.itemsize > 8:
        raise TypeError(f"values of type {pixels.dtype}")
    colour = pixels if pixels.ndim == 2 else pixels[..., :1] if pixels.shape[2] < 3 else pixels[..., :3]
    is_grey = colour.ndim == 2 or colour.shape[2] == 1
    if pixels.dtype.kind in "bu" and (not is_grey or pixels.dtype.itemsize == 1):
        black, white = type_range(pixels.dtype, bits=bits)
    else:
        black, white = value_range(*extremes(colour, no_data), pixels.dtype, bits=bits)
    shades = levels(colour, *((white, black) if inverted else (black, white)), no_data)
    shades = shades[..., 0] if shades.shape[2:] == (1,) else shades
    image = Image.fromarray(shades)
    if alpha is None:
        return image
    band = pixels[..., 1 if is_grey else 3]
    opaque = value_range(*extremes(band), band.dtype) if band.dtype.kind == "f" else type_range(band.dtype, bits=bits)
    mask = Image.fromarray(levels(band, *opaque))
    if alpha == "premultiplied":
        together = Image.merge("RGBA", [*image.convert("RGB").split(), mask])
        return Image.frombytes("RGBa", image.size, together.tobytes()).convert("RGBA")
    image.putalpha(mask)
    return image
