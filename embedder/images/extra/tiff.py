"""Reads with tifffile and imagecodecs the TIFFs that Pillow does not: floats, more bands, other compressions."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from PIL import ExifTags, Image, TiffTags
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from embedder.errors import ImageError
from embedder.images.limits import ImageLimits, deep_cost
from embedder.images.pixel_modes import no_data_of

# Tags.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _COLOURS, _BANDS, _KIND = 256, 257, 258, 259, 262, 277, 339
_OFFSETS, _COUNTS = (273, 324), (279, 325)
_KINDS: Final = {1: "unsigned", 2: "signed", 3: "float", 5: "complex", 6: "complex"}
_COMPRESSIONS: Final = {
    **{number: name for name, number in (TiffTags.lookup(_COMPRESSION).enum or {}).items()},
    **{7: "JPEG", 8: "Deflate", 32946: "Deflate", 34676: "LogLuv", 34712: "JPEG 2000", 34887: "LERC", 34925: "LZMA"},
    **{50000: "Zstandard", 50001: "WebP", 50002: "JPEG XL", 52546: "JPEG XL"},
}
_COLOUR_NAMES: Final = {number: name for name, number in (TiffTags.lookup(_COLOURS).enum or {}).items()}
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _YCBCR = 0, 1, 2, 6
_TO_RGB: Final = frozenset({6, 7, 34712, 50001, 50002})
"""Compressions whose decoders convert YCbCr."""
_ALPHAS: Final = {1: "premultiplied", 2: "straight"}
_EXIF: Final[set[int]] = {
    *(ExifTags.Base.Orientation, ExifTags.Base.Make, ExifTags.Base.Model),
    *(ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo),
}


def open_tiff(data: bytes, limits: ImageLimits) -> Image.Image:
    """The first page, with 8 bits. Raises ImageError for a limit or a kind that is not supported."""
    tags = _tags(data)
    width, height = tags[_WIDTH], tags[_HEIGHT]
    depth = max(1, max(tags.get(_BITS, (1,))) / 8) * tags.get(_BANDS, 1)
    limits.check_pixels(width, height, depth, len(data))
    limits.check_cost(deep_cost(width, height, depth))
    offsets, counts = (next((tags[tag] for tag in names if tag in tags), ()) for names in (_OFFSETS, _COUNTS))
    if any(at + count > len(data) for at, count in zip(offsets, counts, strict=True)):
        raise EOFError("its pixels lie beyond the end")
    import imagecodecs  # noqa: F401  # tifffile goes on without it
    from tifffile import TiffFile

    from embedder.images.deep_pixels import image_of

    logging.getLogger("tifffile").disabled = True  # what is wrong with a file is raised, or does not matter
    with TiffFile(io.BytesIO(data)) as file:
        page: Any = file.pages[0]
        if not _is_supported(page):
            raise ImageError("unsupported_format", f"{describe_tiff(data)} is not supported; save it as 8-bit RGB")
        pixels, axes = page.asarray(maxworkers=1), page.axes
    while axes[0] not in "SYX":  # the first plane of a volume
        pixels, axes = pixels[0], axes[1:]
    image = image_of(pixels.transpose(1, 2, 0) if axes == "SYX" else pixels, **_meaning(page), no_data=no_data_of(tags))
    image.format = "TIFF"
    image.info["exif"] = _exif(data)
    return image


def describe_tiff(data: bytes) -> str:
    """What may be unusual about a TIFF: its values, bands, colours and compression."""
    tags = _tags(data)
    colours, compression = tags.get(_COLOURS, _WHITE_IS_ZERO), tags.get(_COMPRESSION, 1)
    values = f"{max(tags.get(_BITS, (1,)))}-bit {_KINDS.get(max(tags.get(_KIND, (1,))), 'unknown')} values"
    return (
        f"a TIFF with {tags.get(_BANDS, 1)} band(s) of {values}, colours {_COLOUR_NAMES.get(colours, colours)} and "
        f"compression {_COMPRESSIONS.get(compression, compression)}"
    )


def _tags(data: bytes) -> Mapping[int, Any]:
    """The tags of the first page, of a classic or a large TIFF."""
    directory = ImageFileDirectory_v2(data[: 16 if 43 in data[2:4] else 8])
    file = io.BytesIO(data)
    file.seek(directory.next)
    directory.load(file)
    return dict(directory)


def _is_supported(page: Any) -> bool:
    from tifffile import TIFF

    is_colour = page.photometric == _RGB or (page.photometric == _YCBCR and page.compression in _TO_RGB)
    is_known = page.compression == 1 or page.compression in TIFF.DECOMPRESSORS
    has_predictor = page.predictor == 1 or page.predictor in TIFF.UNPREDICTORS
    is_real = page.dtype is not None and page.dtype.kind in "buif"
    return (
        is_real and is_known and has_predictor and (is_colour or page.photometric in (_WHITE_IS_ZERO, _BLACK_IS_ZERO))
    )


def _meaning(page: Any) -> dict[str, Any]:
    """The arguments of `image_of` that a page declares."""
    extra = [int(kind) for kind in page.extrasamples]
    colours = int(page.samplesperpixel) - len(extra)
    bits = int(page.bitspersample)
    return {
        "alpha": _ALPHAS.get(extra[0]) if extra and colours in (1, 3) else None,
        "inverted": page.photometric == _WHITE_IS_ZERO,
        "bits": bits if page.dtype.kind == "u" and bits < 8 * page.dtype.itemsize else None,
    }


def _exif(data: bytes) -> bytes:
    """The tags of orientation, camera, time and place. Damaged metadata costs no picture."""
    with suppress(Exception):
        exif = Image.Exif()
        exif.load_from_fp(io.BytesIO(data))
        for tag in set(exif) - _EXIF:
            del exif[tag]
        return exif.tobytes()
    return b""
