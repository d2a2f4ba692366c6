"""Whether two small pictures show the same, one of them perhaps cropped at its edges.

One is laid over the other by scale and shift of each axis (Lucas and Kanade, 1981; Baker and Matthews, 2004). Then the
most different of 64 tiles counts, so that a small thing that is in one of them only is not lost in the mean.
`python -m benchmarks.duplicates` measures it.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

SIDE: Final = 64
"""Of the pictures that are compared: whole ones, squashed into a square."""
MAX_CROP: Final = 0.08
"""The most that may be cut off a side's length, both ends together."""

_PASSES: Final = ((4, 5), (2, 3), (1, 2))
"""How much smaller the pictures are that are aligned, and steps."""
_FAR_APART: Final = 0.13
"""The difference of pictures of 16 × 16 pixels that no crop of `MAX_CROP` makes; it saves the alignment."""
_DAMPING: Final = 1e-3
_EDGE: Final = 0.004
"""A share of a side, by which an edge that was not cropped may seem to move."""
_BEYOND: Final = 0.012
"""A share of a side, by which a cropped picture may seem to show more than the whole one: fine stripes mislead."""
_TILES: Final = 8


def compare(one: Pixels, other: Pixels) -> tuple[float, bool]:
    """The difference of two pictures, 0 … 1, and whether one was cropped; 1.0 where neither shows a part of the other.

    Both `(SIDE, SIDE, 3)`, 0 … 255.
    """
    if np.sqrt(((_pooled(one, 4) - _pooled(other, 4)) ** 2).mean()) > 255 * _FAR_APART:
        return 1.0, False
    found = _as_part(one, other)
    return found if found[0] < 1 else _as_part(other, one)


def _as_part(whole: Pixels, part: Pixels) -> tuple[float, bool]:
    """As `compare`, where `part` lacks something."""
    scale, shift = _align(whole, part)
    cut = np.concatenate([1 + shift - scale, 1 - shift - scale]) / 2  # what it lacks at each end, as a share of a side
    if np.abs(cut).max() <= _EDGE:
        return _worst_tile(whole, part), False
    if cut.min() < -_BEYOND or (1 - scale).max() > MAX_CROP:
        return 1.0, False
    return _worst_tile(_warped(whole, scale, shift), part), True


def _align(one: Pixels, other: Pixels) -> tuple[Numbers, Numbers]:
    """Scale and shift of x and y, where each axis goes from -1 to 1: `other` at x is `one` at scale · x + shift."""
    found = np.array([1.0, 1.0, 0.0, 0.0])
    for by, steps in _PASSES:
        small, target = _pooled(one, by), _pooled(other, by)
        for _ in range(steps):
            change = _step(small, target, found[:2], found[2:])
            found = found + change
            if np.abs(found - (1, 1, 0, 0)).max() > 2 * MAX_CROP:
                return found[:2], found[2:]
            if np.abs(change).max() < _EDGE / 16:
                break
    return found[:2], found[2:]


def _step(one: Pixels, other: Pixels, scale: Numbers, shift: Numbers) -> Numbers:
    """One of Gauss and Newton, damped for pictures that are plain along an axis."""
    moved = _warped(one, scale, shift)
    side = len(one)
    down, right = (slope * (side / 2) for slope in np.gradient(moved, axis=(0, 1)))
    at = _centres(side).astype(np.float32)
    slopes = np.stack([right * at[:, np.newaxis], down * at[:, np.newaxis, np.newaxis], right, down]).reshape(4, -1)
    normal = (slopes @ slopes.T).astype(np.float64)
    normal += np.eye(4) * (_DAMPING * np.trace(normal) / 4 + 1e-6)
    change: Numbers = np.linalg.solve(normal, slopes @ (other - moved).ravel())
    return change


def _warped(pixels: Pixels, scale: Numbers, shift: Numbers) -> Pixels:
    """Interpolated linearly; what lies beyond an edge is as at the edge."""
    side = len(pixels)
    across, down = (_weights(side, scale[axis], shift[axis]) for axis in (0, 1))
    warped: Pixels = across @ (down @ pixels.reshape(side, -1)).reshape(side, side, 3)
    return warped


def _weights(side: int, scale: float, shift: float) -> Pixels:
    """The matrix that interpolates one axis, `(side, side)`."""
    at = np.clip((_centres(side) * scale + shift + 1) * side / 2 - 0.5, 0, side - 1)
    weights: Pixels = np.maximum(0, 1 - np.abs(at[:, np.newaxis] - np.arange(side))).astype(np.float32)
    return weights


def _centres(side: int) -> Numbers:
    return (np.arange(side) + 0.5) * 2 / side - 1


def _worst_tile(one: Pixels, other: Pixels) -> float:
    apart = _pooled(one - other, 2) ** 2  # halved, because a resized picture may be sharper
    return float(np.sqrt(_pooled(apart, len(apart) // _TILES).mean(axis=2).max()) / 255)


def _pooled(pixels: Pixels, by: int) -> Pixels:
    """The means of squares of `by × by` pixels."""
    side = len(pixels) // by
    pooled: Pixels = pixels.reshape(side, by, side, by, 3).mean(axis=(1, 3))
    return pooled
