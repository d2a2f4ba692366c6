"""Recognises files by their first bytes: a picture format, or another kind of file.

Used to explain why a file was rejected; Pillow itself decides what it opens.
"""

import re
import zlib
from collections.abc import Iterator
from typing import Literal, NamedTuple

SUPPORTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""The supported formats, by Pillow's names. EPS and PDF would run other programs; others are rare on the web."""
EXTRA_FORMATS = ("HEIC", "JXL", "RAW")
"""The formats that optional packages open, see `embedder.images.extra`."""

_RAW_EXTENSIONS = ("dng", "cr2", "cr3", "nef", "nrw", "arw", "orf", "rw2", "raf", "pef", "srw")
IMAGE_EXTENSIONS = (
    *("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "mpo"),
    *("heic", "heif", "hif", "jxl", *_RAW_EXTENSIONS),
)
"""The extensions that a job takes for pictures, unless `--extensions` names others."""

_PICTURES = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "WEBP": rb"RIFF.{4}WEBP",
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0",  # with the size of its second header
    "RAW": rb"FUJIFILMCCD-RAW|II\*\0.{4}CR|II(RO|RS|U\0)|MMOR|FOVb",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "PSD": rb"8BPS",
    "EPS": rb"%!PS",
    "ICO": rb"\0\0\x01\0",
    "JXL": rb"\xff\x0a|\0\0\0\x0cJXL ",
    "JPEG XR": rb"II\xbc",
    "JPEG 2000": rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51",
    "OpenEXR": rb"v/1\x01",
    "QOI": rb"qoif",
    "DDS": rb"DDS ",
}
# TIFF: a value's type, tags, and a tag's value.
_SHORT, _SUBFILE_TYPE, _PHOTOMETRIC, _MAKE, _SUB_DIRECTORIES, _DNG_VERSION = 3, 254, 262, 271, 330, 50706
_COLOUR_FILTERS = 32803
_BRANDS = {"avif": "AVIF", "avis": "AVIF", "heic": "HEIC", "heix": "HEIC", "hevc": "HEIC", "mif1": "HEIC"}
_BRANDS |= {"msf1": "HEIC", "crx ": "RAW"}
_JXL_RATIOS = ((0, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_JXL_HEADER = 2**20
"""The boxes before the picture, which may include EXIF, end within these bytes."""
# A JPEG marker that is not a stuffed byte, a restart or a fill byte.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_OTHER_FILES = {
    rb"%PDF": "a PDF document",
    rb"PK\x03\x04": "a zip archive (or an office document)",
    rb"\x1f\x8b": "a gzip archive",
    rb"7z\xbc\xaf": "a 7-zip archive",
    rb"Rar!": "a RAR archive",
    rb".{257}ustar": "a tar archive",
    rb"\x1aE\xdf\xa3": "a WebM or Matroska video",
    rb".{4}ftyp": "an MP4 or QuickTime video",
    rb"RIFF.{4}(AVI |WAVE)": "an AVI or WAVE file",
    rb"OggS": "an Ogg file",
    rb"ID3": "an MP3 file",
    rb"fLaC": "a FLAC file",
    rb"PAR1": "a Parquet file",
    rb"\x93NUMPY": "a NumPy array",
    rb"\x7fELF": "a program",
    rb"version https://git-lfs": "a Git LFS pointer: the file itself was never downloaded",
}
_TEXTS = {
    ".*<svg": "an SVG drawing, which has no pixels: convert it to PNG first",
    "<!doctype html|.*<html": "an HTML page, as a server sends instead of a missing or protected picture",
    "<": "an XML document",
    "[{[]": "a JSON document",
    "": "plain text",
}


def picture_format(data: bytes) -> str | None:
    """The picture format whose signature the bytes have ("JPEG", "HEIC" …), or None."""
    if data[4:8] == b"ftyp":
        size = min(int.from_bytes(data[:4], "big"), 256)
        brands = [data[at : at + 4].decode("latin-1") for at in (8, *range(16, size, 4))]
        known = [_BRANDS[brand] for brand in brands if brand in _BRANDS]
        return "AVIF" if "AVIF" in known else next(iter(known), None)
    name = next((name for name, magic in _PICTURES.items() if re.match(magic, data, re.DOTALL)), None)
    return "RAW" if name == "TIFF" and _is_raw_tiff(data) else name


def _is_raw_tiff(data: bytes) -> bool:
    """Whether the first directory of a TIFF is a camera's: for a DNG, a sensor's pixels, or a small preview."""
    order: Literal["little", "big"] = "little" if data[:1] == b"I" else "big"
    at = int.from_bytes(data[4:8], order)
    tags = {}
    for entry in range(at + 2, at + 2 + 12 * min(int.from_bytes(data[at : at + 2], order), 256), 12):
        tag, kind = (int.from_bytes(data[part : part + 2], order) for part in (entry, entry + 2))
        tags[tag] = int.from_bytes(data[entry + 8 : entry + (10 if kind == _SHORT else 12)], order)
    is_preview = tags.get(_SUBFILE_TYPE) == 1 and _MAKE in tags and _SUB_DIRECTORIES in tags
    return is_preview or _DNG_VERSION in tags or tags.get(_PHOTOMETRIC) == _COLOUR_FILTERS


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a WebP; None for other bytes."""
    if picture_format(data) != "WEBP":
        return None
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8L":
            packed = int.from_bytes(data[21:25], "little")
            return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def jxl_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a JPEG XL, ISO/IEC 18181-1 (SizeHeader); None for other bytes."""
    codestream = re.search(rb"jxlc\xff\x0a|jxlp.{4}\xff\x0a", data[:_JXL_HEADER], re.DOTALL)
    start = 2 if data[:2] == b"\xff\x0a" else codestream.end() if codestream else None
    if start is None or len(data) < start + 10:
        return None
    bits, at = int.from_bytes(data[start : start + 10], "little"), 0

    def read(count: int) -> int:
        nonlocal at
        at += count
        return bits >> (at - count) & (1 << count) - 1

    def length() -> int:
        return 8 * (1 + read(5)) if in_eights else 1 + read((9, 13, 18, 30)[read(2)])

    in_eights = read(1)
    height = length()
    ratio = read(3)
    across, down = _JXL_RATIOS[ratio]
    return height * across // down if ratio else length(), height


class JpegFrame(NamedTuple):
    """The header of a JPEG's picture (SOF)."""

    marker: int
    bits: int
    height: int
    width: int
    bands: int

    @property
    def is_ls(self) -> bool:
        """JPEG-LS, ISO/IEC 14495-1."""
        return self.marker == 0xF7


def jpeg_frame(data: bytes) -> JpegFrame | None:
    """The first frame of a JPEG; None if there is none."""
    for marker, at in jpeg_segments(data):
        if (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)) or marker == 0xF7:
            length, height, width = (int.from_bytes(data[part : part + 2], "big") for part in (at, at + 3, at + 5))
            bits, bands = (data[at + 2], data[at + 7]) if at + 7 < len(data) else (0, 0)
            return JpegFrame(marker, bits, height, width, bands) if length == 8 + 3 * bands and bits <= 16 else None
    return None


def is_each_scan_there(data: bytes) -> bool:
    """Whether a JPEG's scans cover each band at full precision; the last one may be cut."""
    frame, missing = jpeg_frame(data), set[tuple[int, int]]()
    for marker, at in jpeg_segments(data):
        if frame is not None and marker == frame.marker:
            bands = data[at + 8 : at + 8 + 3 * frame.bands : 3]
            missing = {(band, part) for band in bands for part in (range(64) if marker in (0xC2, 0xCA) else (0,))}
        elif marker == 0xDA and at + 3 < len(data):
            after = at + 3 + 2 * data[at + 2]
            first, last, precision = data[after], data[after + 1], data[after + 2] & 15
            parts = range(first, last + 1) if not precision else ()
            missing -= {(band, part) for band in data[at + 3 : after : 2] for part in (parts or ())}
    return frame is not None and not missing


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """The markers of a JPEG's first picture, 0xD9 the last unless it is cut; and where the length after each is."""
    at, marker = 0, 0
    while marker != 0xD9 and (match := _JPEG_MARKER.search(data, at)) is not None:
        marker, at = data[match.start() + 1], match.end()
        yield marker, at
        if marker not in (0x01, 0xD8):  # all others have a length; a scan's data is searched
            at += int.from_bytes(data[at : at + 2], "big")


def without_damaged_chunks(data: bytes) -> bytes:
    """A PNG without the chunks whose checksum is wrong and that are no part of the picture, such as texts."""
    parts, at = [data[:8]], 8
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        kind, checksum = data[at + 4 : at + 8], int.from_bytes(data[end - 4 : end], "big")
        if not kind[:1].islower() or zlib.crc32(data[at + 4 : end - 4]) == checksum:
            parts.append(data[at:end])
        at = end
    return b"".join(parts)


def describe(data: bytes) -> str:
    """The kind of a file that is not a picture, to complete the sentence "this looks like …"."""
    if not data.strip(b"\0"):
        return f"{len(data):,} zero bytes, as a broken disk or an unfinished download leaves them"
    known = next((name for magic, name in _OTHER_FILES.items() if re.match(magic, data, re.DOTALL)), None)
    return known or _describe_text(data[:1024]) or f"an unknown kind of file (it begins with 0x{data[:8].hex()})"


def _describe_text(head: bytes) -> str | None:
    text = head.decode("utf-8", errors="ignore").lstrip("\ufeff \t\r\n").lower()
    if len(text) < 0.9 * len(head.strip()) or any(ord(c) < 32 and c not in "\t\r\n\f\x1b" for c in text):
        return None
    return next(name for start, name in _TEXTS.items() if re.match(start, text, re.DOTALL))


def ends_early(data: bytes, name: str) -> bool | None:
    """Whether a file of a supported format is truncated, judged by its structure; None if that does not tell.

    The end marker, or the length in the header, is more reliable than a decoder's message: after a flipped bit in a
    length field a decoder runs out of bytes too.
    """
    match name:
        case "JPEG":
            return all(marker != 0xD9 for marker, _ in jpeg_segments(data))
        case "PNG":
            return b"IEND" not in data[-64:]
        case "GIF":
            return not data.rstrip(b"\0").endswith(b";")
        case "AVIF" | "HEIC":
            return _boxes_end_early(data)
        case "WEBP":
            needed = 8 + int.from_bytes(data[4:8], "little")
        case "BMP":
            needed = int.from_bytes(data[2:6], "little")
        case "JXL":
            return _boxes_end_early(data) if data[:1] == b"\0" else None
        case "RAW":
            return None
        case _:  # TIFF
            needed = int.from_bytes(data[4:8], "little" if data[:1] == b"I" else "big")
    return True if len(data) < needed else None


def _boxes_end_early(data: bytes) -> bool:
    """Whether the chain of ISO base media boxes goes past the end. Each box begins with its size."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8:  # 0: this box extends to the end of the file
            return False
        at += size
    return at > len(data)
