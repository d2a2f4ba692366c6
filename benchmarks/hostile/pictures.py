"""Small files that are expensive to decode, in ten variants of any size."""

import io
import struct
import zlib
from functools import cache
from typing import Final

import numpy as np
from PIL import Image

from jobs.demo.broken import png_chunk

# Canonical Huffman tables for JPEG: one code of one bit for one symbol.
_DC_ZERO: Final = b"\xff\xc4\x00\x14\x00\x01" + b"\0" * 15 + b"\x00"
_LONGEST_RUN: Final = 14  # an end-of-band run covers 2^14 blocks, and up to as many more
_AC_RUN: Final = b"\xff\xc4\x00\x14\x10\x01" + b"\0" * 15 + bytes([_LONGEST_RUN << 4])


def progressive_jpeg(width: int, height: int, scans: int, *, components: int = 1) -> bytes:
    """A flat JPEG whose scans each visit every block of a component, for about a hundred bytes per scan."""
    blocks = -(-width // 8) * -(-height // 8)
    sampling = b"".join(bytes([number, 0x11, 0]) for number in range(1, components + 1))
    frame = struct.pack(">BHHB", 8, height, width, components) + sampling
    parts = [b"\xff\xd8", b"\xff\xdb\x00\x43\x00" + b"\x01" * 64, _segment(0xC2, frame), _DC_ZERO, _AC_RUN]
    for number in range(1, components + 1):
        parts.append(_scan(number, 0, 0, 0) + b"\0" * (-(-blocks // 8)))
    run = (2 << _LONGEST_RUN) - 1
    # A code of one zero bit, then the length of the run, all ones.
    bits = ("0" + "1" * _LONGEST_RUN) * -(-blocks // run)
    packed = int(bits.ljust(-(-len(bits) // 8) * 8, "1"), 2).to_bytes(-(-len(bits) // 8), "big")
    packed = packed.replace(b"\xff", b"\xff\0")
    for turn in range(scans - components):
        # Refinements, which read each of a block's 63 coefficients.
        parts.append(_scan(1 + turn % components, 1, 63, 0x10) + packed)
    return b"".join([*parts, b"\xff\xd9"])


def _scan(component: int, first: int, last: int, precision: int) -> bytes:
    return _segment(0xDA, bytes([1, component, 0, first, last, precision]))


def _segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def large_jpeg(width: int, height: int) -> bytes:
    """A baseline JPEG of noise, whose size fits its pixels."""
    tile = np.random.default_rng(5).integers(0, 255, (512, 512, 3)).astype(np.uint8)
    rows = np.tile(tile, (-(-height // 512), -(-width // 512), 1))[:height, :width]
    return _saved(Image.fromarray(rows), "JPEG", quality=30)


def gif(width: int, height: int) -> bytes:
    """A GIF whose data end immediately."""
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return screen + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x01\x2c\0;"


def webp(width: int, height: int) -> bytes:
    """A lossless WebP of one colour, whose codes have zero bits."""
    size = (width - 1) | (height - 1) << 14
    # No transform, no colour cache, no meta codes; then five codes, each of one symbol.
    bits = "0" + "0" + "0" + 5 * ("1" + "0" + "0" + "0")
    body = b"\x2f" + size.to_bytes(4, "little") + int(bits[::-1], 2).to_bytes(4, "little")
    chunk = b"VP8L" + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def png(width: int, height: int, *, bits: int = 8, colour: int = 6, interlaced: bool = False) -> bytes:
    """A PNG of zeros. `colour` is PNG's colour type: 0 grey, 2 RGB, 3 palette, 6 RGBA."""
    row = 1 + -(-width * bits * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] // 8)
    total = _interlaced_bytes(width, height, bits, colour) if interlaced else row * height
    packer, zeros, packed = zlib.compressobj(9), bytes(2**20), []
    while total > 0:
        packed.append(packer.compress(zeros[:total]))
        total -= len(zeros)
    data = b"".join([*packed, packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced))
    palette = png_chunk(b"PLTE", bytes(3 * 2)) + png_chunk(b"tRNS", b"\x80\xff") if colour == 3 else b""
    chunks = png_chunk(b"IHDR", header) + palette + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _interlaced_bytes(width: int, height: int, bits: int, colour: int) -> int:
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    total = 0
    for x, y, across, down in passes:
        columns, rows = -(-(width - x) // across), -(-(height - y) // down)
        total += rows * (1 + -(-columns * bits * channels // 8)) if columns > 0 else 0
    return total


def bmp(width: int, height: int) -> bytes:
    """A run-length-encoded BMP, which Pillow decodes in Python."""
    rows = (b"\xff\0" * (width // 255) + (bytes([width % 255, 0]) if width % 255 else b"") + b"\0\0") * height
    offset = 14 + 40 + 1024
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(rows), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", offset + len(rows) + 2, 0, 0, offset) + info + bytes(1024) + rows + b"\0\1"


def tiff(width: int, height: int, compression: str, mode: str = "RGB") -> bytes:
    """A TIFF of zeros in one strip."""
    return _saved(Image.new(mode, (width, height)), "TIFF", compression=compression, tiffinfo={278: height})


@cache
def avif(width: int, height: int) -> bytes:
    return _saved(Image.new("RGB", (width, height)), "AVIF", speed=10, quality=10)


def _saved(image: Image.Image, format_name: str, **options: object) -> bytes:
    target = io.BytesIO()
    image.save(target, format_name, **options)
    return target.getvalue()


def padded(data: bytes, size: int) -> bytes:
    """The same picture in a file whose size fits its pixels: decoders ignore trailing bytes."""
    if data[4:8] == b"ftyp":
        return data + struct.pack(">I", max(8, size)) + b"free" + bytes(max(0, size - 8))
    return data + bytes(size)


def sixty(*, disguised: bool) -> dict[str, bytes]:
    """Sixty files by name, six of each of ten variants.

    If `disguised`, their headers are just within the limits of a query.
    """
    largest = 7_000 if disguised else 12_200
    made = {}
    for number in range(6):
        side = largest - 100 * number
        for name, data in _ten(side, disguised=disguised).items():
            stem, _, ending = name.partition(".")
            made[f"{stem}-{number}.{ending}"] = data
    return made


def _ten(side: int, *, disguised: bool) -> dict[str, bytes]:
    scans, room = (64, side * side * 4 // 700) if disguised else (300, 0)
    ten = {
        "grey-scans.jpg": progressive_jpeg(side, side, scans),
        "colour-scans.jpg": progressive_jpeg(side, side, scans, components=3),
        "one-colour.gif": _saved(Image.new("P", (side, side)), "GIF") if disguised else gif(side, side),
        "lossless.webp": webp(side, side),
        "transparent.png": png(side, side),
        "grey16.png": png(side, side, bits=16, colour=0),
        "palette-interlaced.png": png(side, side, colour=3, interlaced=True),
        "lzw.tiff": tiff(side, side, "tiff_lzw"),
        "runs.bmp": bmp(side, side) if disguised else bmp(13_000, 13_000),
    }
    # The encoder is slow for larger ones.
    ten["one-colour.avif"] = avif(7_000, 7_000)
    return {name: padded(data, room) for name, data in ten.items()}
