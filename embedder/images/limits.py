"""Estimates the cost of decoding a picture from its header, and limits it before anything is decoded.

The figures were measured with Pillow 13 on costly pictures of 48 megapixels. Decoders may take less, but hardly more.
"""

import sys
from dataclasses import dataclass, replace
from typing import Final, Self

from PIL import Image

from embedder.errors import ImageError
from embedder.images.formats import jpeg_segments

TOO_MANY_PIXELS: Final = "too_many_pixels"
BOMB: Final = "decompression_bomb"
# An A4 page at 600 dpi has 35 million, and may be nearly empty.
_LARGE_PIXELS: Final = 40_000_000
_PIXEL_BYTES: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
"""Bytes per pixel in Pillow's memory; 4 in all other modes."""

# Bytes per pixel of the decoder's own copies, besides Pillow's memory.
_DECODER_BYTES: Final = {"AVIF": 8.0, "HEIF": 10.0, "TIFF": 4.0, "BMP": 2.0}
# Total bytes and seconds per pixel, for decoders that allocate memory when a picture is opened.
_EARLY_COSTS: Final = {"WEBP": (16.5, 45e-9), "JXL": (20.0, 60e-9), "RAW": (20.0, 150e-9)}
_COEFFICIENT_BYTES: Final = 2
_SECONDS_PER_PIXEL: Final = 30e-9
_SECONDS_PER_JPEG_PIXEL: Final = 4e-9
_SECONDS_PER_JPEG_PIXEL_AND_SCAN: Final = 1.6e-9
_SECONDS_PER_JPEG_BYTE: Final = 12e-9


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Estimated peak memory in bytes and seconds on one core; and the exact number of scans of a JPEG (else 1)."""

    memory: int
    seconds: float
    scans: int = 1


def cost_of(image: Image.Image, data: bytes, pixels: int) -> Cost:
    """The cost of loading an opened picture whose file has `pixels`; after `draft` the image has fewer.

    For decoders that allocate earlier, see `early_cost`.
    """
    bitmap = image.width * image.height * _PIXEL_BYTES.get(image.mode, 4)
    if image.format in ("JPEG", "MPO"):
        scans = count_scans(data)
        coefficients = pixels * len(image.getbands()) * _COEFFICIENT_BYTES if scans > 1 else 0
        seconds = pixels * (_SECONDS_PER_JPEG_PIXEL + scans * _SECONDS_PER_JPEG_PIXEL_AND_SCAN)
        seconds += len(data) * _SECONDS_PER_JPEG_BYTE
        return Cost(memory=bitmap + coefficients, seconds=seconds, scans=scans)
    copies = int(pixels * _DECODER_BYTES.get(image.format or "", 0.5))
    return Cost(memory=bitmap + copies, seconds=pixels * _SECONDS_PER_PIXEL)


def unpacked_bytes(image: Image.Image) -> float:
    """Bytes per pixel before the file's compression; for deep colours, as many as Pillow reads."""
    if image.mode == "1":
        return 1 / 8
    return 4 if image.mode in ("I", "F") else len(image.getbands()) * _PIXEL_BYTES.get(image.mode, 1)


def early_cost(name: str, width: int, height: int) -> Cost:
    """The cost of a picture in a format of `_EARLY_COSTS`, to check before it is opened."""
    memory, seconds = _EARLY_COSTS[name]
    return Cost(memory=int(width * height * memory), seconds=width * height * seconds)


def deep_cost(width: int, height: int, depth: float) -> Cost:
    """The cost of a picture of `depth` bytes a pixel that is read by way of NumPy."""
    return Cost(memory=int(width * height * (3 * depth + 40)), seconds=width * height * depth * 40e-9)


def count_scans(data: bytes) -> int:
    """The number of scans in a JPEG file's first picture. Each visits the whole picture, even if it has few bytes."""
    return sum(marker == 0xDA for marker, _ in jpeg_segments(data))


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Limits that are checked before decoding. Outside decoder processes, Pillow itself refuses more than 179 million
    pixels.

    `max_unpacked` applies to large pictures: photographs unpack to a hundred times their bytes, drawings to a few
    hundred, a single colour to over a thousand. `max_scans` applies to JPEGs; the usual encoders make about ten.
    `max_memory` and `max_seconds` limit the estimates from the header.
    """

    max_bytes: int = 64 * 2**20
    max_pixels: int = 150_000_000
    max_unpacked: float = 800
    max_scans: int = 64
    max_memory: int = 2 * 2**30
    max_seconds: float = float("inf")

    def with_pixels(self, max_pixels: int) -> Self:
        """With another limit of pixels. More of them are for plans and the like, however little these weigh."""
        max_unpacked = self.max_unpacked if max_pixels <= self.max_pixels else float("inf")
        return replace(self, max_pixels=max_pixels, max_unpacked=max_unpacked)

    def check_bytes(self, data: bytes) -> None:
        """Raises ImageError for an empty or too large file."""
        if not data:
            raise ImageError("empty", "the file is empty (0 bytes); copy or fetch it again")
        if len(data) > self.max_bytes:
            raise ImageError(
                "too_many_bytes",
                f"the file has {len(data):,} bytes, the limit is {self.max_bytes:,}; shrink it",
            )

    def check_pixels(self, width: int, height: int, unpacked: float, size: int) -> None:
        """Raises ImageError for too many pixels, of `unpacked` bytes each, in total or for a file of `size` bytes."""
        pixels = width * height
        if pixels > self.max_pixels:
            raise ImageError(
                TOO_MANY_PIXELS,
                f"the picture has {width} × {height} = {pixels:,} pixels, the limit is {self.max_pixels:,}; shrink it",
            )
        if pixels > _LARGE_PIXELS and pixels * unpacked > self.max_unpacked * size:
            raise ImageError(
                BOMB,
                f"{size:,} bytes are too few for {pixels:,} pixels: a picture of more than "
                f"{_LARGE_PIXELS:,} pixels may unpack to {self.max_unpacked:g} times its bytes; shrink it",
            )

    def check_cost(self, cost: Cost) -> None:
        """Raises ImageError for a picture that is too costly to decode."""
        if cost.scans > self.max_scans:
            raise ImageError(
                "too_many_scans",
                f"the JPEG has {cost.scans:,} scans, the limit is {self.max_scans}, because each costs as much as a "
                "picture; save it again",
            )
        if cost.memory > self.max_memory:
            raise ImageError(
                "too_much_memory",
                f"decoding takes about {cost.memory >> 20:,} MiB, the limit is {self.max_memory >> 20:,}; "
                "shrink it, or save it as JPEG",
            )
        if cost.seconds > self.max_seconds:
            raise ImageError(
                "too_slow", f"decoding takes about {cost.seconds:.1f} s, the limit is {self.max_seconds:g}; shrink it"
            )


DEFAULT_LIMITS = ImageLimits()
ACCEPTED_LIMITS = DEFAULT_LIMITS.with_pixels(sys.maxsize)
"""For pictures that a job has accepted, with a limit of its own. A limit that is new must let those pass too."""
