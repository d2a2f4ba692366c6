"""The demo's gallery.

Files as people have them: JPEG (baseline and progressive), PNG (RGB, palette, alpha) and WebP, 64 to 3,000 pixels on
the longer side, some rotated by EXIF, one in a hundred broken. The folder is the shape, hence a collection's `label`.
Each file depends on the seed and its number alone, so a gallery can be drawn by several processes, and completed.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from jobs.demo.broken import BROKEN
from jobs.demo.drawing import SHAPES, Subject, draw, random_subject

SEED = 7

_FORMATS = {"jpg": 0.6, "png": 0.22, "webp": 0.18}
# Bands of the longer side in pixels, with their shares.
_SIDES = {(64, 200): 0.05, (200, 800): 0.89, (800, 1600): 0.05, (1600, 3000): 0.01}
_ASPECTS = (1.0, 4 / 3, 3 / 2, 16 / 9, 3 / 4, 2 / 3, 9 / 16)
_MIN_SIDE = 64
_ROTATED = 0.05
_ORIENTATION_TAG = 0x0112
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""By EXIF's orientation, what a camera that writes it has done to the upright picture."""
# With fewer files, starting processes takes longer than drawing.
_MIN_POOL_FILES = 200


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A valid file, not drawn yet: `size` is (width, height) in pixels as displayed, `orientation` EXIF's, 1 to 8."""

    number: int
    seed: int
    subject: Subject
    size: tuple[int, int]
    extension: str
    orientation: int

    @property
    def image_id(self) -> str:
        """The path below the gallery's folder, as in "star/0001-striped-red-star.jpg"."""
        subject = self.subject
        name = f"{self.number:04d}-{subject.pattern}-{subject.colour}-{subject.shape}.{self.extension}"
        return f"{subject.shape}/{name}"

    def data(self) -> bytes:
        picture = draw(self.subject, self.size, np.random.default_rng([self.seed, self.number, 1]))
        if self.orientation != 1:
            picture = picture.transpose(STORED_AS[self.orientation])
        exif = Image.Exif()
        exif[_ORIENTATION_TAG] = self.orientation
        tags = {"exif": exif} if self.orientation != 1 else {}
        rng = np.random.default_rng([self.seed, self.number, 2])
        data = BytesIO()
        match self.extension:
            case "jpg":
                progressive = bool(rng.random() < 0.25)
                picture.save(data, "JPEG", quality=int(rng.integers(60, 96)), progressive=progressive, **tags)
            case "png":
                _png_mode(picture, rng).save(data, "PNG", compress_level=3, **tags)
            case _:
                picture.save(data, "WEBP", quality=int(rng.integers(60, 96)), method=2, **tags)
        return data.getvalue()


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """What a gallery holds. `broken` maps the id of each broken file to the reason of its rejection."""

    folder: Path
    exhibits: tuple[Exhibit, ...]
    broken: Mapping[str, str]


def plan_exhibit(number: int, *, seed: int = SEED) -> Exhibit:
    """Decide what the file of that number shows and how it is stored, without drawing it."""
    rng = np.random.default_rng([seed, number, 0])
    subject = random_subject(rng)
    bands = tuple(_SIDES)
    low, high = bands[rng.choice(len(bands), p=list(_SIDES.values()))]
    long_side = int(rng.integers(low, high + 1))
    aspect = _ASPECTS[rng.integers(len(_ASPECTS))]
    short_side = max(_MIN_SIDE, round(long_side * min(aspect, 1 / aspect)))
    size = (long_side, short_side) if aspect >= 1 else (short_side, long_side)
    extension = str(rng.choice(list(_FORMATS), p=list(_FORMATS.values())))
    if long_side > 1600:
        extension = "jpg"  # as cameras do, and the others take long to encode at this size
    orientation = int(rng.integers(2, 9)) if rng.random() < _ROTATED else 1
    return Exhibit(number=number, seed=seed, subject=subject, size=size, extension=extension, orientation=orientation)


def make_gallery(folder: Path, *, count: int = 2000, broken: int | None = None) -> Gallery:
    """Draw `count` files below `folder`, `broken` of them (by default 1 in 100, 20 at most) each broken in its own way.

    Existing files are kept, so a second call is quick, and it completes an interrupted one.
    """
    broken = min(count // 100, len(BROKEN)) if broken is None else broken
    breakages = {int((i + 0.5) * count / broken): BROKEN[i] for i in range(broken)}  # evenly spread
    exhibits = tuple(plan_exhibit(n) for n in range(count) if n not in breakages)
    reasons: dict[str, str] = {}
    for number, breakage in breakages.items():
        image_id = f"{SHAPES[number % len(SHAPES)]}/{number:04d}-{breakage.name}.{breakage.extension}"
        reasons[image_id] = breakage.reason
        if not (folder / image_id).exists():
            _write(folder / image_id, breakage.make())
    _draw_missing(folder, exhibits)
    return Gallery(folder=folder, exhibits=exhibits, broken=reasons)


def _draw_missing(folder: Path, exhibits: tuple[Exhibit, ...]) -> None:
    present = {path.relative_to(folder).as_posix() for path in folder.glob("*/*")}
    missing = [exhibit for exhibit in exhibits if exhibit.image_id not in present]
    if len(missing) < _MIN_POOL_FILES:
        for exhibit in missing:
            _draw_file(folder, exhibit)
        return
    # Not forked: the calling process may run threads (torch, Ray), which a fork would cut short.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for _ in pool.map(partial(_draw_file, folder), missing, chunksize=20):
            pass


def _draw_file(folder: Path, exhibit: Exhibit) -> None:
    _write(folder / exhibit.image_id, exhibit.data())


def _write(path: Path, data: bytes) -> None:
    """Write a file that is either complete or absent, however the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(data)
    unfinished.replace(path)


def _png_mode(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """The picture as RGB, with a palette, or with an alpha channel that clears its corners."""
    mode = rng.choice(["rgb", "palette", "alpha"], p=[0.5, 0.25, 0.25])
    if mode == "palette":
        return picture.quantize(128)
    if mode == "alpha":
        width, height = picture.size
        alpha = Image.new("L", picture.size, 0)
        ImageDraw.Draw(alpha).rounded_rectangle((0, 0, width - 1, height - 1), min(picture.size) * 0.1, fill=255)
        picture = picture.copy()
        picture.putalpha(alpha)
    return picture
