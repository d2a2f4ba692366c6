"""Pictures of other types than uint8: their shades, in files, as PIL images and as arrays."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from api.client.query import image_bytes
from api.explore.query_like import example_of
from embedder.images import CropSpec
from embedder.images.decode import decode_image
from tests.support.pictures.deep import GREY, RGB, TYPES, full_range, grey_png, rgb_png, tiff
from tests.support.pictures.sample_images import encode

NO_SEARCHER: Any = None  # pixels are looked up nowhere
WHOLE = CropSpec(side=32, shortest_edge=None)


def pixels_of(data: bytes, *, draft: bool = True) -> npt.NDArray[np.int_]:
    return decode_image(data, WHOLE, draft=draft).pixels.astype(int)


def shown(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.int_]:
    """The pixels of the same picture as an ordinary PNG."""
    return pixels_of(encode(Image.fromarray(image), "png"))


def largest_error(data: bytes, expected: npt.NDArray[np.uint8]) -> int:
    return int(np.abs(pixels_of(data) - shown(expected)).max())


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("kind", TYPES)
def test_grey_of_every_type_has_its_shades(kind: str, byteorder: str) -> None:
    tolerance = 4 if kind == "i1" else 1
    assert largest_error(tiff(full_range(GREY, kind), byteorder=byteorder), GREY) <= tolerance
    negative = tiff(full_range(255 - GREY, kind), byteorder=byteorder, photometric="miniswhite")
    assert largest_error(negative, GREY) <= tolerance


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("kind", TYPES)
def test_rgb_of_every_type_has_its_colours(kind: str, planar: str) -> None:
    bands = full_range(RGB, kind)
    bands = np.moveaxis(bands, 2, 0).copy() if planar == "separate" else bands
    assert largest_error(tiff(bands, photometric="rgb", planarconfig=planar), RGB) <= (4 if kind == "i1" else 1)


NO_DATA = [(42113, "s", 0, "-9999", True)]
EDGE = np.arange(48) < 10
HOLES = np.where(EDGE, 0, GREY).astype(np.uint8)
DARK = GREY // 4 + 20
SIGNED = (GREY.astype(int) - 128).astype(np.int8)


@pytest.mark.parametrize(
    ("pixels", "options", "expected"),
    [
        pytest.param(GREY.astype(np.uint16) * 16, {}, GREY, id="12 of 16 bits"),
        pytest.param(GREY.astype(np.int16) * 16, {}, GREY, id="12 of 16 bits, signed"),
        pytest.param(GREY.astype(np.uint16) * 16, {"bitspersample": 12}, GREY, id="12 bits, packed"),
        pytest.param(GREY.astype(np.uint16) * 4, {"bitspersample": 10}, GREY, id="10 bits, packed"),
        pytest.param(GREY.astype(np.int32), {}, GREY, id="8 of 32 bits"),
        pytest.param(GREY.astype(np.uint32) * 257, {}, GREY, id="16 of 32 bits"),
        pytest.param(GREY.astype(np.uint64) * 257, {"photometric": "miniswhite"}, 255 - GREY, id="negative of 16 bits"),
        pytest.param(full_range(DARK, "u4"), {}, DARK, id="dark, 32 bits"),
        pytest.param(full_range(DARK, "u2"), {}, DARK, id="dark, 16 bits"),
        pytest.param(GREY.astype(np.float32), {}, GREY, id="floats to 255"),
        pytest.param(GREY.astype(np.float64) * 257, {}, GREY, id="doubles to 65535"),
        pytest.param(GREY.astype(np.float32) * 4000, {}, GREY, id="floats to a million"),
        pytest.param(GREY / 1000 + 20_000, {"photometric": "miniswhite"}, GREY * 0 + 177, id="far from black"),
        pytest.param(GREY.astype(np.int16) * 8 - 1024, {}, GREY, id="below zero"),
        pytest.param(SIGNED, {}, GREY, id="signed bytes below zero"),
        pytest.param(np.where(EDGE, np.nan, GREY / 255).astype("f4"), {}, HOLES, id="not a number"),
        pytest.param(np.where(EDGE, np.nan, GREY).astype("f4"), {}, HOLES, id="not a number, to 255"),
        pytest.param(np.where(EDGE, np.inf, GREY).astype("f8"), {}, np.where(EDGE, 255, GREY), id="infinite"),
        pytest.param(np.where(EDGE, -9999, GREY * 1.0).astype("f4"), {"extratags": NO_DATA}, HOLES, id="a map's edge"),
        pytest.param(np.where(EDGE, -9999, GREY * 128.0).astype("i2"), {"extratags": NO_DATA}, HOLES, id="heights"),
    ],
)
def test_the_range_of_grey(pixels: Any, options: dict[str, Any], expected: npt.NDArray[Any]) -> None:
    error = np.abs(pixels_of(tiff(pixels, **options)) - shown(expected.astype(np.uint8)))
    assert (error[:, 12:] if expected.shape == GREY.shape else error).max() <= 2
    assert error.max() <= 60  # bicubic rings along an edge


@given(
    kind=st.sampled_from(TYPES),
    bands=st.sampled_from([1, 3]),
    compression=st.sampled_from([None, "deflate", "lzw", "packbits", "zstd"]),
    byteorder=st.sampled_from("<>"),
    tile=st.sampled_from([None, (16, 16)]),
    predictor=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_a_tiff_looks_like_a_png_with_the_same_shades(
    kind: str, bands: int, compression: str | None, byteorder: str, tile: Any, predictor: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (20, 24, bands)).astype(np.uint8)
    pixels[0, 0] = 255
    pixels = pixels if bands == 3 else pixels[..., 0]
    data = tiff(
        full_range(pixels, kind),
        photometric="rgb" if bands == 3 else "minisblack",
        compression=compression,
        predictor=(3 if kind[0] == "f" else 2) if predictor and compression not in (None, "packbits") else None,
        byteorder=byteorder,
        tile=tile,
    )
    assert largest_error(data, pixels) <= (4 if kind == "i1" else 2)


STEPS = np.arange(16).reshape(4, 4).repeat(8, 0).repeat(8, 1)


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_the_transparent_shade_of_a_png_becomes_white(depth: int) -> None:
    top = 2**depth - 1
    values = STEPS * top // 15
    for key in (0, top, int(values[8, 8])):
        expected = np.where(values == key, 255, values * 255 // top).astype(np.uint8)
        assert largest_error(grey_png(depth, values, key), expected) <= 1


@pytest.mark.parametrize("depth", [8, 16])
def test_the_transparent_colour_of_a_png_becomes_white(depth: int) -> None:
    values = np.stack([STEPS * 17, 255 - STEPS * 17, STEPS * 0 + 9], axis=2) * (1 if depth == 8 else 257)
    key = tuple(int(value) for value in values[8, 8])
    expected = np.where((values == key).all(axis=2, keepdims=True), 255, values // (1 if depth == 8 else 257))
    assert largest_error(rgb_png(depth, values, key), expected.astype(np.uint8)) <= 1


FILES: dict[str, bytes] = {
    **{f"{kind} {order}": tiff(full_range(GREY, kind), byteorder=order) for kind in TYPES[:4] for order in "<>"},
    **{f"{kind} negative": tiff(full_range(GREY, kind), photometric="miniswhite") for kind in ("u1", "u2", "f4")},
    **{f"f4 {order} deflate": tiff(full_range(GREY, "f4"), byteorder=order, compression="deflate") for order in "<>"},
    "i2 > lzw": tiff(full_range(GREY, "i2"), byteorder=">", compression="lzw"),
    "u4": tiff(full_range(GREY, "u4")),
    "f4 to 255": tiff(GREY.astype("f4")),
    "i4 to 255": tiff(GREY.astype("i4")),
    "12 of 16 bits": tiff(GREY.astype("u2") * 16),
    **{f"png {n}": grey_png(n, STEPS * (2**n - 1) // 15, (2**n - 1) // 15 * 15) for n in (2, 4, 16)},
    "png 16, dark": grey_png(16, STEPS * 200),
    "png rgb": rgb_png(16, np.stack([STEPS * 4369] * 3, axis=2), (4369, 4369, 4369)),
    **{mode: encode(Image.fromarray(RGB).convert(mode), "tiff") for mode in ("CMYK", "YCbCr", "RGBX", "1")},
    "grey with premultiplied alpha": tiff(np.dstack([GREY // 2, GREY * 0 + 128]), extrasamples=["assocalpha"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_pil_image_as_a_query_looks_like_its_file(name: str) -> None:
    with Image.open(io.BytesIO(FILES[name])) as image:
        sent = image_bytes(image)
        again = image_bytes(image)
    assert np.abs(pixels_of(sent) - pixels_of(FILES[name])).max() <= 1
    assert again == sent


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (GREY, GREY), (full_range(GREY, "u2"), GREY), (full_range(GREY, "i4"), GREY), (GREY.astype(np.uint16), GREY),
        (GREY.astype(np.int64), GREY), (GREY > 100, (GREY > 100).astype(np.uint8) * 255),
        (full_range(RGB, "u2"), RGB), (RGB, RGB), (np.dstack([RGB, np.full_like(GREY, 255)]), RGB),
        (full_range(np.dstack([RGB, np.zeros_like(GREY)]), "u2"), np.full_like(RGB, 255)),
    ],
)  # fmt: skip
def test_an_array_as_a_query_looks_like_the_file(pixels: npt.NDArray[Any], expected: npt.NDArray[np.uint8]) -> None:
    image = example_of(pixels, NO_SEARCHER)["image"]
    assert image is not None
    assert np.abs(pixels_of(image_bytes(image)) - shown(expected)).max() <= 1
