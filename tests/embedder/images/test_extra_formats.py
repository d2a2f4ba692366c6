"""HEIC, JPEG XL and camera RAW: colours, orientation, hostile files, and errors for missing packages."""

import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pillow_jxl  # noqa: F401  # registers itself
import pytest
from PIL import ExifTags, Image

from embedder.errors import ImageError
from embedder.images.decode import decode_image, thumbnail
from embedder.images.decoder_pool import DecodePool
from embedder.images.formats import EXTRA_FORMATS, jxl_size, picture_format
from embedder.images.limits import DEFAULT_LIMITS, ImageLimits
from jobs.demo.gallery import STORED_AS
from tests.support.pictures.damage import REASONS, damage
from tests.support.pictures.raw_files import dng
from tests.support.pictures.sample_images import CENTRE, WHOLE, corner_error, encode, quarters, reason_of, smooth
from tests.support.processes import python

pillow_heif.register_heif_opener()

PREVIEW = encode(quarters(900, 600), "jpeg")
SMALL_PREVIEW = encode(Image.new("RGB", (90, 60)), "jpeg")


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


def stored(orientation: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    return quarters(*size).transpose(STORED_AS[orientation])


@pytest.mark.parametrize(
    ("data", "name", "size", "tolerance"),
    [
        pytest.param(encode(quarters(), "HEIF", quality=95), "heic", (96, 64), 4, id="HEIC"),
        *(
            pytest.param(encode(stored(n), "HEIF", exif=turned(n).tobytes()), "heic", (96, 64), 8, id=f"HEIC {n}")
            for n in range(2, 9)
        ),
        pytest.param(encode(quarters(), "JXL"), "jxl", (96, 64), 4, id="JXL"),
        pytest.param(encode(quarters(97, 61), "JXL", use_container=True), "jxl", (97, 61), 4, id="JXL in boxes"),
        # A decoder turns the picture by the codestream's header, not by EXIF.
        pytest.param(encode(quarters(), "JXL", exif=turned(6).tobytes()), "jxl", (96, 64), 4, id="JXL with EXIF"),
        pytest.param(dng(quarters()), "raw", (96, 64), 30, id="RAW, demosaiced"),
        pytest.param(dng(stored(6), orientation=6), "raw", (96, 64), 30, id="RAW, demosaiced and turned"),
        pytest.param(dng(quarters(), preview=SMALL_PREVIEW), "raw", (96, 64), 30, id="RAW with a thumbnail"),
        pytest.param(dng(Image.new("RGB", (96, 64)), preview=PREVIEW), "raw", (900, 600), 4, id="RAW with a preview"),
        *(
            pytest.param(
                dng(quarters(), orientation=n, preview=encode(stored(n, (900, 600)), "jpeg")),
                *("raw", (900, 600), 4),
                id=f"RAW with a preview turned {n}",
            )
            for n in (3, 6, 8)
        ),
    ],
)
def test_colours_size_and_name(data: bytes, name: str, size: tuple[int, int], tolerance: int) -> None:
    decoded = decode_image(data, WHOLE)
    assert (decoded.width, decoded.height, decoded.format) == (*size, name)
    assert corner_error(decoded.pixels) <= tolerance


def test_transparent_pictures_are_put_on_white() -> None:
    image = quarters().convert("RGBA")
    image.putalpha(0)
    for name in ("HEIF", "JXL"):
        assert decode_image(encode(image, name), WHOLE).pixels.min() >= 250


@pytest.mark.filterwarnings("ignore:Using JPEG reconstruction")
def test_a_jpeg_in_jpeg_xl_is_turned_by_its_exif(tmp_path: Path) -> None:
    stored(6).save(tmp_path / "a.jpg", exif=turned(6))
    with Image.open(tmp_path / "a.jpg") as image:
        decoded = decode_image(encode(image, "JXL"), WHOLE)
    assert (decoded.width, decoded.height, corner_error(decoded.pixels) <= 20) == (96, 64, True)


SMALL = {"HEIC": encode(quarters(), "HEIF"), "JXL": encode(quarters(), "JXL"), "RAW": dng(quarters())}


def test_a_pool_decodes_them_and_makes_thumbnails() -> None:
    with closing(DecodePool(1, timeout_s=30)) as pool:
        for data in SMALL.values():
            np.testing.assert_array_equal(pool.decode(data, CENTRE).pixels, decode_image(data, CENTRE).pixels)
            assert pool.thumbnail(data, 30) == thumbnail(data, 30)


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (256, 256), (300, 200), (1000, 3), (4097, 2), (1920, 1080)])
def test_the_size_in_a_header_of_jpeg_xl(size: tuple[int, int]) -> None:
    assert jxl_size(encode(Image.new("L", size), "JXL", effort=1)) == size


def jxl_header(width: int, height: int) -> bytes:
    bits = 0b11 << 1 | (height - 1) << 3 | 0b11 << 36 | (width - 1) << 38
    return b"\xff\x0a" + bits.to_bytes(9, "little")


@pytest.mark.parametrize("name", EXTRA_FORMATS)
def test_limits_hold_before_anything_is_decoded(name: str) -> None:
    def reason(data: bytes, **limits: Any) -> str | None:
        return reason_of(decode_image, data, CENTRE, limits=ImageLimits(**limits))

    data = SMALL[name]
    assert reason(data, max_pixels=96 * 64 - 1) == "too_many_pixels"
    assert reason(data, max_memory=2**14) == "too_much_memory"
    assert reason(data, max_seconds=1e-9) == "too_slow"
    assert reason(data, max_bytes=100) == "too_many_bytes"
    if name == "JXL":
        assert reason(jxl_header(2**30, 2**30) + bytes(400)) == "too_many_pixels"
        assert reason(jxl_header(7_000, 7_000) + bytes(400)) == "decompression_bomb"
    elif name == "HEIC":
        wide = data.replace((96).to_bytes(4, "big"), (2**30).to_bytes(4, "big"))
        assert reason(wide) in {"corrupt", "too_many_pixels"}
    else:
        wide = data.replace(b"\x00\x01\x04\0\x01\0\0\0\x60\0", b"\x00\x01\x04\0\x01\0\0\0\xff\xff")
        tall = wide.replace(b"\x01\x01\x04\0\x01\0\0\0\x40\0", b"\x01\x01\x04\0\x01\0\0\0\xff\xff")
        assert reason(tall) in {"corrupt", "too_many_pixels"}  # LibRaw compares it with the size of the file


@pytest.mark.parametrize("name", EXTRA_FORMATS)
def test_damaged_bytes_raise_nothing_but_image_errors(name: str) -> None:
    """Like for the other formats, but in a separate process: cuts, flips, and random bytes after the signature."""
    picture = Image.fromarray(smooth(120, 80))
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    start = {"HEIC": encode(picture, "HEIF"), "JXL": encode(picture, "JXL"), "RAW": dng(picture)}[name]
    damaged = [damage(start, rng) for _ in range(60)] + [start[:64] + rng.bytes(2_000) for _ in range(5)]
    reasons = set()
    with closing(DecodePool(1, timeout_s=30)) as pool:
        for data in damaged:
            try:
                assert pool.decode(data, CENTRE).pixels.shape == (64, 64, 3)
            except ImageError as error:
                reasons.add(error.reason)
    assert REASONS | {"decode_died", "too_much_memory"} >= reasons
    assert len(reasons) > 0


MISSING = [("HEIC", "pillow_heif"), ("JXL", "pillow_jxl"), ("RAW", "rawpy")]


@pytest.mark.parametrize(("name", "package"), MISSING)
def test_a_missing_package_is_named_for_a_retry(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImageError, match=rf"a {name} file; install likeness\[formats\] to read it") as caught:
        decode_image(SMALL[name], CENTRE)
    assert (caught.value.reason, caught.value.retryable) == ("unsupported_format", True)


def test_a_decoder_process_starts_without_optional_packages_and_numpy() -> None:
    """Numpy would take half of the start time, for which small jobs wait."""
    code = "import sys, embedder.images.decoder_worker; print([n for n in sys.argv[1:] if n in sys.modules])"
    assert python("-c", code, "numpy", *(package for _, package in MISSING)).stdout == "[]\n"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"II*\0\x10\0\0\0CR\x02\0", "RAW"),
        (b"\0\0\0\x18ftypcrx \0\0\0\x01crx isom", "RAW"),
        (b"FUJIFILMCCD-RAW 0201", "RAW"),
        (b"IIU\0\x18\0\0\0", "RAW"),
        (encode(quarters(), "tiff"), "TIFF"),
    ],
)
def test_raw_is_distinguished_from_tiff(head: bytes, name: str) -> None:
    assert picture_format(head) == name


LARGE: dict[str, Callable[[], bytes]] = {
    "HEIC": lambda: encode(Image.fromarray(smooth(4_000, 3_000)), "HEIF", quality=30),
    "JXL": lambda: encode(Image.fromarray(smooth(4_000, 3_000)), "JXL", effort=1),
    "RAW": lambda: dng(Image.fromarray(smooth(4_000, 3_000))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_picture_of_twelve_megapixels_fits_its_limits(name: str) -> None:
    with closing(DecodePool(1, timeout_s=60)) as pool:
        assert pool.decode(LARGE[name](), CENTRE, limits=DEFAULT_LIMITS).width == 4_000
