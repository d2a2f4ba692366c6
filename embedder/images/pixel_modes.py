"""Resizes pictures of every pixel mode that files have, and converts them to RGB.

A picture is resized in a mode in which neighbouring values can be averaged, so that only the small result needs the
costly part of the conversion. A large picture is converted in strips: as a whole it would take two or three times the
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from PIL import Image
from PIL.ImageFile import ImageFile

from embedder.images.resize import Box, Size, resized, rows_for

_STRIP_PIXELS = 2**21
_DEEP_STRIP_PIXELS = 2**18  # as numbers of 64 bits they take 2 MiB, several times
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA"})
_NATIVE = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
# Tags of a TIFF, and their values.
_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT, _GDAL_NO_DATA = 258, 262, 339, 42113
_UNSIGNED, _SIGNED, _WHITE_IS_ZERO = 1, 2, 0

Convert = Callable[[Image.Image], Image.Image]


def resized_rgb(image: Image.Image, size: Size, resample: Image.Resampling, *, box: Box) -> Image.Image:
    """The `box` of a loaded picture, resized to `size`, as RGB."""
    convert, to_rgb = _conversions(image)
    if convert is None:
        return to_rgb(resized(image, size, resample, box))
    if image.width * image.height <= _STRIP_PIXELS:
        return to_rgb(resized(convert(image), size, resample, box))
    return to_rgb(_resized_in_strips(image, convert, size, resample, box))


def correct(image: Image.Image) -> None:
    """Corrects what Pillow gets wrong about a picture that is not loaded yet."""
    if not isinstance(image, ImageFile) or not image.tile:
        return
    key, codec, arguments = image.info.get("transparency"), image.tile[0].codec_name, image.tile[0].args
    # The transparent colour of a PNG in the depth that its pixels will have.
    if codec == "zip" and isinstance(key, tuple) and arguments == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in key)
    elif codec == "zip" and isinstance(key, int) and arguments in ("L;2", "L;4"):
        image.info["transparency"] = key * (85 if arguments == "L;2" else 17)
    # libtiff returns numbers in the machine's order of bytes.
    elif codec == "libtiff" and isinstance(arguments, tuple) and (native := _NATIVE.get(arguments[0])):
        image.tile = [tile._replace(args=(native, *arguments[1:])) for tile in image.tile]


def in_png_mode(image: Image.Image) -> Image.Image:
    """A loaded picture in a mode that PNG has, with 8 bits; others become RGB, as pictures in files do."""
    return image if image.mode in _PNG_MODES and DeepGrey.of(image) is None else as_rgb(image)


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
    if (deep := DeepGrey.of(image)) is not None:
        return deep.convert, lambda small: small.convert("RGB")
    if image.has_transparency_data or image.mode == "La":
        return _over_white, lambda small: small
    if image.mode == "L":
        return None, lambda small: small.convert("RGB")
    if image.mode == "1":
        return lambda part: part.convert("L"), lambda small: small.convert("RGB")
    return None if image.mode == "RGB" else (lambda part: part.convert("RGB")), lambda small: small


def _over_white(image: Image.Image) -> Image.Image:
    # Before resizing, like the image processors of transformers. If a picture is resized with its alpha, colour and
    # alpha are clipped separately, and the rings along edges that bicubic resizing draws are lost.
    straight = image.convert("LA") if image.mode == "La" else image
    rgba = straight if image.mode == "RGBA" else straight.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(rgba, mask=rgba)
    return white


class DeepGrey(NamedTuple):
    """What the values of a picture in grey mean, if they are of another type than uint8."""

    dtype: str
    black: float
    white: float
    no_data: float | None
    """The value of pixels that a map has no data for."""
    transparent: int | None

    @classmethod
    def of(cls, image: Image.Image) -> DeepGrey | None:
        """For a loaded picture; None if it is of uint8."""
        if not (image.mode[0] in "IF" or (image.mode == "L" and _tag(image, _SAMPLE_FORMAT) == _SIGNED)):
            return None
        import numpy as np  # slow to import, and few pictures need it

        from embedder.images.deep_pixels import extremes, value_range

        dtype, bits = _value_type(image)
        no_data = no_data_of(getattr(image, "tag_v2", {}))
        strips = (extremes(np.asarray(strip).view(dtype), no_data) for strip in _strips(image))
        lowest, highest = zip(*strips, strict=True)
        black, white = value_range(min(lowest), max(highest), np.dtype(dtype), bits=bits)
        if image.format == "PNG":  # its depth is the range
            black, white = 0, 65535
        if _tag(image, _PHOTOMETRIC) == _WHITE_IS_ZERO:
            black, white = white, black
        return cls(dtype, black, white, no_data, image.info.get("transparency"))

    def convert(self, part: Image.Image) -> Image.Image:
        """A part of the picture in mode L, transparent pixels white."""
        import numpy as np

        from embedder.images.deep_pixels import levels

        grey = Image.new("L", part.size)
        top = 0
        for strip in _strips(part):
            values = np.asarray(strip).view(self.dtype)
            shades = levels(values, self.black, self.white, self.no_data)
            if self.transparent is not None:
                shades[values == self.transparent] = 255
            grey.paste(Image.fromarray(shades), (0, top))
            top += strip.height
        return grey


def _value_type(image: Image.Image) -> tuple[str, int | None]:
    """NumPy's type of the values that Pillow holds, and how many bits of it a TIFF says it uses."""
    order = ">" if image.mode == "I;16B" else "<"
    stored = {"F": "f4", "I": "i4", "L": "i1"}.get(image.mode, "u2")
    bits = _tag(image, _BITS)
    if image.mode == "I" and _tag(image, _SAMPLE_FORMAT) in (None, _UNSIGNED) and bits == 32:
        stored = "u4"
    is_narrow = stored[0] in "iu" and bits is not None and bits < 8 * int(stored[1])
    return f"{order}{stored}", bits - (stored[0] == "i") if is_narrow and bits else None


def no_data_of(tags: Mapping[int, Any]) -> float | None:
    """The value of a map's pixels that it has no data for, by GDAL's tag of a TIFF."""
    try:
        return float(str(tags.get(_GDAL_NO_DATA)).rstrip("\0 "))
    except ValueError:
        return None


def _tag(image: Image.Image, tag: int) -> Any:
    """The first value of a TIFF's tag; None for other pictures."""
    value = getattr(image, "tag_v2", {}).get(tag)
    return value[0] if isinstance(value, tuple) else value


def _strips(image: Image.Image) -> Iterator[Image.Image]:
    rows = max(1, _DEEP_STRIP_PIXELS // image.width)
    return (image.crop((0, y, image.width, min(y + rows, image.height))) for y in range(0, image.height, rows))
