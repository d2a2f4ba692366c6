"""Which pictures count as copies by their pixels; `benchmarks.duplicates` measures precision and recall."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from jobs.demo.drawing import Subject, draw
from jobs.duplicates.same_picture import SIDE, Pixels, compare
from jobs.values import MAX_DIFFERENCE
from tests.support.pictures.sample_images import encode

CHECKED = Subject(shape="star", colour="red", pattern="checked", background="lined")


def drawn(subject: Subject = CHECKED, size: tuple[int, int] = (400, 300)) -> Image.Image:
    return draw(subject, size, np.random.default_rng(3))


def saved(picture: Image.Image, quality: int) -> Image.Image:
    return Image.open(io.BytesIO(encode(picture, "jpeg", quality=quality)))


def small(picture: Image.Image) -> Pixels:
    return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32)


COPIES = [
    pytest.param(drawn(), False, id="itself"),
    pytest.param(saved(drawn(), 60), False, id="re-encoded"),
    pytest.param(saved(drawn().resize((140, 105)), 80), False, id="made smaller"),
    pytest.param(drawn().resize((801, 600)), False, id="made larger"),
    pytest.param(saved(drawn().crop((6, 4, 394, 296)), 75), True, id="cropped at each side"),
    pytest.param(saved(drawn().crop((12, 0, 400, 300)), 75), True, id="cropped at one side"),
]
OTHERS = [
    pytest.param(drawn(replace(CHECKED, colour="blue")), id="another colour"),
    pytest.param(drawn(replace(CHECKED, pattern="dotted")), id="another pattern"),
    pytest.param(drawn(replace(CHECKED, shape="ring")), id="another shape"),
    pytest.param(drawn().rotate(4), id="turned"),
    pytest.param(drawn().transpose(Image.Transpose.FLIP_LEFT_RIGHT), id="mirrored"),
    pytest.param(drawn().crop((60, 45, 340, 255)), id="cropped by a third"),
    pytest.param(Image.new("RGB", (10, 10), "white"), id="plain"),
]


@pytest.mark.parametrize(("copy", "is_crop"), COPIES)
def test_a_copy_is_the_same_picture_in_either_order(copy: Image.Image, is_crop: bool) -> None:
    for pair in ((drawn(), copy), (copy, drawn())):
        difference, cropped = compare(*map(small, pair))
        assert (difference <= MAX_DIFFERENCE, cropped) == (True, is_crop)


@pytest.mark.parametrize("other", OTHERS)
def test_another_picture_is_different(other: Image.Image) -> None:
    assert compare(small(drawn()), small(other))[0] > MAX_DIFFERENCE


def test_the_next_picture_of_a_turning_camera_is_different() -> None:
    first, next_one = drawn().crop((0, 0, 368, 300)), drawn().crop((32, 0, 400, 300))
    assert compare(small(first), small(next_one))[0] > MAX_DIFFERENCE


def test_a_small_object_in_only_one_makes_them_different() -> None:
    spotted = drawn()
    spotted.paste("black", (20, 20, 50, 50))
    assert compare(small(drawn()), small(spotted))[0] > MAX_DIFFERENCE


def test_plain_pictures_are_compared_by_colour() -> None:
    grey, near, other = (np.full((SIDE, SIDE, 3), level, np.float32) for level in (100, 101, 140))
    assert compare(grey, near)[0] == pytest.approx(1 / 255)
    assert compare(grey, other)[0] > MAX_DIFFERENCE
