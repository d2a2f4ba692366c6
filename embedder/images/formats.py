"""Recognises bytes by their first ones: a picture format, another kind of file, or nothing known.

Used to explain why a file was rejected; Pillow decides by itself what it opens.
"""

SUPPORTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""The formats that are opened, by Pillow's names. EPS and PDF would run other programs; others are rare on the web."""

_PICTURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    b"8BPS": "PSD",
    b"%!PS": "EPS",
    b"\0\0\x01\0": "ICO",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"v/1\x01": "OpenEXR",
    b"qoif": "QOI",
    b"FUJIFILMCCD-RAW": "camera raw",
    b"DDS ": "DDS",
}
_OTHER_FILES = {
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive (or an office document)",
    b"\x1f\x8b": "a gzip archive",
    b"7z\xbc\xaf": "a 7-zip archive",
    b"Rar!": "a RAR archive",
    b"\x1aE\xdf\xa3": "a WebM or Matroska video",
    b"OggS": "an Ogg file",
    b"ID3": "an MP3 file",
    b"fLaC": "a FLAC file",
    b"PAR1": "a Parquet file",
    b"\x93NUMPY": "a NumPy array",
    b"\x7fELF": "a program",
    b"version https://git-lfs": "a Git LFS pointer: the file itself was never downloaded",
}
_BRANDS = {"avif": "AVIF", "avis": "AVIF", "heic": "HEIC", "heix": "HEIC", "hevc": "HEIC", "mif1": "HEIC"}
_BRANDS |= {"msf1": "HEIC", "crx ": "camera raw"}


def picture_format(data: bytes) -> str | None:
    """The picture format whose signature the bytes carry ("JPEG", "HEIC" …), or None."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp":
        size = min(int.from_bytes(data[:4], "big"), 256)
        brands = [data[at : at + 4].decode("latin-1") for at in (8, *range(16, size, 4))]
        known = [_BRANDS[brand] for brand in brands if brand in _BRANDS]
        return "AVIF" if "AVIF" in known else next(iter(known), None)
    return next((name for magic, name in _PICTURES.items() if data.startswith(magic)), None)


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


def describe(data: bytes) -> str:
    """The kind of bytes that are no picture, to end the sentence "this looks like …"."""
    for magic, name in _OTHER_FILES.items():
        if data.startswith(magic):
            return name
    if data[4:8] == b"ftyp":
        return "an MP4 or QuickTime video"
    if data[:4] == b"RIFF" and data[8:12] in (b"AVI ", b"WAVE"):
        return "an AVI or WAVE file"
    if data[257:262] == b"ustar":
        return "a tar archive"
    if not data.strip(b"\0"):
        return f"{len(data):,} zero bytes, as a broken disk or an unfinished download leaves them"
    return _describe_text(data[:1024]) or f"an unknown kind of file (it begins with 0x{data[:8].hex()})"


def _describe_text(head: bytes) -> str | None:
    text = head.decode("utf-8", errors="ignore").lstrip("\ufeff \t\r\n").lower()
    if len(text) < 0.9 * len(head.strip()) or any(ord(c) < 32 and c not in "\t\r\n\f\x1b" for c in text):
        return None
    if "<svg" in text:
        return "an SVG drawing, which has no pixels: convert it to PNG first"
    if text.startswith(("<!doctype html", "<html")) or "<html" in text:
        return "an HTML page, as a server sends instead of a missing or protected picture"
    if text.startswith("<"):
        return "an XML document"
    if text.startswith(("{", "[")):
        return "a JSON document"
    return "plain text"


def ends_early(data: bytes, name: str) -> bool | None:
    """Whether the file breaks off, judged by its own structure; None if that does not show it.

    The end marker, or the length in the header, is more reliable than a decoder's message: a flipped bit in a length
    field makes a decoder run out of bytes too.
    """
    match name:
        case "JPEG":  # 0xFFD9 ends the picture and cannot occur within its scans
            scan = data.rfind(b"\xff\xda")
            return scan < 0 or data.rfind(b"\xff\xd9") < scan
        case "PNG":
            return b"IEND" not in data[-64:]
        case "GIF":
            return not data.rstrip(b"\0").endswith(b";")
        case "WEBP":
            return _shorter(data, 8 + int.from_bytes(data[4:8], "little"))
        case "BMP":
            return _shorter(data, int.from_bytes(data[2:6], "little"))
        case "TIFF":
            return _shorter(data, int.from_bytes(data[4:8], "little" if data[:1] == b"I" else "big"))
        case "AVIF":
            return _boxes_end_early(data)
    return None


def _shorter(data: bytes, needed: int) -> bool | None:
    return True if len(data) < needed else None


def _boxes_end_early(data: bytes) -> bool:
    """Whether the chain of ISO base media boxes leads past the end. Each box begins with its size."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 0:  # this box goes on to the end of the file
            return False
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8:
            return False
        at += size
    return at > len(data)
