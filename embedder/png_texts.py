"""Takes the texts and colour profiles out of a PNG, which are not needed to decode it."""

import re
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_WITH_ORIENTATION = (b"Raw profile type exif", b"XML:com.adobe.xmp")
_MOST = 2**20  # bytes of a compressed text that Pillow reads: it refuses the picture if there are more
_COMPRESSED = {
    b"zTXt": re.compile(rb"[^\0]*\0\0(.*)", re.DOTALL),
    b"iTXt": re.compile(rb"[^\0]*\0\x01\0[^\0]*\0[^\0]*\0(.*)", re.DOTALL),
}


def without_texts(data: bytes) -> bytes:
    """The same picture without texts and colour profiles, but for texts that may say how to turn it.

    Pillow refuses a PNG if a text or profile unpacks to more than 1 MiB, and takes a text named "transparency" for the
    transparency. Bytes that are no PNG are returned as they are.
    """
    if not data.startswith(_SIGNATURE):
        return data
    kept: list[memoryview] = []
    wanted = set(_WITH_ORIENTATION)
    view, start, at = memoryview(data), 0, len(_SIGNATURE)
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        kind = data[at + 4 : at + 8]
        if kind in _TEXTS and end <= len(data):
            body = data[at + 8 : end - 4]
            keyword = body[:80].partition(b"\0")[0]
            if keyword in wanted and _readable(kind, body):
                wanted.remove(keyword)  # one of each: many would take much memory
            else:
                kept.append(view[start:at])
                start = end
        at = end
    return b"".join([*kept, view[start:]]) if kept else data


def _readable(kind: bytes, body: bytes) -> bool:
    compressed = _COMPRESSED[kind].match(body) if kind in _COMPRESSED else None
    if compressed is None:
        return True
    unpack = zlib.decompressobj()
    try:
        unpack.decompress(compressed[1], _MOST)
    except zlib.error:
        return True  # Pillow skips it
    return not unpack.unconsumed_tail
