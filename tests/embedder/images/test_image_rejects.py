"""`embedder.images.decode`: all damaged or unsuitable bytes raise an `ImageError` with the right reason."""

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from embedder.errors import ImageError
from embedder.images import decode
from embedder.images.decode import decode_image
from embedder.images.decoder_pool import DecodePool
from embedder.images.limits import ACCEPTED_LIMITS, ImageLimits
from tests.support.pictures.damage import REASONS, damage
from tests.support.pictures.deep import RGB, full_range, tiff
from tests.support.pictures.sample_images import CENTRE, SAVE, encode, png, quarters, reason_of, smooth

NOISE = Image.fromarray(np.random.default_rng(3).integers(0, 255, (90, 120, 3)).astype(np.uint8))
NOT_IMAGES = {
    b"<!DOCTYPE html><html><body>404 Not Found</body></html>": "an HTML page",
    b"just some notes\nin a text file\n": "plain text",
    b"PK\x03\x04\x14\0\0\0\x08\0" + b"\1" * 40: "a zip archive",
    b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj": "a PDF document",
    b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"></svg>': "an SVG drawing",
    b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\0" * 30: "an MP4 or QuickTime video",
    b'{"error": "expired"}': "a JSON document",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n": "a Git LFS pointer",
    b"\0" * 5000: "5,000 zero bytes",
    b"\x07\x99\xfe\x01 noise \xff\x80": "0x0799fe01",
}


UNSUPPORTED = {b"%!PS-Adobe-3.0 EPSF-3.0\n": "EPS", b"\xff\x4f\xff\x51": "JPEG 2000", b"8BPS\0\1": "PSD"}


@pytest.mark.parametrize(("data", "name"), (NOT_IMAGES | UNSUPPORTED).items(), ids=(NOT_IMAGES | UNSUPPORTED).values())
def test_other_files_and_unsupported_formats_are_named(data: bytes, name: str) -> None:
    with pytest.raises(ImageError, match=name) as caught:
        decode_image(data, CENTRE)
    assert caught.value.reason == ("unsupported_format" if data in UNSUPPORTED else "not_an_image")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", [*SAVE, "TIFF of floats"])
def test_truncated(name: str, share: float) -> None:
    data = encode(NOISE, name) if name in SAVE else tiff(full_range(RGB, "f8"), photometric="rgb")
    assert reason_of(decode_image, data[: int(len(data) * share)], CENTRE) == "truncated"


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("png", lambda d: d.replace(b"IDAT", b"IDAT\xff\xff\xff", 1)[: len(d) - 15] + d[-12:]),
        ("jpeg", lambda d: d[:2] + b"\xff\xc0\0\x03\x08" + d[20:]),
        ("webp", lambda d: d[:20] + bytes(60) + d[80:]),
        ("gif", lambda d: d[:-40] + b"\x07" * 39 + b";"),
        ("avif", lambda d: d.replace(b"ispe", b"ispf")),
    ],
)
def test_corrupt(name: str, spoil: Callable[[bytes], bytes]) -> None:
    assert reason_of(decode_image, spoil(encode(NOISE, name)), CENTRE) == "corrupt"


@pytest.mark.parametrize("size", [(16000, 10000), (20000, 10000), (2**31 - 1, 2**31 - 1)])
def test_too_many_pixels_are_refused_by_the_header(size: tuple[int, int]) -> None:
    bomb = png(*size, 8, 2, b"\0" * 1000)
    with pytest.raises(ImageError, match=r"\d{9}|160,000,000") as caught:
        decode_image(bomb, CENTRE)
    assert caught.value.reason == "too_many_pixels"


def test_pillow_has_no_limit_of_its_own_in_decoder_processes() -> None:
    data = encode(Image.new("1", (20_000, 9_500)), "png") + bytes(60_000)  # appended, so that it is no bomb
    with closing(DecodePool(1)) as pool:
        assert pool.decode(data, CENTRE, limits=ACCEPTED_LIMITS).width == 20_000
        assert pool.whole_picture(data, 200).size == (21, 10)  # a job has accepted it
        with pytest.raises(ImageError, match=r"20000 × 9500 = 190,000,000 pixels, the limit is 150,000,000") as caught:
            pool.decode(data, CENTRE)
    assert caught.value.reason == "too_many_pixels"
    with pytest.raises(ImageError, match=r"has 190000000 pixels, the limit is 178956970; shrink it$"):
        decode_image(data, CENTRE, limits=ACCEPTED_LIMITS)


def test_limits_of_the_caller_apply() -> None:
    data = encode(quarters(100, 100), "png")
    assert reason_of(decode_image, b"", CENTRE) == "empty"
    assert reason_of(decode_image, data, CENTRE, limits=ImageLimits(max_pixels=9_999)) == "too_many_pixels"
    assert reason_of(decode_image, data, CENTRE, limits=ImageLimits(max_bytes=len(data) - 1)) == "too_many_bytes"
    exact = ImageLimits(max_pixels=10_000, max_bytes=len(data))
    assert decode_image(data, CENTRE, limits=exact).width == 100


def test_large_pictures_below_the_limit() -> None:
    # Pillow warns above 89 million pixels. The appended bytes keep the file from looking like a bomb.
    data = encode(Image.new("1", (10_000, 9_000)), "png") + bytes(5_000)
    assert decode_image(data, CENTRE).width == 10_000


def test_out_of_memory_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(decode, "resized_rgb", fail)
    with pytest.raises(ImageError) as caught:
        decode_image(encode(quarters(), "png"), CENTRE)
    assert (caught.value.reason, caught.value.retryable) == ("out_of_memory", True)


@pytest.mark.parametrize("name", [*SAVE, "mpo", "palette", "apng", "tiff_lzw", "grey16", "animated"])
def test_damaged_bytes_raise_nothing_but_image_errors(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Seeded bit flips, cuts and splices: 60 of each format."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    image = Image.fromarray(smooth(120, 80))
    exif = Image.Exif()
    exif[0x0112] = 6
    special = {
        "mpo": encode(image, "MPO", save_all=True, append_images=[image]),
        "palette": encode(image.quantize(16), "png", transparency=bytes(range(16))),
        "apng": encode(image, "png", save_all=True, append_images=[quarters(120, 80)]),
        "tiff_lzw": encode(image, "tiff", compression="tiff_lzw", exif=exif),
        "grey16": encode(Image.fromarray(smooth(120, 80)[..., 0].astype(np.uint16) * 200), "tiff"),
        "animated": encode(image, "webp", save_all=True, append_images=[quarters(120, 80)]),
        **{name: encode(image, name) for name in ("gif", "bmp")},
    }
    whole = special[name] if name in special else encode(image, name, exif=exif)
    reasons: list[str] = []
    for _ in range(60):
        try:
            decoded = decode_image(damage(whole, rng), CENTRE, limits=ImageLimits(max_pixels=4_000_000))
            assert decoded.pixels.shape == (64, 64, 3)
        except ImageError as error:
            reasons.append(error.reason)
    assert REASONS.issuperset(reasons)
    assert len(reasons) >= 15
    printed = capfd.readouterr()
    assert printed.out == ""
    if not name.startswith("tiff"):  # libtiff prints errors, and Pillow cannot prevent it
        assert printed.err == ""


def test_threads_do_not_disturb_each_other() -> None:
    good = [encode(quarters(300, 200), name) for name in SAVE]
    expected = [decode_image(data, CENTRE).pixels for data in good]

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, len(good), 30):
            np.testing.assert_array_equal(decode_image(good[i], CENTRE).pixels, expected[i])
            with pytest.raises(ImageError):
                decode_image(good[i][:60], CENTRE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
