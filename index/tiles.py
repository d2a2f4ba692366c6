"""Tiles: overlapping parts of a picture, with vectors of their own beside that of the whole picture."""

from __future__ import annotations

import re
from itertools import product

Box = tuple[float, float, float, float]
"""A part of the upright picture: left, top, width and height as fractions of it, 0 … 1."""

_SCALE = 1.1  # of its cell in the grid; in a larger tile objects are smaller, and fewer are found: see the docs


def checked_tiles(tiles: str) -> str:
    """A grid such as "2x2". ValueError for any other text."""
    if not re.fullmatch("[1-4]x[1-4]", tiles) or tiles == "1x1":
        raise ValueError(f"is {tiles!r}: expected columns x rows, of 1 to 4 and not both 1, such as 2x2")
    return tiles


def tile_boxes(tiles: str | None) -> tuple[Box, ...]:
    """The boxes of a grid, row by row; empty for None."""
    if tiles is None:
        return ()
    columns, rows = (_spans(int(count)) for count in tiles.split("x"))
    return tuple((left, top, width, height) for (top, height), (left, width) in product(rows, columns))


def _spans(count: int) -> list[tuple[float, float]]:
    """Start and length of `count` equal spans that are spread evenly over 0 … 1."""
    length = min(1.0, _SCALE / count)
    return [(round(number * (1 - length) / max(1, count - 1), 4), round(length, 4)) for number in range(count)]
