"""Signatures: equal digests for the same pixels in any file, and what the file is like; by the decoder's processes."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import Base

from embedder.errors import ImageError
from embedder.images.decoder_pool import DecodePool
from embedder.images.signature import Signature
from tests.support.pictures.sample_images import encode

NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8))


def turned_by_exif() -> bytes:
    exif = Image.Exif()
    exif[Base.Orientation] = 6
    exif[Base.Model] = "a camera"
    return encode(NOISE.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    with closing(DecodePool(1)) as pool:
        yield pool


def signed(pool: DecodePool, data: bytes) -> Signature:
    return pool.signature(data, 64)


@pytest.mark.parametrize(
    ("data", "lossless", "exif"),
    [
        pytest.param(encode(NOISE, "PNG", compress_level=9), True, False, id="png"),
        pytest.param(encode(NOISE, "WEBP", lossless=True), True, False, id="lossless webp"),
        pytest.param(encode(NOISE, "TIFF"), True, False, id="tiff"),
        pytest.param(encode(NOISE.convert("RGBA"), "PNG"), True, False, id="opaque alpha"),
        pytest.param(turned_by_exif(), True, True, id="turned by exif"),
    ],
)
def test_the_same_pixels_have_the_same_digest(pool: DecodePool, data: bytes, lossless: bool, exif: bool) -> None:
    found, plain = signed(pool, data), signed(pool, encode(NOISE, "BMP"))
    assert (found.digest, found.lossless, found.exif) == (plain.digest, lossless, exif)
    assert np.array_equal(found.pixels, plain.pixels)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode(NOISE, "JPEG"), id="jpeg"),
        pytest.param(encode(NOISE.resize((30, 40)), "PNG"), id="size"),
        pytest.param(encode(Image.merge("RGBA", (*NOISE.split(), NOISE.getchannel(0))), "PNG"), id="alpha"),
        pytest.param(encode(NOISE.convert("L").convert("I;16"), "PNG"), id="16 bits"),
    ],
)
def test_different_pixels_have_different_digests(pool: DecodePool, data: bytes) -> None:
    assert signed(pool, data).digest != signed(pool, encode(NOISE, "PNG")).digest


def test_lossy_formats_are_told(pool: DecodePool) -> None:
    assert not signed(pool, encode(NOISE, "JPEG")).lossless
    assert not signed(pool, encode(NOISE, "WEBP")).lossless


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_an_animation_has_no_digest(pool: DecodePool, form: str) -> None:
    frames = encode(NOISE, form, save_all=True, append_images=[NOISE.rotate(90), NOISE.rotate(180)])
    assert signed(pool, frames).digest is None
    assert signed(pool, encode(NOISE.quantize(), "GIF")).digest is not None


def test_other_files_are_refused(pool: DecodePool) -> None:
    with pytest.raises(ImageError, match="plain text"):
        signed(pool, b"no picture")
