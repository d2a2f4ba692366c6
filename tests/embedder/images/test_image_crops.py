"""`embedder.images.decode`: the crop is the reference's, whichever way the picture is stored."""

import numpy as np
import pytest
from PIL import Image

from embedder.images.decode import CropSpec, decode_image
from tests.support.pictures.sample_images import (
    BLUE,
    CENTRE,
    RED,
    WHOLE,
    encode,
    off_corners,
    quarters,
    rotated,
    smooth,
)
from tests.support.pictures.sixty_pictures import stock_crop


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "tiff", "avif"])
def test_orientation_turns_the_picture_upright(name: str, orientation: int) -> None:
    decoded = decode_image(rotated(quarters(), orientation, name), WHOLE)
    assert (decoded.width, decoded.height) == (96, 64)
    assert off_corners(decoded.pixels) <= 8


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(211, 120), (120, 211), (803, 534)])
@pytest.mark.parametrize("draft", [False, True])
def test_a_rotated_picture_gives_the_upright_crop(orientation: int, size: tuple[int, int], draft: bool) -> None:
    image = Image.fromarray(smooth(*size))
    upright = decode_image(encode(image, "bmp"), CENTRE, draft=False).pixels.astype(int)
    turned = decode_image(rotated(image, orientation, "jpeg"), CENTRE, draft=draft).pixels.astype(int)
    assert np.abs(turned - upright).mean() < 1
    # An offset by a single pixel would show: the waves change by several levels from one to the next.
    assert np.abs(turned - np.roll(upright, 1, axis=1)).mean() > 2


def test_broken_exif_does_not_lose_the_picture() -> None:
    data = encode(quarters(), "jpeg", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f" + b"\x99" * 40)
    assert decode_image(data, WHOLE).width == 96


SIZES = [(500, 375), (375, 500), (640, 481), (97, 1003), (1000, 64), (33, 20), (64, 64), (65, 64), (801, 799)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("side", "edge"), [(64, 64), (63, 64), (56, 73)])
def test_crops_agree_with_the_stock_processor(size: tuple[int, int], side: int, edge: int) -> None:
    rng = np.random.default_rng(1)
    noisy = np.clip(smooth(*size).astype(int) + rng.integers(-40, 40, (size[1], size[0], 3)), 0, 255)
    image = Image.fromarray(noisy.astype(np.uint8))
    crop = CropSpec(side=side, shortest_edge=edge)
    pixels = decode_image(encode(image, "png"), crop, draft=False).pixels
    assert np.abs(pixels.astype(int) - stock_crop(image, crop)).max() <= 1


def test_draft_decodes_a_large_jpeg_at_reduced_scale() -> None:
    data = encode(Image.fromarray(smooth(1200, 800)), "jpeg")
    drafted, exact = (decode_image(data, CENTRE, draft=draft).pixels.astype(int) for draft in (True, False))
    assert 0 < np.abs(drafted - exact).mean() < 0.5


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (1, 1), (3, 20000)])
def test_extreme_shapes(size: tuple[int, int]) -> None:
    for name in ("png", "jpeg"):
        pixels = decode_image(encode(Image.new("RGB", size, BLUE), name), CENTRE).pixels
        assert np.abs(pixels.astype(int) - BLUE).max() <= 4


def test_the_crop_is_the_middle_and_squashing_takes_all() -> None:
    image = Image.new("RGB", (300, 100), RED)
    image.paste(BLUE, (100, 0, 200, 100))
    data = encode(image, "png")
    centre = decode_image(data, CENTRE).pixels
    assert {tuple(row) for row in centre[32, 2:-2].tolist()} == {BLUE}
    whole = decode_image(data, WHOLE).pixels
    assert [tuple(whole[32, x].tolist()) for x in (10, 32, 54)] == [RED, BLUE, RED]


@pytest.mark.parametrize(("side", "edge"), [(0, None), (64, 63), (-1, 5)])
def test_impossible_crops_are_refused(side: int, edge: int | None) -> None:
    with pytest.raises(ValueError, match=f"side {side}"):
        CropSpec(side=side, shortest_edge=edge)
