"""Opens the bytes of a picture, if its header is within the limits, or says why not."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

# Imported to register the formats that preinit() leaves out.
import PIL.AvifImagePlugin
import PIL.PngImagePlugin
import PIL.TiffImagePlugin
import PIL.WebPImagePlugin
from PIL import Image, UnidentifiedImageError

from embedder.errors import ImageError
from embedder.images.extra import open_extra
from embedder.images.formats import (
    EXTRA_FORMATS,
    SUPPORTED,
    describe,
    ends_early,
    is_each_scan_there,
    picture_format,
    webp_size,
    without_damaged_chunks,
)
from embedder.images.limits import ImageLimits, cost_of, early_cost, unpacked_bytes
from embedder.images.pixel_modes import correct

# By default a picture with a text or profile (XMP, a prompt) of over 1 MiB is refused; now 64 MiB in all are allowed.
PIL.PngImagePlugin.MAX_TEXT_CHUNK = PIL.PngImagePlugin.MAX_TEXT_MEMORY
Image.preinit()  # otherwise the first Image.open calls it, in an arbitrary thread

_END_OF_JPEG: Final = b"\xff\xd9"
# Tags of a TIFF.
_BITS, _BANDS, _PLANES, _EXTRA_BANDS = 258, 277, 284, 338


class OpenedImage(NamedTuple):
    """An opened picture, the bytes that it is read from, and the limits for decoding it."""

    image: Image.Image
    source: bytes
    limits: ImageLimits


@contextmanager
def open_image(data: bytes, limits: ImageLimits) -> Iterator[OpenedImage]:
    """The opened picture, if its header is within the limits. Errors inside the block become `ImageError`."""
    limits.check_bytes(data)
    try:
        image, source = _open(data, limits)
        with image:
            limits.check_pixels(*image.size, unpacked_bytes(image), len(data))
            yield OpenedImage(image, source, limits)
    except ImageError:
        raise
    except Exception as error:  # for damaged files Pillow raises nearly anything
        raise _rejection(data, error) from error


def _open(data: bytes, limits: ImageLimits) -> tuple[Image.Image, bytes]:
    if (name := picture_format(data)) in EXTRA_FORMATS:
        return open_extra(data, name, limits)
    if (size := webp_size(data)) is not None:
        limits.check_pixels(*size, 3, len(data))
        limits.check_cost(early_cost("WEBP", *size))
    if name == "JPEG" and not data.endswith(_END_OF_JPEG) and ends_early(data, name):
        data = _with_end_marker(data, limits)
    try:
        image = Image.open(io.BytesIO(data), formats=SUPPORTED)
        if not _is_misread(image):
            correct(image)
            return image, data
    except Image.DecompressionBombError:
        raise
    except Exception:
        if name == "PNG" and (whole := without_damaged_chunks(data)) != data:
            return _open(whole, limits)
        if name not in ("JPEG", "TIFF"):
            raise
    return open_extra(data, name or "", limits)


def _is_misread(image: Image.Image) -> bool:
    """Whether Pillow opens the TIFF, but fails on its pixels or gets wrong ones."""
    tags = getattr(image, "tag_v2", {})
    has_planes = tags.get(_PLANES, 1) == 2 and tags.get(_BANDS, 1) > 1
    is_simple = tags.get(_BITS, (8,))[0] == 8 and not tags.get(_EXTRA_BANDS)
    return (has_planes and not is_simple) or image.info.get("compression") == "webp"  # not in the libtiff of its wheels


def _with_end_marker(data: bytes, limits: ImageLimits) -> bytes:
    """A JPEG that lacks nothing but its end marker, with one; others as they are.

    Then whatever follows the last scan does not change the picture. Of a scan that is cut it would be taken for pixels.
    """
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        limits.check_pixels(*image.size, unpacked_bytes(image), len(data))
        limits.check_cost(cost_of(image, data, image.width * image.height))
    scans = data.rstrip(b"\xff")
    if not is_each_scan_there(scans):
        return data
    digests = set()
    for number in range(4):
        bits = hashlib.blake2b(bytes([number])).digest().replace(b"\xff", b"")  # as good as random
        restarts = b"".join(b"\xff" + bytes([0xD0 + part]) + bits for part in range(8))
        with Image.open(io.BytesIO(scans + bits + restarts + _END_OF_JPEG), formats=("JPEG",)) as image:
            digests.add(hashlib.blake2b(image.tobytes()).digest())
    return scans + _END_OF_JPEG if len(digests) == 1 else data


def _rejection(data: bytes, error: Exception) -> ImageError:
    """Why Pillow failed with `error`, judged by the bytes if its own message is vague."""
    name = picture_format(data)
    if isinstance(error, Image.DecompressionBombError):
        pixels, limit = (int(number) for number in re.findall(r"\d+", str(error))[:2])
        return ImageError("too_many_pixels", f"the picture has {pixels} pixels, the limit is {limit}; shrink it")
    if isinstance(error, MemoryError):
        return ImageError("out_of_memory", f"no memory to decode this {name} file; free some", retryable=True)
    if name is None:
        return ImageError("not_an_image", f"expected a picture, but this looks like {describe(data)}")
    if name not in SUPPORTED + EXTRA_FORMATS:
        message = f"{name} pictures are not supported; convert it to one of {', '.join(SUPPORTED)}"
        return ImageError("unsupported_format", message)
    cause = " ".join(str(error).split()) or repr(error)
    if isinstance(error, UnidentifiedImageError):  # its message names the buffer and its address
        cause = "unreadable header"
    early = ends_early(data, name)
    if early or (early is None and (isinstance(error, EOFError) or "truncated" in cause.lower())):
        after = f"after {len(data):,} bytes"
        return ImageError("truncated", f"the {name} file breaks off {after} ({cause}); copy or fetch it again")
    return ImageError("corrupt", f"the {name} file is damaged ({cause}); restore it from its source")
