"""Twenty kinds of broken picture files, each with the reason for its rejection.

All are small and deterministic, and have the extension of a picture, so that a listing includes them.
"""

import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image

from jobs.demo.drawing import Subject, draw

_ERROR_PAGE = b"<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>Not Found</body></html>\n"
_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><circle cx="4" cy="4" r="4"/></svg>\n'


@dataclass(frozen=True)
class Breakage:
    """A kind of broken file. `reason` is the one that `embedder.images.decode.decode_image` gives."""

    name: str
    extension: str
    reason: str
    make: Callable[[], bytes]


def _intact(format_name: str, size: tuple[int, int] = (320, 240), **options: object) -> bytes:
    subject = Subject(shape="star", colour="red", pattern="striped", background="speckled")
    data = BytesIO()
    draw(subject, size, np.random.default_rng(20)).save(data, format_name, **options)
    return data.getvalue()


def _pdf() -> bytes:
    data = BytesIO()
    Image.new("RGB", (32, 32), "white").save(data, "PDF")
    # Pillow writes the current time, which would change the bytes each time.
    return b"\n".join(line for line in data.getvalue().split(b"\n") if b"Date" not in line)


def _zip() -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("star.jpg"), _intact("JPEG"))
    return data.getvalue()


def _mp4() -> bytes:
    boxes = {b"ftyp": b"isom" + struct.pack(">I", 512) + b"isomiso2avc1mp41", b"mdat": bytes(2000)}
    return b"".join(struct.pack(">I", 8 + len(body)) + name + body for name, body in boxes.items())


def _jpeg_cut_in_exif() -> bytes:
    exif = Image.Exif()
    exif[0x010E] = "a description of some length " * 40
    data = _intact("JPEG", exif=exif)
    return data[: data.index(b"Exif") + 400]


def _jpeg_cut_in_header() -> bytes:
    data = _intact("JPEG")
    return data[: data.index(b"\xff\xc0") + 6]  # within the frame header, before the size is known


def _cut(format_name: str) -> bytes:
    data = _intact(format_name)
    return data[: int(len(data) * 0.6)]


def _overwritten(data: bytes, at: int, patch: bytes) -> bytes:
    return data[:at] + patch + data[at + len(patch) :]


def _png_damaged() -> bytes:
    data = _intact("PNG")
    return _overwritten(data, len(data) // 2, bytes(64))


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _png_bomb() -> bytes:
    """A valid black PNG of 200 megapixels in 25 kB: one bit per pixel, 20,000 wide and 10,000 high."""
    width, height = 20_000, 10_000
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(height * (1 + width // 8)), 9)
    chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _bmp_lying_about_size() -> bytes:
    hundredfold = struct.pack("<ii", 640, 640)  # of the pixels that follow
    return _overwritten(_intact("BMP", size=(64, 64)), 18, hundredfold)


def _tiff_without_directory() -> bytes:
    data = _intact("TIFF", size=(64, 64))
    return _overwritten(data, 4, struct.pack("<I", len(data) * 2))  # the offset of the first directory


BROKEN: tuple[Breakage, ...] = (
    Breakage("empty", "jpg", "empty", lambda: b""),
    Breakage("only-zeros", "jpg", "not_an_image", lambda: bytes(4096)),
    Breakage("random-bytes", "png", "not_an_image", lambda: np.random.default_rng(21).bytes(4096)),
    Breakage("text", "jpg", "not_an_image", lambda: b"A striped red star.\n"),
    Breakage("error-page", "jpg", "not_an_image", lambda: _ERROR_PAGE),
    Breakage("svg", "png", "not_an_image", lambda: _SVG),
    Breakage("pdf", "jpg", "not_an_image", _pdf),
    Breakage("zip", "png", "not_an_image", _zip),
    Breakage("psd", "jpg", "unsupported_format", lambda: b"8BPS\0\1" + bytes(2000)),
    Breakage("mp4", "jpg", "not_an_image", _mp4),
    Breakage("jpeg-cut-in-header", "jpg", "truncated", _jpeg_cut_in_header),
    Breakage("jpeg-cut-in-exif", "jpg", "truncated", _jpeg_cut_in_exif),
    Breakage("jpeg-cut-in-scan", "jpg", "truncated", lambda: _cut("JPEG")),
    Breakage("png-cut", "png", "truncated", lambda: _cut("PNG")),
    Breakage("png-damaged", "png", "corrupt", _png_damaged),
    Breakage("png-bomb", "png", "too_many_pixels", _png_bomb),
    Breakage("webp-cut", "webp", "truncated", lambda: _cut("WEBP")),
    Breakage("gif-cut", "gif", "truncated", lambda: _cut("GIF")),
    Breakage("bmp-lying-about-size", "bmp", "truncated", _bmp_lying_about_size),
    Breakage("tiff-without-directory", "tif", "truncated", _tiff_without_directory),
)
