"""`embedder.images.decode`: crops agree with the reference, however the picture is stored."""

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from embedder.images import Region
from embedder.images.decode import CropSpec, decode_image, thumbnail
from tests.support.pictures.photographs import stock_crop
from tests.support.pictures.sample_images import BLUE, CENTRE, WHOLE, corner_error, encode, quarters, rotated, smooth
from tests.support.processes import python


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "tiff", "avif"])
def test_orientation_turns_the_picture_upright(name: str, orientation: int) -> None:
    decoded = decode_image(rotated(quarters(), orientation, name), WHOLE)
    assert (decoded.width, decoded.height) == (96, 64)
    assert corner_error(decoded.pixels) <= 8


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("crop", [CENTRE, WHOLE])
def test_a_region_is_taken_of_the_upright_picture(orientation: int, crop: CropSpec) -> None:
    image = Image.fromarray(smooth(403, 266))
    alone = decode_image(encode(image.crop((40, 67, 201, 200)), "png"), crop, draft=False).pixels.astype(int)
    part = replace(crop, region=(40 / 403, 0.25, 0.4, 0.5))
    for name, tolerance in (("png", 3), ("jpeg", 12)):  # resizing also uses pixels next to the region
        decoded = decode_image(rotated(image, orientation, name), part)
        assert (decoded.width, decoded.height) == (403, 266)
        assert np.abs(decoded.pixels.astype(int) - alone).max() <= tolerance


def test_small_tiles_are_as_sharp_as_the_same_parts_alone() -> None:
    data = encode(Image.fromarray(smooth(1024, 1024)), "jpeg")
    boxes = ((0.0, 0.0, 0.275, 0.275), (0.725, 0.725, 0.275, 0.275))
    _, *tiles = decode_image(data, replace(CENTRE, tiles=boxes)).pixels  # without tiles it would be decoded at 1/8
    for tile, region in zip(tiles, boxes, strict=True):
        np.testing.assert_array_equal(tile, decode_image(data, replace(CENTRE, region=region)).pixels)


@pytest.mark.parametrize("region", [(0, 0, 1e-9, 1e-9), (0.999, 0.999, 0.001, 0.001), (0, 0.5, 1, 1e-9)])
def test_a_region_has_at_least_one_pixel(region: Region) -> None:
    data = encode(Image.new("RGB", (300, 200), BLUE), "png")
    pixels = decode_image(data, replace(CENTRE, region=region)).pixels
    assert np.abs(pixels.astype(int) - BLUE).max() == 0
    with Image.open(BytesIO(thumbnail(data, 64, region=region))) as small:
        assert 1 in small.size


def noisy(size: tuple[int, int]) -> Image.Image:
    noise = np.random.default_rng(1).integers(-40, 40, (size[1], size[0], 3))
    return Image.fromarray(np.clip(smooth(*size).astype(int) + noise, 0, 255).astype(np.uint8))


SIZES = [(500, 375), (375, 500), (640, 481), (97, 1003), (1000, 64), (33, 20), (64, 64), (65, 64), (801, 799)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("side", "edge"), [(64, 64), (63, 64), (56, 73)])
def test_crops_agree_with_the_stock_processor(size: tuple[int, int], side: int, edge: int) -> None:
    image = noisy(size)
    crop = CropSpec(side=side, shortest_edge=edge)
    pixels = decode_image(encode(image, "png"), crop).pixels
    assert np.abs(pixels.astype(int) - stock_crop(image, crop)).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_without_draft_the_crop_is_the_stock_processors(orientation: int) -> None:
    """If the crop were turned afterwards, or only a part resized, some values would differ by up to four levels."""
    image = noisy((301, 423))
    crop = CropSpec(side=224, shortest_edge=256)
    pixels = decode_image(rotated(image, orientation, "png"), crop, draft=False).pixels
    assert np.array_equal(pixels, stock_crop(image, crop))


def test_pillow_resizes_if_the_resizer_is_not_installed() -> None:
    code = """
import sys
sys.modules["cykooz_resizer"] = None
from PIL import Image
from embedder.images.resize import resized
image, box = Image.radial_gradient("L").convert("RGB"), (3.5, 0, 200.25, 256)
assert resized(image, (64, 48), 3, box).tobytes() == image.resize((64, 48), 3, box=box).tobytes()
"""
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_draft_decodes_a_large_jpeg_at_reduced_scale() -> None:
    data = encode(Image.fromarray(smooth(1200, 800)), "jpeg")
    drafted, exact = (decode_image(data, CENTRE, draft=draft).pixels.astype(int) for draft in (True, False))
    assert 0 < np.abs(drafted - exact).mean() < 0.5


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (1, 1), (3, 20000)])
def test_extreme_shapes(size: tuple[int, int]) -> None:
    for name in ("png", "jpeg"):
        pixels = decode_image(encode(Image.new("RGB", size, BLUE), name), CENTRE).pixels
        assert np.abs(pixels.astype(int) - BLUE).max() <= 4


@pytest.mark.parametrize(("side", "edge"), [(0, None), (64, 63), (-1, 5)])
def test_impossible_crops_are_refused(side: int, edge: int | None) -> None:
    with pytest.raises(ValueError, match=f"side {side}"):
        CropSpec(side=side, shortest_edge=edge)
