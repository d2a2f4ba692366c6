"""PNG files with long texts and profiles."""

import zlib

import numpy as np
import pytest

from embedder.errors import ImageError
from embedder.images.decode import decode_image
from jobs.demo.broken import png_chunk
from tests.support.pictures.sample_images import STORED, WHOLE, corner_error, encode, quarters

LONG = zlib.compress(b"words " * 500_000)  # 3 MB
TURN_6 = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><d tiff:Orientation="6"/></x:xmpmeta>'
PLAIN = encode(quarters(), "png")


def with_chunks(*chunks: bytes, data: bytes = PLAIN, last: bool = False) -> bytes:
    """Inserts chunks directly after the header, or before the end."""
    at = len(data) - 12 if last else 33
    return data[:at] + b"".join(chunks) + data[at:]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "extra",
    [
        png_chunk(b"zTXt", b"Comment\0\0" + LONG),
        png_chunk(b"iTXt", b"Comment\0\1\0en\0\0" + LONG),
        png_chunk(b"tEXt", b"Comment\0" + b"words " * 500_000),
        png_chunk(b"iCCP", b"profile\0\0" + LONG),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + LONG),
    ],
    ids=["zTXt", "iTXt", "tEXt", "iCCP", "XMP"],
)
def test_a_png_with_long_texts_is_read(extra: bytes, last: bool) -> None:
    decoded = decode_image(with_chunks(extra, last=last), WHOLE)
    np.testing.assert_array_equal(decoded.pixels, decode_image(PLAIN, WHOLE).pixels)


@pytest.mark.parametrize(
    "extra",
    [
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + TURN_6),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(TURN_6)),
    ],
)
def test_an_orientation_in_xmp_turns_the_picture(extra: bytes) -> None:
    data = encode(quarters().transpose(STORED[6]), "png")
    decoded = decode_image(with_chunks(png_chunk(b"zTXt", b"Comment\0\0" + LONG), extra, data=data), WHOLE)
    assert (decoded.width, decoded.height) == (96, 64)
    assert corner_error(decoded.pixels) <= 2


def test_truncated_files_are_still_refused() -> None:
    whole = with_chunks(png_chunk(b"zTXt", b"Comment\0\0" + LONG))
    for length in (33, 40, 60, 2_000, len(whole) - 100):
        with pytest.raises(ImageError):
            decode_image(whole[:length], WHOLE)
