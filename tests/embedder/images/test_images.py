"""`embedder.images.decode`: the colours of every format and mode, and thumbnails."""

import io
import struct

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from embedder.errors import ImageError
from embedder.images.decode import decode_image, thumbnail
from tests.support.pictures.sample_images import (
    BLUE,
    GREEN,
    RED,
    SAVE,
    STORED,
    WHOLE,
    YELLOW,
    corners,
    encode,
    png,
    quarters,
)


def grey_of(data: bytes) -> npt.NDArray[np.uint8]:
    pixels = decode_image(data, WHOLE, draft=False).pixels
    assert (pixels[..., 0] == pixels[..., 1]).all()
    assert (pixels[..., 0] == pixels[..., 2]).all()
    return pixels[..., 0]


@pytest.mark.parametrize("name", SAVE)
def test_every_format_gives_its_colours_size_and_name(name: str) -> None:
    decoded = decode_image(encode(quarters(), name), WHOLE)
    assert decoded.pixels.shape == (64, 64, 3)
    assert decoded.pixels.dtype == np.uint8
    assert decoded.pixels.flags.writeable
    assert (decoded.width, decoded.height, decoded.format) == (96, 64, name)
    for got, wanted in zip(corners(decoded.pixels), (RED, GREEN, BLUE, YELLOW), strict=True):
        assert np.abs(np.subtract(got, wanted)).max() <= 8


def test_mpo_gives_its_first_picture() -> None:
    data = encode(quarters(), "MPO", save_all=True, append_images=[Image.new("RGB", (96, 64), "white")])
    decoded = decode_image(data, WHOLE)
    assert decoded.format == "mpo"
    assert np.abs(np.subtract(corners(decoded.pixels)[0], RED)).max() <= 8


@pytest.mark.parametrize("name", ["gif", "webp", "png"])
def test_animations_give_their_first_frame(name: str) -> None:
    frames = [quarters(), Image.new("RGB", (96, 64), "white"), Image.new("RGB", (96, 64), "black")]
    data = encode(frames[0], name, save_all=True, append_images=frames[1:], duration=100)
    with Image.open(io.BytesIO(data)) as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]
    for got, wanted in zip(corners(decode_image(data, WHOLE).pixels), (RED, GREEN, BLUE, YELLOW), strict=True):
        assert np.abs(np.subtract(got, wanted)).max() <= 8


def test_16_bit_grey_png_is_scaled_not_clipped() -> None:
    values = np.repeat(np.array([0, 257, 25700, 51400, 65535], np.uint16), 20)[None].repeat(100, 0)
    grey = grey_of(encode(Image.fromarray(values), "png"))
    assert [int(grey[32, x]) for x in (5, 19, 32, 45, 60)] == [0, 1, 100, 200, 255]


@pytest.mark.parametrize("order", ["<", ">"])
def test_16_bit_grey_tiff_in_both_byte_orders(order: str) -> None:
    pixels = np.full((64, 64), 30840, dtype=f"{order}u2").tobytes()  # 30840 = 120 × 257
    entries = [(256, 4, 64), (257, 4, 64), (258, 3, 16), (259, 3, 1), (262, 3, 1), (273, 4, 122)]
    entries += [(277, 3, 1), (278, 4, 64), (279, 4, len(pixels))]
    short = {3: "HxxI"[:3], 4: "I"}
    body = b"".join(
        struct.pack(f"{order}HHI", tag, kind, 1) + struct.pack(order + short[kind], value).ljust(4, b"\0")
        for tag, kind, value in entries
    )
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    data = head + struct.pack(order + "H", len(entries)) + body + struct.pack(order + "I", 0)
    assert len(data) == 122
    assert np.unique(grey_of(data + pixels)).tolist() == [120]


def test_16_bit_rgb_png_keeps_its_colours() -> None:
    row = b"\0" + struct.pack(">HHH", 200 * 257, 100 * 257, 50 * 257) * 8
    pixels = decode_image(png(8, 8, 16, 2, row * 8), WHOLE).pixels
    assert np.unique(pixels.reshape(-1, 3), axis=0).tolist() == [[200, 100, 50]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.0, 0.5, 1.0), (0, 128, 255)),
        ((0.0, 100.0, 255.0), (0, 100, 255)),
        ((0.0, 25700.0, 65535.0), (0, 100, 255)),
        ((-2.0, 0.0, 2.0), (0, 128, 255)),
        ((0.0, 5e5, 1e6), (0, 128, 255)),
        ((0.0, float("nan"), float("inf")), (0, 0, 255)),
    ],
)
def test_float_tiff_is_stretched_over_its_range(values: tuple[float, ...], expected: tuple[int, ...]) -> None:
    array = np.repeat(np.array(values, np.float32), 60)[None].repeat(90, 0)
    grey = grey_of(encode(Image.fromarray(array), "tiff"))
    if np.isfinite(values).all():
        assert [int(grey[32, x]) for x in (8, 32, 56)] == list(expected)
    else:  # neighbours of what is no number are no numbers either: it only has to end well
        assert grey[32, 8] == 0


def test_32_bit_integer_tiff() -> None:
    array = np.repeat(np.array([0, 25700, 65535], np.int32), 60)[None].repeat(90, 0)
    grey = grey_of(encode(Image.fromarray(array), "tiff"))
    assert [int(grey[32, x]) for x in (8, 32, 56)] == [0, 100, 255]


def test_one_bit_pictures_are_smoothed_not_picked() -> None:
    board = np.indices((256, 256)).sum(0) % 2 == 0
    grey = grey_of(encode(Image.fromarray(board), "png"))
    assert np.abs(grey[4:-4, 4:-4].astype(int) - 128).max() <= 2  # nearest-neighbour would leave 0 or 255


def test_alpha_lies_over_white_and_hidden_colours_do_not_bleed() -> None:
    image = Image.new("RGBA", (96, 64), (255, 0, 0, 0))  # invisible red
    image.paste((0, 0, 200, 255), (48, 0, 96, 32))
    image.paste((0, 0, 200, 128), (0, 32, 48, 64))
    for name in ("png", "webp", "tiff"):
        options = {"lossless": True, "exact": True} if name == "webp" else {}
        pixels = decode_image(encode(image, name, **options), WHOLE).pixels
        top_left, top_right, bottom_left, _ = corners(pixels)
        assert top_left == (255, 255, 255)
        assert top_right == (0, 0, 200)
        assert np.abs(np.subtract(bottom_left, (127, 127, 227))).max() <= 1
        assert (pixels[..., 0].astype(int) <= pixels[..., 2].astype(int) + 1).all()  # no red fringe anywhere


def test_grey_with_alpha() -> None:
    image = Image.new("LA", (64, 64), (100, 255))
    image.paste((100, 0), (0, 0, 32, 64))
    grey = grey_of(encode(image, "png"))
    assert (int(grey[32, 10]), int(grey[32, 54])) == (255, 100)


@pytest.mark.parametrize("name", ["png", "gif"])
def test_palettes_with_and_without_transparency(name: str) -> None:
    image = quarters().quantize(8)
    solid = decode_image(encode(image, name), WHOLE).pixels
    assert np.abs(np.subtract(corners(solid)[3], YELLOW)).max() <= 2
    red_index = image.getpixel((0, 0))
    holed = decode_image(encode(image, name, transparency=red_index), WHOLE).pixels
    assert corners(holed)[0] == (255, 255, 255)
    assert np.abs(np.subtract(corners(holed)[1], GREEN)).max() <= 2


def test_a_palette_is_smoothed_as_rgb() -> None:
    board = Image.fromarray((np.indices((256, 256)).sum(0) % 2).astype(np.uint8), "P")
    board.putpalette([200, 0, 0, 0, 0, 100])
    pixels = decode_image(encode(board, "png"), WHOLE).pixels
    assert np.abs(pixels[4:-4, 4:-4].astype(int) - (100, 0, 50)).max() <= 2


def test_transparent_colour_of_an_rgb_png() -> None:
    data = encode(quarters(), "png", transparency=RED)
    assert corners(decode_image(data, WHOLE).pixels)[:2] == [(255, 255, 255), GREEN]


@pytest.mark.parametrize("name", ["jpeg", "tiff"])
def test_cmyk(name: str) -> None:
    image = Image.new("CMYK", (96, 64), (255, 0, 0, 0))  # cyan
    image.paste((0, 255, 255, 0), (48, 0, 96, 32))  # red
    image.paste((0, 0, 0, 255), (0, 32, 48, 64))  # black
    image.paste((0, 0, 0, 0), (48, 32, 96, 64))  # white
    wanted = ((0, 255, 255), (255, 0, 0), (0, 0, 0), (255, 255, 255))
    for got, colour in zip(corners(decode_image(encode(image, name), WHOLE).pixels), wanted, strict=True):
        assert np.abs(np.subtract(got, colour)).max() <= 12


def test_adobe_ycck_is_inverted() -> None:
    # As Photoshop writes it: Y, Cb, Cr carry C, M, Y as if they were R, G, B, and K is inverted. Pillow
    # writes CMYK (inverting all) under an Adobe marker, whose last byte then says YCCK.
    cyan_magenta_yellow = Image.new("RGB", (64, 64), (255 - 200, 255 - 60, 255 - 30))
    bands = [band.point(lambda v: 255 - v) for band in cyan_magenta_yellow.convert("YCbCr").split()]
    data = encode(Image.merge("CMYK", [*bands, Image.new("L", (64, 64), 0)]), "jpeg")
    at = data.index(b"Adobe")
    data = data[: at + 11] + b"\x02" + data[at + 12 :]
    pixels = decode_image(data, WHOLE).pixels
    assert np.abs(pixels.astype(int) - (200, 60, 30)).max() <= 6


@pytest.mark.parametrize("orientation", [1, 6])
def test_thumbnails_are_upright_small_and_bare(orientation: int) -> None:
    method = STORED[orientation]
    image = quarters(900, 600)
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "camera"
    stored = image.transpose(method) if method is not None else image
    data = thumbnail(encode(stored, "jpeg", exif=exif, comment=b"secret"), 150)
    with Image.open(io.BytesIO(data)) as small:
        assert (small.format, small.size) == ("JPEG", (150, 100))
        assert not small.getexif()
        assert "comment" not in small.info
        got = [small.getpixel(at) for at in ((30, 20), (120, 20), (30, 80), (120, 80))]
    for pixel, wanted in zip(got, (RED, GREEN, BLUE, YELLOW), strict=True):
        assert np.abs(np.subtract(pixel, wanted)).max() <= 10  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "wanted"), [((40, 30), (40, 30)), ((1, 5000), (1, 200)), ((400, 401), (200, 200))])
def test_thumbnails_never_grow_and_keep_a_pixel(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    with Image.open(io.BytesIO(thumbnail(encode(Image.new("RGB", size), "png"), 200))) as small:
        assert small.size == wanted


def test_thumbnails_reject_like_decoding() -> None:
    with pytest.raises(ImageError, match="0 bytes"):
        thumbnail(b"", 100)
    with pytest.raises(ValueError, match="max_side 0"):
        thumbnail(encode(quarters(), "png"), 0)
