"""Resizes pictures of every pixel mode that files have, and converts them to RGB.

A picture is resized in a mode in which neighbouring values can be averaged, so that only the small result needs the
costly part of the conversion. A large picture is converted in strips: as a whole it would take two or three times the
memory.
"""

from collections.abc import Callable
from math import isfinite

from PIL import Image

from embedder.images.resize import Box, Size, resized, rows_for

_STRIP_PIXELS = 2**21

Convert = Callable[[Image.Image], Image.Image]


def resized_rgb(image: Image.Image, size: Size, resample: Image.Resampling, *, box: Box) -> Image.Image:
    """The `box` of a loaded picture, resized to `size`, as RGB."""
    convert, to_rgb = _conversions(image)
    if convert is None:
        return to_rgb(resized(image, size, resample, box))
    if image.width * image.height <= _STRIP_PIXELS:
        return to_rgb(resized(convert(image), size, resample, box))
    return to_rgb(_resized_in_strips(image, convert, size, resample, box))


def as_rgb(image: Image.Image) -> Image.Image:
    """A whole loaded picture as RGB; makes copies of it in memory."""
    convert, to_rgb = _conversions(image)
    return to_rgb(convert(image) if convert else image)


def _resized_in_strips(
    image: Image.Image, convert: Convert, size: Size, resample: Image.Resampling, box: Box
) -> Image.Image:
    """The same pixels as from resizing `convert(image)`, which also resizes the rows first, then the columns."""
    first, last = rows_for(image.height, size, box)
    step = max(1, _STRIP_PIXELS // image.width)
    strips = []
    for top in range(first, last, step):
        strip = convert(image.crop((0, top, image.width, min(top + step, last))))
        strips.append(resized(strip, (size[0], strip.height), resample, (box[0], 0, box[2], strip.height)))
    narrow = Image.new(strips[0].mode, (size[0], last - first))
    for number, strip in enumerate(strips):
        narrow.paste(strip, (0, number * step))
    return resized(narrow, size, resample, (0, box[1] - first, size[0], box[3] - first))


def _conversions(image: Image.Image) -> tuple[Convert | None, Convert]:
    """Conversions to a mode whose values can be averaged (None if it has one), and from there to RGB."""
    if image.mode.startswith("I;16"):
        return lambda part: part.convert("I"), lambda small: _to_grey(small, 0, 65535)
    if image.mode in ("I", "F"):
        low, high = _grey_range(image)
        return None, lambda small: _to_grey(small, low, high)
    if image.has_transparency_data:
        return _over_white, lambda small: small
    if image.mode == "L":
        return None, lambda small: small.convert("RGB")
    if image.mode == "1":
        return lambda part: part.convert("L"), lambda small: small.convert("RGB")
    return None if image.mode == "RGB" else (lambda part: part.convert("RGB")), lambda small: small


def _over_white(image: Image.Image) -> Image.Image:
    # Before resizing, like the image processors of transformers. If a picture is resized with its alpha, colour and
    # alpha are clipped separately, and the rings along edges that bicubic resizing draws are lost.
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(rgba, mask=rgba)
    return white


def _grey_range(image: Image.Image) -> tuple[float, float]:
    """The values of black and white in 32-bit grey: the narrowest usual range that fits, because files do not name it.

    If values are below 0 or above all usual ranges, the picture's own range is used.
    """
    low, high = (float(value) for value in image.getextrema())  # type: ignore[arg-type]
    if not (isfinite(low) and isfinite(high)):
        return 0, 1
    if low < 0:
        return low, high
    usual = (255, 65535) if image.mode == "I" else (1, 255, 65535)
    return 0, next((white for white in usual if high <= white), high)


def _to_grey(image: Image.Image, black: float, white: float) -> Image.Image:
    import numpy as np  # slow to import, and few pictures need it

    values = np.nan_to_num(np.asarray(image, dtype=np.float64), nan=black, posinf=white, neginf=black)
    grey = np.clip((values - black) * (255 / max(white - black, 1e-12)), 0, 255)
    return Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")
