"""Valid files that Pillow does not read are read or named; files that lack nothing of the picture are read.

PNG files may have long texts and profiles.
"""

import io
import re
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from embedder.errors import ImageError
from embedder.images.decode import decode_image
from embedder.images.decoder_pool import DecodePool
from embedder.images.limits import ImageLimits
from jobs.demo.broken import png_chunk
from jobs.demo.gallery import STORED_AS
from tests.support.pictures.deep import GREY, RGB, full_range, tiff
from tests.support.pictures.sample_images import WHOLE, corner_error, encode, quarters, reason_of, smooth

Array = npt.NDArray[Any]
TWICE = np.dstack([RGB, 255 - RGB])
TWO = np.dstack([GREY, 255 - GREY])
ZSTD, UNKNOWN = (b"\x03\x01\x03\0\x01\0\0\0" + number for number in (b"\x50\xc3", b"\x77\x77"))
COLOUR, SHADE = Image.fromarray(RGB), Image.fromarray(GREY)
WHITE = Image.new("RGB", COLOUR.size, "white")


def rgb(pixels: Array, **options: Any) -> bytes:
    return tiff(pixels, photometric="rgb", **options)


def with_alpha(pixels: Array, alpha: int = 255) -> Array:
    return np.dstack([pixels, np.full_like(GREY, alpha)])


def planes(pixels: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(pixels, 2, 0))


def jpeg(pixels: Array, **options: Any) -> bytes:
    return bytes(imagecodecs.jpeg8_encode(pixels, **{"level": 97, **options}))


COMPRESSIONS = ["zstd", "lzma", "webp", "jpeg2000", "jpegxl", "lerc", "lzw", "packbits", "deflate", "png", "jpegxr"]
READ: dict[str, tuple[Callable[[], bytes], Image.Image]] = {
    **{f"compression {name}": (partial(rgb, RGB, compression=name), COLOUR) for name in COMPRESSIONS},
    "predictor of 16 bits": (lambda: rgb(full_range(RGB, "u2"), compression="deflate", predictor=2), COLOUR),
    "predictor of floats": (lambda: tiff(full_range(GREY, "f8"), compression="deflate", predictor=3), SHADE),
    "large TIFF": (lambda: rgb(full_range(RGB, "f4"), bigtiff=True), COLOUR),
    "two bands": (lambda: tiff(TWO, planarconfig="contig"), SHADE),
    "two bands in planes": (lambda: tiff(planes(full_range(TWO, "u2")), planarconfig="separate"), SHADE),
    "six bands": (lambda: tiff(TWICE, planarconfig="contig"), COLOUR),
    "six bands in planes": (lambda: tiff(planes(TWICE), planarconfig="separate"), COLOUR),
    "five bands": (lambda: rgb(full_range(TWICE[..., :5], "u2"), extrasamples=[0, 0], byteorder=">"), COLOUR),
    "12 bands": (lambda: tiff(np.dstack([TWICE, TWICE]), planarconfig="contig", tile=(16, 16)), COLOUR),
    "planes of 16 bits": (lambda: rgb(planes(full_range(RGB, "u2")), planarconfig="separate"), COLOUR),
    "grey with alpha": (lambda: tiff(full_range(with_alpha(GREY), "u2"), extrasamples=["unassalpha"]), SHADE),
    "see-through": (lambda: rgb(full_range(with_alpha(RGB, 0), "f4"), extrasamples=["unassalpha"]), WHITE),
    "premultiplied": (
        lambda: rgb(full_range(with_alpha(RGB // 2, 127), "f4"), extrasamples=["assocalpha"]),
        Image.blend(COLOUR, WHITE, 0.5),
    ),
    "a volume": (lambda: tiff(np.stack([GREY] * 4), volumetric=True, tile=(4, 16, 16)), SHADE),
    "pages": (lambda: tiff(np.stack([full_range(GREY, "f8"), full_range(255 - GREY, "f8")])), SHADE),
    "JPEG of 12 bits": (lambda: jpeg(RGB.astype(np.uint16) * 16, bitspersample=12), COLOUR),
    "JPEG of 12 bits in grey": (lambda: jpeg(GREY.astype(np.uint16) * 16, bitspersample=12), SHADE),
    "lossless JPEG": (lambda: jpeg(RGB, lossless=True), COLOUR),
    "lossless JPEG of 16 bits": (lambda: jpeg(full_range(GREY, "u2"), lossless=True, bitspersample=16), SHADE),
    "JPEG-LS": (lambda: bytes(imagecodecs.jpegls_encode(RGB)), COLOUR),
    "JPEG-LS of 16 bits": (lambda: bytes(imagecodecs.jpegls_encode(full_range(GREY, "u2"))), SHADE),
}


@pytest.fixture(scope="module")
def pool() -> Any:
    with closing(DecodePool(1)) as decoders:
        yield decoders


@pytest.mark.parametrize("name", READ)
def test_an_unusual_file_is_read_in_a_decoder_process(name: str, pool: DecodePool) -> None:
    make, expected = READ[name]
    decoded = pool.decode(make(), WHOLE)
    assert (decoded.width, decoded.height) == expected.size
    assert decoded.format == ("jpeg" if "JPEG" in name else "tiff")
    error = np.abs(decoded.pixels.astype(int) - decode_image(encode(expected, "png"), WHOLE).pixels)
    assert error.mean() <= 3


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: tiff(GREY.astype(np.complex64)), "64-bit complex values"),
        (lambda: tiff(full_range(RGB, "u2"), photometric="cielab"), "colours CieLAB"),
        (lambda: tiff(full_range(RGB, "f4"), photometric="logluv"), "colours 32845"),
        (lambda: tiff(full_range(TWICE[..., :4], "f4"), photometric="separated"), "colours CMYK"),
        (lambda: tiff(RGB, photometric="rgb", compression="zstd").replace(ZSTD, UNKNOWN), "compression 30583"),
        (lambda: re.sub(rb"(?s)\xff\xc0\0\x11(.{5})\x03(.{6}).{3}", b"\xff\xc0\0\x0e\\1\x02\\2", jpeg(RGB)), "2 band"),
        (lambda: bytes(imagecodecs.jpegxr_encode(RGB)), "JPEG XR"),
        (lambda: bytes(imagecodecs.jpeg2k_encode(RGB)), "JPEG 2000"),
    ],
)
def test_an_unsupported_part_is_named(make: Callable[[], bytes], part: str) -> None:
    with pytest.raises(ImageError, match=part) as caught:
        decode_image(make(), WHOLE)
    assert (caught.value.reason, caught.value.retryable) == ("unsupported_format", False)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize(
    ("package", "name", "part"),
    [
        ("tifffile", "pages", "64-bit float"),
        ("imagecodecs", "pages", "64-bit float"),
        ("imagecodecs", "JPEG of 12 bits", "3 band.* 12 bits"),
    ],
)
def test_without_the_package_the_message_names_the_extra(
    package: str, name: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImageError, match=rf"{part}.* install likeness\[formats\]") as caught:
        decode_image(READ[name][0](), WHOLE)
    assert (caught.value.reason, caught.value.retryable) == ("unsupported_format", True)


@pytest.mark.parametrize("name", ["pages", "six bands in planes", "JPEG of 12 bits", "JPEG-LS"])
def test_limits_hold_before_anything_is_decoded(name: str) -> None:
    data = READ[name][0]()
    each = (ImageLimits(max_pixels=100), ImageLimits(max_memory=1000), ImageLimits(max_seconds=1e-9))
    reasons = [reason_of(decode_image, data, WHOLE, limits=limits) for limits in each]
    assert reasons == ["too_many_pixels", "too_much_memory", "too_slow"]


PHOTO = Image.fromarray(smooth(200, 150))
JPEGS: dict[str, bytes] = {
    "baseline": encode(PHOTO, "jpeg"),
    "progressive": encode(PHOTO, "jpeg", progressive=True),
    "grey": encode(PHOTO.convert("L"), "jpeg"),
    "CMYK": encode(PHOTO.convert("CMYK"), "jpeg"),
    "without subsampling": encode(PHOTO, "jpeg", subsampling=0, quality=100),
    "optimized": encode(PHOTO, "jpeg", optimize=True, quality=30),
    "restarts": encode(PHOTO, "jpeg", restart_marker_blocks=3),
    "white": encode(Image.new("RGB", (200, 150), "white"), "jpeg"),
    "with EXIF": encode(PHOTO, "jpeg", exif=b"Exif\0\0" + encode(PHOTO.resize((40, 30)), "jpeg")),
}


@pytest.mark.parametrize("draft", [True, False])
@pytest.mark.parametrize("name", JPEGS)
def test_a_jpeg_without_its_end_marker_is_read(name: str, draft: bool) -> None:
    whole = decode_image(JPEGS[name], WHOLE, draft=draft)
    scans = JPEGS[name][:-2]
    for data in (scans, scans + b"\xff", scans + b"\xff" * 64, scans + b"\0" * 64):  # as memory cards are filled
        np.testing.assert_array_equal(decode_image(data, WHOLE, draft=draft).pixels, whole.pixels)


@pytest.mark.parametrize("name", JPEGS)
def test_a_jpeg_that_is_cut_is_truncated(name: str) -> None:
    """Or, if only filling bits are missing, its pixels are all there."""
    data, whole = JPEGS[name], np.asarray(Image.open(io.BytesIO(JPEGS[name])))
    cuts = [*range(len(data) - 40, len(data) - 2), *np.random.default_rng(1).integers(20, len(data) - 40, 30)]
    for cut in cuts:
        if (reason := reason_of(decode_image, data[:cut], WHOLE)) is None:
            with Image.open(io.BytesIO(data[:cut] + b"\xff\xd9")) as image:
                np.testing.assert_array_equal(np.asarray(image), whole)
        else:
            assert reason == "truncated"


def test_a_progressive_jpeg_is_truncated_where_a_whole_scan_is_missing() -> None:
    data = JPEGS["progressive"]
    starts = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    assert len(starts) == 10
    for start in starts[1:]:
        tables = data.rfind(b"\xff\xc4", 0, start)  # of the missing scan
        assert [reason_of(decode_image, data[:cut], WHOLE) for cut in (start, tables)] == ["truncated"] * 2


PNG = encode(PHOTO, "png")
LONG = zlib.compress(b"words " * 500_000)  # 3 MB
TURN_6 = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><d tiff:Orientation="6"/></x:xmpmeta>'


def with_chunks(*chunks: bytes, data: bytes = PNG, last: bool = False) -> bytes:
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
    np.testing.assert_array_equal(decoded.pixels, decode_image(PNG, WHOLE).pixels)


@pytest.mark.parametrize(
    "extra",
    [
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + TURN_6),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(TURN_6)),
    ],
)
def test_an_orientation_in_xmp_turns_the_picture(extra: bytes) -> None:
    data = encode(quarters().transpose(STORED_AS[6]), "png")
    decoded = decode_image(with_chunks(png_chunk(b"zTXt", b"Comment\0\0" + LONG), extra, data=data), WHOLE)
    assert (decoded.width, decoded.height) == (96, 64)
    assert corner_error(decoded.pixels) <= 2


def test_a_png_with_long_texts_that_is_cut_is_refused() -> None:
    whole = with_chunks(png_chunk(b"zTXt", b"Comment\0\0" + LONG))
    assert all(reason_of(decode_image, whole[:length], WHOLE) for length in (33, 40, 60, 2_000, len(whole) - 100))


EXTRAS = [
    (b"tEXt", b"a\0bcd"), (b"zTXt", b"a\0\0bcd"), (b"iTXt", b"a\0\0\0\0\0bcd"), (b"iCCP", b"p\0\0bcd"),
    (b"gAMA", bytes(4)), (b"pHYs", bytes(9)), (b"tIME", bytes(7)), (b"eXIf", b"MM\0*"), (b"sRGB", b"\0"),
    (b"cHRM", bytes(32)), (b"bKGD", bytes(6)), (b"vpAg", bytes(9)), (b"tRNS", bytes(6)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "content"), EXTRAS)
def test_a_png_is_read_without_extras_whose_checksum_is_wrong(kind: bytes, content: bytes) -> None:
    damaged = png_chunk(kind, content)[:-4] + b"\0\0\0\0"
    for data in (with_chunks(damaged), with_chunks(damaged, last=True)):
        np.testing.assert_array_equal(decode_image(data, WHOLE).pixels, decode_image(PNG, WHOLE).pixels)


def test_a_png_with_a_wrong_checksum_in_its_picture_is_still_refused() -> None:
    header = PNG[:29] + b"\0\0\0\0" + PNG[33:]
    palette = encode(PHOTO.quantize(16), "png")
    at = palette.index(b"PLTE")
    for data in (header, palette[: at + 4] + b"\x99" + palette[at + 5 :]):
        assert reason_of(decode_image, data, WHOLE) == "corrupt"
