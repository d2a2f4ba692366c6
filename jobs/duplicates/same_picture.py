"""Compares two small pictures by their pixels. One may be cropped at its edges.

They are aligned by a scale and a shift of each axis (Lucas and Kanade, 1981; Baker and Matthews, 2004). Then the most
different of 64 tiles counts, because a small object that only one of them has would be lost in the mean.
`python -m benchmarks.duplicates` measures precision and recall.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

SIDE: Final = 64
"""Side of the compared pictures, in pixels: whole pictures, squashed into a square."""
MAX_CROP: Final = 0.08
"""Maximum cropped fraction of the width or height, both ends together."""

_PASSES: Final = ((4, 5), (2, 3), (1, 2))
"""Passes of the alignment, coarse to fine: the factor by which the pictures are reduced, and the maximum steps."""
_FAR_APART: Final = 0.13
"""RMS difference at 16 × 16 pixels that a crop up to `MAX_CROP` never reaches; such pictures need no alignment."""
_DAMPING: Final = 1e-3
_EDGE_TOLERANCE: Final = 0.004
"""How far an uncropped edge may seem to move, as a fraction of the side."""
_BEYOND_TOLERANCE: Final = 0.012
"""How far a cropped picture may seem to exceed the whole one, as a fraction of the side: fine stripes mislead."""
_TILES: Final = 8


def compare(one: Pixels, other: Pixels) -> tuple[float, bool]:
    """The difference of two pictures, 0 … 1, and whether one was cropped; 1.0 if neither is a part of the other.

    Both are `(SIDE, SIDE, 3)`, 0 … 255.
    """
    if np.sqrt(((_pooled(one, 4) - _pooled(other, 4)) ** 2).mean()) > 255 * _FAR_APART:
        return 1.0, False
    result = _compare_part(one, other)
    return result if result[0] < 1 else _compare_part(other, one)


def _compare_part(whole: Pixels, part: Pixels) -> tuple[float, bool]:
    """Like `compare`, for a `part` that is `whole`, perhaps cropped."""
    scale, shift = _align(whole, part)
    cut = np.concatenate([1 + shift - scale, 1 - shift - scale]) / 2  # off each end, as fractions of the side
    if np.abs(cut).max() <= _EDGE_TOLERANCE:
        return _worst_tile(whole, part), False
    if cut.min() < -_BEYOND_TOLERANCE or (1 - scale).max() > MAX_CROP:
        return 1.0, False
    return _worst_tile(_warped(whole, scale, shift), part), True


def _align(one: Pixels, other: Pixels) -> tuple[Numbers, Numbers]:
    """Scale and shift of x and y, with axes from -1 to 1: `other` at x is `one` at scale · x + shift."""
    parameters = np.array([1.0, 1.0, 0.0, 0.0])
    for factor, steps in _PASSES:
        small, target = _pooled(one, factor), _pooled(other, factor)
        for _ in range(steps):
            change = _step(small, target, parameters[:2], parameters[2:])
            parameters = parameters + change
            if np.abs(parameters - (1, 1, 0, 0)).max() > 2 * MAX_CROP:
                return parameters[:2], parameters[2:]
            if np.abs(change).max() < _EDGE_TOLERANCE / 16:
                break
    return parameters[:2], parameters[2:]


def _step(one: Pixels, other: Pixels, scale: Numbers, shift: Numbers) -> Numbers:
    """The change of one Gauss-Newton step, damped for pictures that are uniform along an axis."""
    warped = _warped(one, scale, shift)
    side = len(one)
    down, right = (gradient * (side / 2) for gradient in np.gradient(warped, axis=(0, 1)))
    axis = _centres(side).astype(np.float32)
    jacobian = np.stack([right * axis[:, None], down * axis[:, None, None], right, down]).reshape(4, -1)
    normal = (jacobian @ jacobian.T).astype(np.float64)
    normal += np.eye(4) * (_DAMPING * np.trace(normal) / 4 + 1e-6)
    change: Numbers = np.linalg.solve(normal, jacobian @ (other - warped).ravel())
    return change


def _warped(pixels: Pixels, scale: Numbers, shift: Numbers) -> Pixels:
    """Linear interpolation; beyond an edge, its pixels repeat."""
    side = len(pixels)
    across, down = (_weights(side, scale[axis], shift[axis]) for axis in (0, 1))
    warped: Pixels = across @ (down @ pixels.reshape(side, -1)).reshape(side, side, 3)
    return warped


def _weights(side: int, scale: float, shift: float) -> Pixels:
    """The matrix that interpolates one axis, `(side, side)`."""
    sources = np.clip((_centres(side) * scale + shift + 1) * side / 2 - 0.5, 0, side - 1)
    weights: Pixels = np.maximum(0, 1 - np.abs(sources[:, np.newaxis] - np.arange(side))).astype(np.float32)
    return weights


def _centres(side: int) -> Numbers:
    """The centres of pixels along an axis from -1 to 1."""
    return (np.arange(side) + 0.5) * 2 / side - 1


def _worst_tile(one: Pixels, other: Pixels) -> float:
    squares = _pooled(one - other, 2) ** 2  # at half size, because a resized picture may be sharper
    return float(np.sqrt(_pooled(squares, len(squares) // _TILES).mean(axis=2).max()) / 255)


def _pooled(pixels: Pixels, factor: int) -> Pixels:
    """The means of squares of `factor × factor` pixels."""
    side = len(pixels) // factor
    pooled: Pixels = pixels.reshape(side, factor, side, factor, 3).mean(axis=(1, 3))
    return pooled
