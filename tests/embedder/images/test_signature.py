"""Signatures: equal digests for the same pixels in any format, and facts about the file."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import Base

from embedder.errors import ImageError
from embedder.images.decoder_pool import DecodePool
from embedder.images.signature import Signature
from tests.support.pictures.sample_images import encode

Sign = Callable[[bytes], Signature]
NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8))


def turned_by_exif() -> bytes:
    exif = Image.Exif()
    exif[Base.Orientation] = 6
    exif[Base.Model] = "a camera"
    return encode(NOISE.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)


@pytest.fixture(scope="module")
def sign() -> Iterator[Sign]:
    with closing(DecodePool(1)) as pool:
        yield partial(pool.signature, side=64)


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
def test_the_same_pixels_have_the_same_digest(sign: Sign, data: bytes, lossless: bool, exif: bool) -> None:
    signature, plain = sign(data), sign(encode(NOISE, "BMP"))
    assert (signature.digest, signature.lossless, signature.exif) == (plain.digest, lossless, exif)
    assert np.array_equal(signature.pixels, plain.pixels)


@pytest.mark.parametrize(
    ("data", "lossless"),
    [
        pytest.param(encode(NOISE, "JPEG"), False, id="jpeg"),
        pytest.param(encode(NOISE, "WEBP"), False, id="webp"),
        pytest.param(encode(NOISE.resize((30, 40)), "PNG"), True, id="size"),
        pytest.param(encode(Image.merge("RGBA", (*NOISE.split(), NOISE.getchannel(0))), "PNG"), True, id="alpha"),
        pytest.param(encode(NOISE.convert("L").convert("I;16"), "PNG"), True, id="16 bits"),
    ],
)
def test_different_pixels_have_different_digests(sign: Sign, data: bytes, lossless: bool) -> None:
    assert sign(data).digest != sign(encode(NOISE, "PNG")).digest
    assert sign(data).lossless == lossless


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_an_animation_has_no_digest(sign: Sign, form: str) -> None:
    frames = encode(NOISE, form, save_all=True, append_images=[NOISE.rotate(90), NOISE.rotate(180)])
    assert sign(frames).digest is None
    assert sign(encode(NOISE.quantize(), "GIF")).digest is not None


def test_other_files_are_refused(sign: Sign) -> None:
    with pytest.raises(ImageError, match="plain text"):
        sign(b"no picture")
