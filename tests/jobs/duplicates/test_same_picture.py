"""Which pictures count as copies by their pixels; `benchmarks.duplicates` measures precision and recall."""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from benchmarks.documents import DOCUMENTS
from embedder.images.signature import Signature
from index.analysis.duplicate_kinds import KINDS, Kind
from jobs.demo.drawing import Subject, draw
from jobs.duplicates.comparer import Comparer, Picture
from jobs.duplicates.picture_loader import PictureLoader
from jobs.duplicates.same_picture import SIDE
from jobs.values import MAX_DIFFERENCE
from tests.support.pictures.sample_images import encode

CHECKED = Subject(shape="star", colour="red", pattern="checked", background="lined")


def drawn(subject: Subject = CHECKED, size: tuple[int, int] = (400, 300)) -> Image.Image:
    return draw(subject, size, np.random.default_rng(3))


def spotted(picture: Image.Image) -> Image.Image:
    picture.paste("black", (20, 20, 50, 50))
    return picture


def saved(picture: Image.Image, quality: int) -> Image.Image:
    return Image.open(io.BytesIO(encode(picture, "jpeg", quality=quality)))


class Loaded:
    """Instead of a `PictureLoader`: rows have their pictures."""

    def pictures(self, rows: Sequence[Mapping[str, Any]]) -> list[Image.Image | str]:
        return [row["picture"] for row in rows]


def kind_of(other: Image.Image, kept: Image.Image) -> Kind | None:
    """How `other` is a copy of `kept`; None if it is none."""
    pictures = []
    for number, whole in enumerate((kept, other)):
        pixels = np.asarray(whole.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        signature = Signature(digest=str(number), lossless=True, exif=False, pixels=pixels)
        pictures.append(Picture({"picture": whole}, [], signature))
    loader = cast("PictureLoader", Loaded())
    comparer = Comparer(kept=pictures[0], kinds=KINDS, limit=MAX_DIFFERENCE, loader=loader, unread=Counter())
    return next((kind for _, kind, _ in comparer.copies(pictures[1:])), None)


COPIES = [
    pytest.param(drawn(), "re_encoded", id="itself"),
    pytest.param(saved(drawn(), 60), "re_encoded", id="re-encoded"),
    pytest.param(saved(drawn().resize((140, 105)), 80), "re_encoded", id="made smaller"),
    pytest.param(drawn().resize((801, 600)), "re_encoded", id="made larger"),
    pytest.param(drawn().resize((160, 160)), "re_encoded", id="squashed into a square"),
    pytest.param(saved(drawn().crop((6, 4, 394, 296)), 75), "cropped", id="cropped at each side"),
    pytest.param(saved(drawn().crop((12, 0, 400, 300)), 75), "cropped", id="cropped at one side"),
]
OTHERS = [
    pytest.param(drawn(replace(CHECKED, colour="blue")), drawn(), id="another colour"),
    pytest.param(drawn(replace(CHECKED, pattern="dotted")), drawn(), id="another pattern"),
    pytest.param(drawn(replace(CHECKED, shape="ring")), drawn(), id="another shape"),
    pytest.param(drawn().rotate(4), drawn(), id="turned"),
    pytest.param(drawn().transpose(Image.Transpose.FLIP_LEFT_RIGHT), drawn(), id="mirrored"),
    pytest.param(drawn().crop((60, 45, 340, 255)), drawn(), id="cropped by a third"),
    pytest.param(Image.new("RGB", (10, 10), "white"), drawn(), id="plain"),
    pytest.param(Image.new("RGB", (400, 600), "red"), Image.new("RGB", (600, 400), "red"), id="plain, upright"),
    pytest.param(Image.new("RGB", (2000, 20), "red"), Image.new("RGB", (600, 400), "red"), id="plain, a banner"),
    pytest.param(drawn().crop((32, 0, 400, 300)), drawn().crop((0, 0, 368, 300)), id="by a turning camera"),
    pytest.param(spotted(drawn()), drawn(), id="with a small object"),
]


@pytest.mark.parametrize(("other", "picture"), OTHERS)
def test_another_picture_is_different(other: Image.Image, picture: Image.Image) -> None:
    assert kind_of(other, picture) is None


@pytest.mark.parametrize(("copy", "kind"), COPIES)
def test_a_copy_is_the_same_picture_in_either_order(copy: Image.Image, kind: Kind) -> None:
    assert (kind_of(copy, drawn()), kind_of(drawn(), copy)) == (kind, kind)


def test_plain_pictures_are_compared_by_colour() -> None:
    grey, near, other = (Image.new("RGB", (80, 90), (level, level, level)) for level in (100, 101, 140))
    assert (kind_of(near, grey), kind_of(other, grey)) == ("re_encoded", None)


def scaled(picture: Image.Image, by: float, resample: Image.Resampling = Image.Resampling.LANCZOS) -> Image.Image:
    return picture.resize((round(picture.width * by), round(picture.height * by)), resample)


def again(picture: Image.Image, form: str, **options: Any) -> Image.Image:
    return Image.open(io.BytesIO(encode(picture, form, **options))).convert("RGB")


SAVED_AGAIN: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG at quality 95": lambda picture: saved(picture, 95),
    "JPEG at quality 75": lambda picture: saved(picture, 75),
    "JPEG at quality 50": lambda picture: saved(picture, 50),
    "JPEG twice": lambda picture: saved(saved(picture, 80), 70),
    "WebP": lambda picture: again(picture, "webp", quality=60),
    "AVIF": lambda picture: again(picture, "avif", quality=60),
    "half, bilinear": lambda picture: scaled(picture, 0.5, Image.Resampling.BILINEAR),
    "half, Lanczos, JPEG": lambda picture: saved(scaled(picture, 0.5), 70),
    "a third, JPEG": lambda picture: saved(scaled(picture, 0.35), 70),
    "larger, JPEG": lambda picture: saved(scaled(picture, 1.3), 75),
    "double": lambda picture: scaled(picture, 2, Image.Resampling.BICUBIC),
    "256 colours": lambda picture: picture.quantize(256).convert("RGB"),
    "brighter": lambda picture: ImageEnhance.Brightness(picture).enhance(1.03),
    "darker": lambda picture: ImageEnhance.Brightness(picture).enhance(0.97),
    "less contrast": lambda picture: ImageEnhance.Contrast(picture).enhance(0.95),
    "sharper": lambda picture: ImageEnhance.Sharpness(picture).enhance(1.5),
}
QUICK = {"receipt_with_one_digit", "chess"}
SERIES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DOCUMENTS]


def document(name: str, content: int) -> Image.Image:
    return DOCUMENTS[name](np.random.default_rng(1), np.random.default_rng(content))


@pytest.mark.parametrize("name", SERIES)
def test_a_document_saved_again_is_a_copy(name: str) -> None:
    original = document(name, 0)
    kinds = {how: kind_of(save(original), original) for how, save in SAVED_AGAIN.items()}
    assert {how: kind for how, kind in kinds.items() if kind != "re_encoded"} == {}


@pytest.mark.parametrize("name", SERIES)
def test_another_document_of_a_series_is_different(name: str) -> None:
    original = document(name, 0)
    drawn_ones = (document(name, content) for content in count(1))
    others = islice((other for other in drawn_ones if other.tobytes() != original.tobytes()), 4)
    for other in others:
        for saved_other in (other, saved(other, 60), saved(scaled(other, 0.5), 70)):
            assert kind_of(saved_other, original) is None
