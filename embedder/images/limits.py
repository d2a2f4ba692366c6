"""Limits of a picture that are checked before it is decoded."""

from dataclasses import dataclass
from typing import Final

from embedder.errors import ImageError
from embedder.images.cost import Cost

# Photographs unpack to a hundred times their bytes, drawings to a few hundred, one colour to a thousand and more.
_MAX_UNPACKED: Final = 800
# A page of A4 at 600 dpi has 35 million, and may be nearly empty.
_LARGE: Final = 40_000_000


@dataclass(frozen=True, kw_only=True)
class ImageLimits:
    """Limits that are checked before decoding. Pillow itself always refuses more than 179 million pixels.

    `max_scans` are those of a JPEG: usual encoders make about ten. `max_memory` and `max_seconds` are held against what
    decoding will take, estimated from the header (`embedder.images.cost`).
    """

    max_bytes: int = 64 * 2**20
    max_pixels: int = 150_000_000
    max_scans: int = 64
    max_memory: int = 2 * 2**30
    max_seconds: float = float("inf")

    def check_bytes(self, data: bytes) -> None:
        """Raises ImageError for an empty file, and for one that is too large."""
        if not data:
            raise ImageError("empty", "the file is empty (0 bytes); copy or fetch it again")
        if len(data) > self.max_bytes:
            raise ImageError(
                "too_many_bytes",
                f"the file has {len(data):,} bytes, the limit is {self.max_bytes:,}; shrink it, or raise the limit",
            )

    def check_pixels(self, width: int, height: int, unpacked: float, size: int) -> None:
        """Raises ImageError for too many pixels, in all or for a file of `size` bytes. `unpacked`: bytes of one."""
        pixels = width * height
        if pixels > self.max_pixels:
            raise ImageError(
                "too_many_pixels",
                f"the picture has {width} × {height} = {pixels:,} pixels, "
                f"the limit is {self.max_pixels:,}; shrink it, or raise the limit",
            )
        if pixels > _LARGE and pixels * unpacked > _MAX_UNPACKED * size:
            raise ImageError(
                "decompression_bomb",
                f"{size:,} bytes that unpack to {pixels:,} pixels hold next to nothing: a picture of more than "
                f"{_LARGE:,} may unpack to {_MAX_UNPACKED} times its bytes; shrink it",
            )

    def check_cost(self, cost: Cost) -> None:
        """Raises ImageError for a picture that takes too much to decode."""
        if cost.scans > self.max_scans:
            raise ImageError(
                "too_many_scans",
                f"the JPEG has {cost.scans:,} scans, the limit is {self.max_scans}: each costs as much as a picture; "
                "save it anew",
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
