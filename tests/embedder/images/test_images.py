"""`embedder.images.decode`: the colours of every format and mode, and thumbnails."""

import io

import numpy as np
import pytest
from PIL import Image

from embedder.errors import ImageError
from embedder.images.decode import decode_image, thumbnail
from tests.support.pictures.sample_images import (
    QUARTERS,
    RED,
    SAVE,
    WHOLE,
    corner_error,
    encode,
    four,
    quarters,
    rotated,
)

WHITE, BLACK = (255, 255, 255), (0, 0, 0)


@pytest.mark.parametrize("name", SAVE)
def test_every_format_gives_its_colours_size_and_name(name: str) -> None:
    decoded = decode_image(encode(quarters(), name), WHOLE)
    assert decoded.pixels.shape == (64, 64, 3)
    assert decoded.pixels.dtype == np.uint8
    assert decoded.pixels.flags.writeable
    assert (decoded.width, decoded.height, decoded.format) == (96, 64, name)
    assert corner_error(decoded.pixels) <= 8


def frames(name: str) -> bytes:
    later = [Image.new("RGB", (96, 64), colour) for colour in ("white", "black")]
    data = encode(quarters(), name, save_all=True, append_images=later, duration=100)
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]
    return data


CMYK = four("CMYK", (255, 0, 0, 0), (0, 255, 255, 0), (0, 0, 0, 255), (0, 0, 0, 0))
ALPHA = four("RGBA", (255, 0, 0, 0), (0, 0, 200, 255), (0, 0, 200, 128), (255, 0, 0, 0))  # invisible red
GREYS = four("LA", (100, 0), (100, 255), (100, 0), (100, 255))
PALETTE = quarters().quantize(8)
HOLED = (WHITE, *QUARTERS[1:])
HOLE = PALETTE.getpixel((0, 0))


@pytest.mark.parametrize(
    ("data", "wanted", "tolerance"),
    [
        *(pytest.param(frames(name), QUARTERS, 8, id=f"first of {name}") for name in ("gif", "webp", "png", "mpo")),
        *(pytest.param(encode(PALETTE, name), QUARTERS, 2, id=f"palette in {name}") for name in ("gif", "png")),
        pytest.param(encode(PALETTE, "gif", transparency=HOLE), HOLED, 2, id="transparency in gif"),
        pytest.param(encode(PALETTE, "png", transparency=HOLE), HOLED, 2, id="transparency in png"),
        pytest.param(encode(quarters(), "png", transparency=RED), HOLED, 0, id="transparency in RGB"),
        pytest.param(encode(GREYS, "png"), (WHITE, (100,) * 3) * 2, 0, id="alpha in grey"),
        *(
            pytest.param(encode(CMYK, name), ((0, 255, 255), (255, 0, 0), BLACK, WHITE), 12, id=f"CMYK in {name}")
            for name in ("jpeg", "tiff")
        ),
    ],
)
def test_four_colours(data: bytes, wanted: tuple[tuple[int, ...], ...], tolerance: int) -> None:
    assert corner_error(decode_image(data, WHOLE).pixels, wanted) <= tolerance


def board(mode: str) -> Image.Image:
    """A chessboard of black and white pixels, or of the first two colours of a palette."""
    return Image.fromarray((np.indices((256, 256)).sum(0) % 2).astype(np.uint8) * (1 if mode == "P" else 255), mode)


def ycck() -> bytes:
    """A YCCK JPEG like Photoshop's: Y, Cb and Cr encode C, M and Y as if they were R, G and B, and K is inverted.

    Pillow writes inverted CMYK with an Adobe marker, whose last byte is then changed to say YCCK.
    """
    cyan_magenta_yellow = Image.new("RGB", (64, 64), (255 - 200, 255 - 60, 255 - 30))
    bands = [band.point(lambda v: 255 - v) for band in cyan_magenta_yellow.convert("YCbCr").split()]
    data = encode(Image.merge("CMYK", [*bands, Image.new("L", (64, 64), 0)]), "jpeg")
    at = data.index(b"Adobe")
    return data[: at + 11] + b"\x02" + data[at + 12 :]


def two_colours() -> bytes:
    image = board("P")
    image.putpalette([200, 0, 0, 0, 0, 100])
    return encode(image, "png")


@pytest.mark.parametrize(
    ("data", "wanted", "tolerance"),
    [
        pytest.param(ycck(), (200, 60, 30), 6, id="Adobe YCCK"),
        pytest.param(encode(board("L").convert("1"), "png"), (128, 128, 128), 2, id="1 bit, smoothed"),
        pytest.param(two_colours(), (100, 0, 50), 2, id="palette, smoothed"),
    ],
)
def test_one_colour(data: bytes, wanted: tuple[int, int, int], tolerance: int) -> None:
    assert np.abs(decode_image(data, WHOLE).pixels[4:-4, 4:-4].astype(int) - wanted).max() <= tolerance


@pytest.mark.parametrize("name", ["png", "webp", "tiff"])
def test_alpha_is_put_on_white_and_hidden_colours_do_not_bleed(name: str) -> None:
    options = {"lossless": True, "exact": True} if name == "webp" else {}
    pixels = decode_image(encode(ALPHA, name, **options), WHOLE).pixels
    assert corner_error(pixels, (WHITE, (0, 0, 200), (127, 127, 227), WHITE)) <= 1
    assert (pixels[..., 0].astype(int) <= pixels[..., 2].astype(int) + 1).all()  # no red fringe anywhere


@pytest.mark.parametrize("orientation", [1, 6])
def test_thumbnails_are_upright_and_small_without_metadata(orientation: int) -> None:
    stored = rotated(quarters(900, 600), orientation, "jpeg", comment=b"secret")
    with Image.open(io.BytesIO(thumbnail(stored, 150))) as small:
        assert (small.format, small.size) == ("JPEG", (150, 100))
        assert not small.getexif()
        assert "comment" not in small.info
        assert corner_error(np.asarray(small.resize((64, 64)))) <= 10


@pytest.mark.parametrize(("size", "wanted"), [((40, 30), (40, 30)), ((1, 5000), (1, 200)), ((400, 401), (200, 200))])
def test_thumbnails_never_grow_and_keep_a_pixel(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    with Image.open(io.BytesIO(thumbnail(encode(Image.new("RGB", size), "png"), 200))) as small:
        assert small.size == wanted


def test_thumbnails_reject_like_decoding() -> None:
    with pytest.raises(ImageError, match="0 bytes"):
        thumbnail(b"", 100)
    with pytest.raises(ValueError, match="max_side 0"):
        thumbnail(encode(quarters(), "png"), 0)
