"""Minimal DNG files: sensor pixels, and optionally a preview."""

import io
import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

_SHORT, _LONG, _BYTE, _TEXT, _RATIONAL = 3, 4, 1, 2, 5
_KINDS = {_SHORT: "H", _LONG: "I", _BYTE: "B", _TEXT: "s", _RATIONAL: "I"}
_KIND_OF = {50706: _BYTE, 33422: _BYTE, 271: _TEXT, 50708: _TEXT, 50721: 10, 50728: _RATIONAL, 273: _LONG, 279: _LONG}
_FROM_XYZ = (32_406, -15_372, -4_986, -9_689, 18_758, 415, 557, -2_040, 10_570)  # to linear sRGB, × 10,000
_KIND_OF |= {330: _LONG, 254: _LONG}


def dng(picture: Image.Image, *, orientation: int = 1, preview: bytes | None = None) -> bytes:
    """The picture as a sensor behind red, green and blue filters sees it, in 16 bits."""
    mosaic = _mosaic(np.asarray(picture.convert("RGB")))
    height, width = mosaic.shape
    camera = {271: b"Drawn\0", 50706: [1, 4, 0, 0], 50708: b"Drawn\0", 274: [orientation]}
    camera |= {50721: _FROM_XYZ, 50728: [10_000] * 3}
    sensor = {254: [0], 256: [width], 257: [height], 258: [16], 259: [1], 262: [32803], 277: [1], 278: [height]}
    sensor |= {273: [0], 279: [mosaic.nbytes], 33421: [2, 2], 33422: [0, 1, 1, 2], 50714: [0], 50717: [65535]}
    if preview is None:
        return _file([camera | sensor], [mosaic.tobytes()])
    with Image.open(io.BytesIO(preview)) as image:
        small = {254: [1], 256: [image.width], 257: [image.height], 258: [8, 8, 8], 259: [7], 262: [6], 277: [3]}
    small |= {273: [0], 278: [small[257][0]], 279: [len(preview)]}
    return _file([camera | small | {330: [0]}, sensor], [preview, mosaic.tobytes()])


def _mosaic(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    linear = np.round((rgb / 255.0) ** 2.2 * 65535).astype(np.uint16)
    mosaic = linear[..., 1].copy()
    mosaic[::2, ::2], mosaic[1::2, 1::2] = linear[::2, ::2, 0], linear[1::2, 1::2, 2]
    return mosaic


def _file(directories: Sequence[Mapping[int, Sequence[int] | bytes]], strips: Sequence[bytes]) -> bytes:
    """Written twice: first to learn the length of the directories, then with the offsets of what follows them."""
    places = [0] * (2 * len(strips))
    for _ in range(2):
        head, starts = b"II*\0\x08\0\0\0", []
        for number, directory in enumerate(directories):
            starts.append(len(head))
            known = {273: [places[number]], 330: [places[-1]]}
            head += _directory({tag: known.get(tag, value) for tag, value in directory.items()}, len(head))
        places = [len(head), len(head) + len(strips[0]), starts[-1]]
    return head + b"".join(strips)


def _directory(entries: Mapping[int, Sequence[int] | bytes], start: int) -> bytes:
    table, behind = struct.pack("<H", len(entries)), b""
    after = start + 2 + 12 * len(entries) + 4
    for tag, value in sorted(entries.items()):
        kind = _KIND_OF.get(tag, _SHORT)
        if isinstance(value, bytes):
            packed = value
        elif kind in (_RATIONAL, 10):
            packed = b"".join(struct.pack("<iI", each, 10_000) for each in value)
        else:
            packed = struct.pack(f"<{len(value)}{_KINDS[kind]}", *value)
        at = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", after + len(behind))
        table += struct.pack("<HHI", tag, kind, len(value)) + at
        behind += packed if len(packed) > 4 else b""
    return table + bytes(4) + behind
