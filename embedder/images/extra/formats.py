"""Opens a file with the package for its format."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from PIL import Image

from embedder.errors import ImageError
from embedder.images.extra.jpeg import describe_jpeg, open_jpeg
from embedder.images.extra.tiff import describe_tiff, open_tiff
from embedder.images.formats import jxl_size
from embedder.images.limits import ImageLimits, early_cost

if TYPE_CHECKING:
    import rawpy

_MIN_PREVIEW_SIDE: Final = 512
"""Minimum shorter side of a RAW file's preview, in pixels; a smaller one would lose detail that models use."""

OpenedImage = tuple[Image.Image, bytes]


def open_extra(data: bytes, name: str, limits: ImageLimits) -> OpenedImage:
    """An opened picture of one of `EXTRA_FORMATS`, or a TIFF or JPEG that Pillow cannot open; and the bytes that it is
    read from, which may be a RAW's preview.

    Raises `ImageError` if the package is missing or a limit is exceeded, otherwise the package's errors.
    """
    try:
        return _OPENERS[name](data, limits)
    except ImportError as error:
        kind = {"TIFF": describe_tiff, "JPEG": describe_jpeg}.get(name, lambda _: f"a {name} file")(data)
        message = f"{kind}; install likeness[formats] to read it"
        raise ImageError("unsupported_format", message, retryable=True) from error


def _open_heic(data: bytes, limits: ImageLimits) -> OpenedImage:
    """Needs no turning: libheif turns the picture upright, and the plugin removes EXIF's orientation."""
    from pillow_heif import options
    from pillow_heif.as_plugin import HeifImageFile

    options.DECODE_THREADS = 1  # each thread allocates its own memory
    return HeifImageFile(io.BytesIO(data)), data


def _open_jxl(data: bytes, limits: ImageLimits) -> OpenedImage:
    """Checks limits first, because the plugin decodes the picture when it opens it."""
    from pillow_jxl import JpegXLImagePlugin

    if (size := jxl_size(data)) is None:
        raise EOFError("no header")
    limits.check_pixels(*size, 3, len(data))
    limits.check_cost(early_cost("JXL", *size))
    JpegXLImagePlugin.DECODE_THREADS = 0
    image = JpegXLImagePlugin.JXLImageFile(io.BytesIO(data))
    if not image.jpeg:  # already upright; a reconstructed JPEG is not
        image.info.pop("exif", None)
    return image, data


def _open_raw(data: bytes, limits: ImageLimits) -> OpenedImage:
    """The embedded preview if it is large enough, else the sensor's pixels, demosaiced and upright."""
    import rawpy

    with rawpy.imread(io.BytesIO(data)) as raw:
        preview = _preview(raw)
        if preview is None:
            width, height = raw.sizes.raw_width, raw.sizes.raw_height
            limits.check_pixels(width, height, 2, len(data))
            limits.check_cost(early_cost("RAW", width, height))
            fast = rawpy.DemosaicAlgorithm.LINEAR
            return Image.fromarray(raw.postprocess(demosaic_algorithm=fast, use_camera_wb=True)), data
    return Image.open(io.BytesIO(preview), formats=("JPEG",)), preview


def _preview(raw: rawpy.RawPy) -> bytes | None:
    """The largest preview, if it is large enough. LibRaw adds EXIF with its orientation."""
    import rawpy

    with suppress(rawpy.LibRawError):
        preview = raw.extract_thumb()
        if preview.format == rawpy.ThumbFormat.JPEG and isinstance(preview.data, bytes):
            with Image.open(io.BytesIO(preview.data), formats=("JPEG",)) as image:
                return preview.data if min(image.size) >= _MIN_PREVIEW_SIDE else None
    return None


_OPENERS: Final[dict[str, Callable[[bytes, ImageLimits], OpenedImage]]] = {
    "HEIC": _open_heic,
    "JXL": _open_jxl,
    "RAW": _open_raw,
    "TIFF": lambda data, limits: (open_tiff(data, limits), data),
    "JPEG": lambda data, limits: (open_jpeg(data, limits), data),
}
