"""Compares two small pictures by their pixels. One may be cropped at its edges.

They are aligned by a scale and a shift of each axis (Lucas and Kanade, 1981; Baker and Matthews, 2004). Then the most
different of 64 tiles counts, because a small object that only one of them has would be lost in the mean.
`python -m benchmarks.duplicates` measures precision and recall.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]

SIDE: Final = 64
"""Side of the compared pictures, in pixels: whole pictures, squashed into a square."""
MAX_CROP: Final = 0.12
"""Maximum cropped fraction of the width or height, both ends together: 16:9 cut to 16:10 lost 0.1, 3:2 to 4:3 0.11."""

MAX_STRETCH: Final = 2.0
"""How many times as wide a copy may be, for its height: 16:9 squashed into a square is 1.8 times as narrow, while plain
pictures and gradients look alike in any shape."""

_PASSES: Final = ((4, 5), (2, 3), (1, 2))
"""Passes of the alignment, coarse to fine: the factor by which the pictures are reduced, and the maximum steps."""
_FAR_APART: Final = 0.13
_UNLIKE: Final = 0.22
"""RMS difference at 16 × 16 pixels from which steps go astray, and which no crop up to `MAX_CROP` reaches."""
_DAMPING: Final = 1e-3
_EDGE_TOLERANCE: Final = 0.004
"""How far an uncropped edge may seem to move, as a fraction of the side."""
_BEYOND_TOLERANCE: Final = 0.012
"""How far a cropped picture may seem to exceed the whole one, as a fraction of the side: fine stripes mislead."""
_TILES: Final = 8


@dataclass(frozen=True)
class Part:
    """A part of a picture: x of the part is `scale · x + shift` of the whole, with axes from -1 to 1."""

    scale: tuple[float, float] = (1.0, 1.0)
    shift: tuple[float, float] = (0.0, 0.0)

    @property
    def is_cropped(self) -> bool:
        return max(map(abs, self._cuts)) > _EDGE_TOLERANCE

    @property
    def is_within(self) -> bool:
        """Whether it is no more than the whole, and cropped by no more than `MAX_CROP`."""
        return min(self._cuts) >= -_BEYOND_TOLERANCE and 1 - min(self.scale) <= MAX_CROP

    @property
    def _cuts(self) -> list[float]:
        """What was cut off at each end, as fractions of the side."""
        axes = zip(self.scale, self.shift, strict=True)
        return [(1 + sign * shift - scale) / 2 for scale, shift in axes for sign in (1, -1)]

    def moved(self, change: Numbers) -> "Part":
        """After a change of scale and shift along x and y, as seen from the part."""
        scale = tuple(old * (1 + new) for old, new in zip(self.scale, change[:2].tolist(), strict=True))
        shift = tuple(
            old + size * new for old, size, new in zip(self.shift, self.scale, change[2:].tolist(), strict=True)
        )
        return Part((scale[0], scale[1]), (shift[0], shift[1]))

    def boxes(self, whole: tuple[int, int], part: tuple[int, int]) -> tuple[Box, Box]:
        """What both show, in pixels of the whole and of the part: left, top, right, bottom."""
        spans = []
        for scale, shift in zip(self.scale, self.shift, strict=True):
            ends = max(-1.0, shift - scale), min(1.0, shift + scale)
            spans.append((ends, tuple((end - shift) / scale for end in ends)))
        first, second = (
            tuple(min(max((spans[axis][number][end] + 1) / 2, 0), 1) * size[axis] for end in (0, 1) for axis in (0, 1))
            for number, size in enumerate((whole, part))
        )
        return first, second  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How small copies differ, 0 … 1, if the second picture is a `part` of the first; `swapped`: the first of the
    second.
    """

    difference: float
    part: Part = Part()
    swapped: bool = False


def is_stretched(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether the shapes of two pictures of these sizes differ by more than `MAX_STRETCH`."""
    ratio = one[0] * other[1] / (one[1] * other[0])
    return max(ratio, 1 / ratio) > MAX_STRETCH


def compare(one: Pixels, other: Pixels, limit: float) -> list[Comparison]:
    """Compare two pictures, `(SIDE, SIDE, 3)`, 0 … 255: as they are, and aligned if one seems to be cropped.

    Returns what differs by at most `limit`; cropped ones by twice as much, because they blur fine lines differently.
    """
    if _distance(one, other) > _UNLIKE:
        return []
    whole = [Comparison(difference=difference)] if (difference := _worst_tile(one, other)) <= limit else []
    cropped = _cropped(one, other, limit, by_profiles=False)
    if not whole and not cropped:
        cropped = _cropped(one, other, limit, by_profiles=True)
    return [*whole, *sorted(cropped, key=lambda each: each.difference)[:1]]


def _cropped(one: Pixels, other: Pixels, limit: float, *, by_profiles: bool) -> list[Comparison]:
    """The comparisons in which one is cropped. Steps from the whole picture go astray among lines of text, those
    from profiles among photographs.
    """
    found = []
    for swapped, (whole, part) in enumerate(((one, other), (other, one))):
        start = _part_by_profiles(whole, part) if by_profiles else Part()
        aligned = _align(whole, part, start, _PASSES[1:] if by_profiles else _PASSES)
        if aligned.is_cropped and aligned.is_within:
            difference = _worst_tile(_warped(whole, aligned), part)
            if difference <= 2 * limit:
                found.append(Comparison(difference=difference, part=aligned, swapped=bool(swapped)))
    return found


def _align(one: Pixels, other: Pixels, part: Part, passes: Sequence[tuple[int, int]]) -> Part:
    """The part of `one` that `other` shows, in steps that begin with `part`."""
    if _distance(_warped(one, part) if part != Part() else one, other) > _FAR_APART:
        return Part()
    for factor, steps in passes:
        small, target = _pooled(one, factor), _pooled(other, factor)
        for _ in range(steps):
            change = _step(small, target, part)
            part = part.moved(change)
            if max(abs(1 - scale) for scale in part.scale) > 2 * MAX_CROP or max(map(abs, part.shift)) > 2 * MAX_CROP:
                return part
            if np.abs(change).max() < _EDGE_TOLERANCE / 16:
                break
    return part


def _part_by_profiles(one: Pixels, other: Pixels) -> Part:
    """The part of `one` whose means of columns and rows are most like those of `other`, among all crops."""
    cuts, weights = _crops()
    best = []
    for axis in (0, 1):
        profiles = (weights @ one.mean(axis=axis)).reshape(len(cuts), -1)
        target = other.mean(axis=axis).ravel()
        profiles -= profiles.mean(axis=1, keepdims=True)
        likeness = profiles @ (target - target.mean()) / (np.linalg.norm(profiles, axis=1) + 1e-3)
        best.append(cuts[int(likeness.argmax())])
    (across, right), (down, below) = best
    return Part((across, down), (right, below))


@cache
def _crops() -> tuple[list[tuple[float, float]], Pixels]:
    """Scale and shift of each crop up to `MAX_CROP`, half a pixel apart, and the matrices that interpolate them."""
    ends = np.arange(0, MAX_CROP, 0.5 / SIDE).tolist()
    cuts = [(1 - first - last, first - last) for first in ends for last in ends if first + last <= MAX_CROP]
    return cuts, np.stack([_weights(SIDE, *cut) for cut in cuts])


def _step(one: Pixels, other: Pixels, part: Part) -> Numbers:
    """The change of one Gauss-Newton step, damped for pictures that are uniform along an axis.

    Brightness and contrast, which a copy may have changed too, are fitted with it.
    """
    warped = _warped(one, part)
    side = len(one)
    down, right = (gradient * (side / 2) for gradient in np.gradient(warped, axis=(0, 1)))
    axis = centres(side).astype(np.float32)
    light = np.ones_like(warped), warped - warped.mean()
    jacobian = np.stack([right * axis[:, None], down * axis[:, None, None], right, down, *light]).reshape(6, -1)
    normal = (jacobian @ jacobian.T).astype(np.float64)
    normal += np.diag([_DAMPING * np.trace(normal[:4, :4]) / 4 + 1e-6] * 4 + [1e-6] * 2)
    change: Numbers = np.linalg.solve(normal, jacobian @ (other - warped).ravel())[:4]
    return change


def _warped(pixels: Pixels, part: Part) -> Pixels:
    """Linear interpolation; beyond an edge, its pixels repeat."""
    side = len(pixels)
    across, down = (_weights(side, part.scale[axis], part.shift[axis]) for axis in (0, 1))
    warped: Pixels = across @ (down @ pixels.reshape(side, -1)).reshape(side, side, 3)
    return warped


def _weights(side: int, scale: float, shift: float) -> Pixels:
    """The matrix that interpolates one axis, `(side, side)`."""
    sources = np.clip((centres(side) * scale + shift + 1) * side / 2 - 0.5, 0, side - 1)
    weights: Pixels = np.maximum(0, 1 - np.abs(sources[:, np.newaxis] - np.arange(side))).astype(np.float32)
    return weights


def centres(count: int) -> Numbers:
    """The centres of pixels along an axis from -1 to 1."""
    return (np.arange(count) + 0.5) * 2 / count - 1


def _distance(one: Pixels, other: Pixels) -> float:
    """The RMS difference at a quarter of the size, 0 … 1."""
    return float(np.sqrt(np.square(_pooled(one, 4) - _pooled(other, 4)).mean()) / 255)


def _worst_tile(one: Pixels, other: Pixels) -> float:
    squares = _pooled(one - other, 2) ** 2  # at half size, because a resized picture may be sharper
    return float(np.sqrt(_pooled(squares, len(squares) // _TILES).mean(axis=2).max()) / 255)


def _pooled(pixels: Pixels, factor: int) -> Pixels:
    """The means of squares of `factor × factor` pixels."""
    side = len(pixels) // factor
    pooled: Pixels = pixels.reshape(side, factor, side, factor, 3).mean(axis=(1, 3))
    return pooled
