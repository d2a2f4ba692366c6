"""HEIC, JPEG XL and camera RAW, read by packages that need not be installed, each imported when a file asks for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from PIL import Image

from embedder.errors import ImageError
from embedder.images.formats import jxl_size
from embedder.images.limits import ImageLimits, early_cost

if TYPE_CHECKING:
    import rawpy

_MIN_PREVIEW: Final = 512
"""Of the shorter side of a RAW file's preview: a smaller one would cost models detail."""

Opened = tuple[Image.Image, bytes]


def open_extra(data: bytes, name: str, limits: ImageLimits) -> Opened:
    """A picture of one of `EXTRA_FORMATS`, opened, and the bytes that it is read from: a RAW file's are others.

    Raises `ImageError` if the package is missing or a limit is exceeded, else what the package raises.
    """
    try:
        return _OPENERS[name](data, limits)
    except ImportError as error:
        message = f"a {name} file; install likeness[formats] to read it"
        raise ImageError("unsupported_format", message, retryable=True) from error


def _open_heic(data: bytes, limits: ImageLimits) -> Opened:
    """Upright by itself: libheif turns the picture, and the plugin drops what EXIF says of that."""
    from pillow_heif import options
    from pillow_heif.as_plugin import HeifImageFile

    options.DECODE_THREADS = 1  # each has memory of its own
    return HeifImageFile(io.BytesIO(data)), data


def _open_jxl(data: bytes, limits: ImageLimits) -> Opened:
    """The plugin decodes as it opens."""
    from pillow_jxl import JpegXLImagePlugin

    if (size := jxl_size(data)) is None:
        raise EOFError("no header")
    limits.check_pixels(*size, 3, len(data))
    limits.check_cost(early_cost("JXL", *size))
    JpegXLImagePlugin.DECODE_THREADS = 0
    image = JpegXLImagePlugin.JXLImageFile(io.BytesIO(data))
    if not image.jpeg:  # upright already, unless it was a JPEG, which comes back as it was
        image.info.pop("exif", None)
    return image, data


def _open_raw(data: bytes, limits: ImageLimits) -> Opened:
    """The embedded preview if it is large enough, else the sensor's pixels, demosaiced and upright."""
    import rawpy

    with rawpy.imread(io.BytesIO(data)) as raw:
        shown = _preview(raw)
        if shown is None:
            width, height = raw.sizes.raw_width, raw.sizes.raw_height
            limits.check_pixels(width, height, 2, len(data))
            limits.check_cost(early_cost("RAW", width, height))
            fast = rawpy.DemosaicAlgorithm.LINEAR
            return Image.fromarray(raw.postprocess(demosaic_algorithm=fast, use_camera_wb=True)), data
    return Image.open(io.BytesIO(shown), formats=("JPEG",)), shown


def _preview(raw: rawpy.RawPy) -> bytes | None:
    """The largest preview. LibRaw sees to it that it has EXIF, which says how it is turned."""
    import rawpy

    with suppress(rawpy.LibRawError):
        preview = raw.extract_thumb()
        if preview.format == rawpy.ThumbFormat.JPEG and isinstance(preview.data, bytes):
            with Image.open(io.BytesIO(preview.data), formats=("JPEG",)) as image:
                return preview.data if min(image.size) >= _MIN_PREVIEW else None
    return None


_OPENERS: Final[dict[str, Callable[[bytes, ImageLimits], Opened]]] = {
    "HEIC": _open_heic,
    "JXL": _open_jxl,
    "RAW": _open_raw,
}
