"""Converts every pixel mode of files for resizing, and then to RGB.

Resizing happens in between, in a mode in which mixing neighbours is right, so that only the small result needs the
costly part of the conversion.
"""

from collections.abc import Callable

import numpy as np
from PIL import Image


def linear(image: Image.Image) -> tuple[Image.Image, Callable[[Image.Image], Image.Image]]:
    """The picture in a mode that resizes linearly, and a function that turns the resized one into RGB."""
    if image.mode.startswith("I;16"):
        return image.convert("I"), lambda small: _to_grey(small, 0, 65535)
    if image.mode in ("I", "F"):
        low, high = _grey_range(image)
        return image, lambda small: _to_grey(small, low, high)
    if image.has_transparency_data:
        return _over_white(image), lambda small: small
    if image.mode in ("1", "L"):
        return image.convert("L"), lambda small: small.convert("RGB")
    return image.convert("RGB"), lambda small: small


def _over_white(image: Image.Image) -> Image.Image:
    # Before resizing, as the image processors of transformers have it. Resized with its alpha, a picture loses the
    # rings that bicubic resizing draws along edges: they are cut off in colour and alpha, each by itself.
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(rgba, mask=rgba)
    return white


def _grey_range(image: Image.Image) -> tuple[float, float]:
    """The values of black and white in 32-bit grey: the narrowest usual range that fits.

    Files do not have this range. With values below 0 or above all usual ranges, the picture's own range is used.
    """
    low, high = (float(value) for value in image.getextrema())  # type: ignore[arg-type]
    if not np.isfinite((low, high)).all():
        return 0, 1
    if low < 0:
        return low, high
    usual = (255, 65535) if image.mode == "I" else (1, 255, 65535)
    return 0, next((white for white in usual if high <= white), high)


def _to_grey(image: Image.Image, black: float, white: float) -> Image.Image:
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), nan=black, posinf=white, neginf=black)
    grey = np.clip((values - black) * (255 / max(white - black, 1e-12)), 0, 255)
    return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
