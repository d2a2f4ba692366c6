"""Compares two pictures at the size of the smaller one, so that a single changed number on a page shows.

What saving and resizing change is the same everywhere: brightness, contrast, sharpness, and an edge that moves by less
than two pixels. One least-squares fit removes these. Of what remains, the most different place counts: JPEG's
artefacts stay small there, other letters do not. `python -m benchmarks.duplicates` measures precision and recall.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from jobs.duplicates.same_picture import Numbers, Part, centres

Plane = npt.NDArray[np.float32]

MAX_PIXELS: Final = 2**24
"""Larger pictures are compared at this size: letters of an A4 page still have 40 pixels."""

_MIN_SIDE: Final = 64  # smaller pictures are enlarged, because the fit needs some pixels
_BLOCK: Final = 3  # side of a place that is compared, after averaging 2 × 2 pixels: about half a letter
_CONTRAST: Final = 60.0  # doubles the permitted difference: edges are resized differently
_TEXTURE: Final = 12  # side of a place whose texture is compared, and its minimum standard deviation
_MIN_TEXTURE: Final = 5.0
_TEXTURE_WEIGHT: Final = 0.1  # the difference of unrelated textures; saving again leaves a correlation above 0.65
_MAX_GAIN: Final = 0.15
_MAX_BRIGHTENING: Final = 16.0
_MAX_SHARPENING: Final = 1.0
_FIRST_SIDE: Final = 128
_STEPS: Final = 4  # at most, of the alignment at each size; each moves edges by up to two pixels
_ALIGNED: Final = 0.2  # pixels that the fit need not move an edge


def detail_difference(whole: Image.Image, other: Image.Image, part: Part, limit: float) -> tuple[float, Part]:
    """The greatest difference of two RGB pictures, 0 … 1, of which `other` shows a `part` of the `whole`.

    They are aligned and compared at growing sizes, until they differ by far more than `limit`. Also returns the part as
    it was aligned at last.
    """
    longest, side = max(min(whole.width, other.width), min(whole.height, other.height)), _FIRST_SIDE
    while True:
        for _ in range(_STEPS):
            one, two = _same_size(whole, other, part, side)
            explanations = _explanations(one[..., 0])
            weights = _fit(explanations, one[..., 0], two[..., 0])
            if np.abs(weights[:4]).max() * side < _ALIGNED:
                break
            part = part.moved(weights[:4])
        fitted = one[..., 0] + sum(
            np.float32(weight) * each for weight, each in zip(weights, explanations, strict=True)
        )
        difference = _difference(np.clip(fitted, 0, 255), one, two)
        if side >= longest or difference > 2 * limit:
            return difference, part
        side *= 2


def _difference(fitted: Plane, one: Plane, two: Plane) -> float:
    brightness = two[..., 0]
    # Colours are stored at half the size.
    colours = [_worst_block(_halved(one[..., number]), _halved(two[..., number])) for number in (1, 2)]
    return max(_worst_block(fitted, brightness), _worst_texture(fitted, brightness), *colours)


def _same_size(whole: Image.Image, other: Image.Image, part: Part, side: int) -> tuple[Plane, ...]:
    """What both show, in at most as many pixels as the smaller one has; the longer side has up to `side`. Brightness
    and two colour differences, 0 … 255, at half the size.
    """
    boxes = part.boxes(whole.size, other.size)
    width, height = (min(box[axis + 2] - box[axis] for box in boxes) for axis in (0, 1))
    shrink = min(1.0, side / max(width, height))
    size = max(_MIN_SIDE, round(width * shrink)), max(_MIN_SIDE, round(height * shrink))
    resized = (
        picture.resize(size, Image.Resampling.BICUBIC, box=box)
        for picture, box in zip((whole, other), boxes, strict=True)
    )
    return tuple(np.asarray(picture.reduce(2).convert("YCbCr"), np.float32) for picture in resized)


def _explanations(one: Plane) -> list[Plane]:
    """How a plane changes if it is scaled or shifted along x or y, or gets more contrast, brightness or blur."""
    height, width = one.shape
    down, right = np.gradient(one)
    down, right = down * np.float32(height / 2), right * np.float32(width / 2)
    across, along = (centres(count).astype(np.float32) for count in (width, height))
    blurred = _means(np.pad(one, 1, mode="edge"), 3)
    return [
        right * across,
        down * along[:, np.newaxis],
        right,
        down,
        one - one.mean(),
        np.ones_like(one),
        blurred - one,
    ]


def _fit(explanations: list[Plane], one: Plane, two: Plane) -> Numbers:
    """The weights with which the explanations best turn `one` into `two`, within what saving and resizing do."""
    every = 2 if one.size > 10**6 else 1
    columns = np.stack([each[::every, ::every].ravel() for each in explanations])
    scales = np.sqrt(np.square(columns, dtype=np.float32).mean(axis=1)) + 1e-6
    columns /= scales[:, np.newaxis]
    normal = (columns @ columns.T / columns.shape[1]).astype(np.float64) + 1e-4 * np.eye(len(columns))
    moments = (columns @ (two - one)[::every, ::every].ravel() / columns.shape[1]).astype(np.float64)
    height, width = one.shape
    pixel = np.array([2 / width, 2 / height])
    limits = np.concatenate([pixel, pixel, [_MAX_GAIN, _MAX_BRIGHTENING, _MAX_SHARPENING]])
    weights: Numbers = np.clip(np.linalg.solve(normal, moments) / scales, -limits, limits)
    return weights


def _worst_block(one: Plane, two: Plane) -> float:
    differences = _means(np.square(one - two), _BLOCK)
    contrast = np.sqrt(np.minimum(_variances(one, _BLOCK), _variances(two, _BLOCK)))
    return float((np.sqrt(differences) / (1 + contrast / _CONTRAST)).max()) / 255


def _worst_texture(one: Plane, two: Plane) -> float:
    """Noise or faint print may differ by little everywhere, but then it is unrelated."""
    variances = _variances(one, _TEXTURE), _variances(two, _TEXTURE)
    covariances = _means(one * two, _TEXTURE) - _means(one, _TEXTURE) * _means(two, _TEXTURE)
    textured = np.minimum(*variances) >= _MIN_TEXTURE**2
    if not textured.any():
        return 0.0
    correlations = covariances[textured] / np.sqrt(variances[0] * variances[1])[textured]
    return float(1 - correlations.min()) * _TEXTURE_WEIGHT


def _variances(plane: Plane, side: int) -> Plane:
    return np.maximum(_means(np.square(plane), side) - np.square(_means(plane, side)), 0)


def _means(plane: Plane, side: int) -> Plane:
    """The mean of each square of `side × side` values."""
    for axis in (0, 1):
        count = plane.shape[axis] - side + 1
        total = np.zeros((1, 1), np.float32)
        for first in range(side):
            total = total + plane.take(range(first, first + count), axis)
        plane = total / np.float32(side)
    return plane


def _halved(plane: Plane) -> Plane:
    height, width = plane.shape[0] // 2, plane.shape[1] // 2
    halved: Plane = plane[: 2 * height, : 2 * width].reshape(height, 2, width, 2).mean(axis=(1, 3))
    return halved
