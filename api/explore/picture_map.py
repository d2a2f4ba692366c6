"""A map of pictures in a notebook: a point for each, and thumbnails where there are no points."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor

from api.explore.grid import data_uri, shown_text
from api.explore.neighbours import Thumbnail, map_concurrently
from api.problems import Problem

PALETTE = (
    *("#4363d8", "#f58231", "#3cb44b", "#e6194b", "#911eb4", "#21b6d6", "#d9a400", "#f032e6"),
    *("#9a6324", "#2a8c82", "#f48fb1", "#8fbf1f", "#8c1c13", "#a08cff", "#6b7a00"),
)
"""Colours that show on white and on black."""

_CELL = 48  # pixels of a square with a picture or points, never both
_WIDTH, _HEIGHT, _PICTURE = 20 * _CELL, 14 * _CELL, _CELL - 4
_MARGIN = 4  # free pixels around a point
_MAX_DISTANCE = 3 * _CELL  # from a picture to its point
_FEW_POINTS = 10
_SHAPES = 5_000  # points that are drawn as shapes of their own, which take 100 bytes each
_GREY = 128, 128, 128, 90  # with the opacity
_LINE, _LETTER = 18, 8  # pixels


class PictureMap:
    """A map that a notebook shows as one drawing: a point for each image, and where there is room a picture beside it,
    with a line to its point.

    `points` is `(n, 2)`, one for each of `ids`; `groups`, if given, colours the points, and each is named at its
    centre. They may be any values; missing ones are no group. Of more than 15 groups the smaller ones are grey, so that
    each colour means one group. More than 5,000 points are one image of pixels; a million take some seconds.
    `thumbnail` is as in `Neighbours`; a picture that cannot be read is only a point. ValueError if lengths differ.
    """

    def __init__(
        self,
        points: npt.ArrayLike,
        ids: Sequence[str],
        *,
        thumbnail: Thumbnail,
        groups: Sequence[object] | None = None,
    ) -> None:
        self.points = np.asarray(points, np.float64)
        if self.points.shape != (len(ids), 2) or (groups is not None and len(groups) != len(ids)):
            count = "" if groups is None else f" and {len(groups)} groups"
            raise ValueError(f"got points of shape {self.points.shape}{count} for {len(ids)} ids: expected (n, 2)")
        if not np.isfinite(self.points).all():
            raise ValueError("got points that are not finite: expected finite coordinates for each picture")
        self.ids = list(ids)
        self.groups = [None] * len(ids) if groups is None else list(map(shown_text, groups))
        self._group_count = len({*self.groups} - {None})
        self._thumbnail = thumbnail

    def __repr__(self) -> str:
        return f"<map of {len(self.ids):,} images, which a notebook shows>"

    def _repr_html_(self) -> str:
        places = self._places()
        centres = self._centres(places)
        colours = dict(zip(centres, group_colours(np.array([*centres.values()]).reshape(-1, 2)), strict=True))
        cells = self._picture_cells(places)
        pictures = zip(cells.items(), map_concurrently(self._picture, list(cells)), strict=True)
        shapes = [
            self._image(number, places[number], corner, data, colours)
            for (number, corner), data in pictures
            if data is not None
        ]
        shapes += self._dots(places, colours)
        shapes += _names(centres, colours)
        return (
            f'<svg class="likeness-map" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'style="max-width:100%;height:auto" role="img" aria-label="a map of {len(self.ids)} images">'
            f"{''.join(shapes)}</svg>{_legend(colours, self._group_count - len(colours))}"
        )

    def _places(self) -> npt.NDArray[np.float64]:
        """Where each point is drawn, in pixels, with room for a frame of pictures around all points."""
        if not len(self.points):
            return self.points
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        inside = (self.points - low) / np.maximum(high - low, 1e-12)
        inside[:, 1] = 1 - inside[:, 1]  # SVG counts downwards
        edge = _CELL + _MARGIN
        places: npt.NDArray[np.float64] = edge + inside * (np.array([_WIDTH, _HEIGHT]) - 2 * edge)
        return places

    def _centres(self, places: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
        """The median place of each of the largest groups, which get a colour; a little above few points, which a name
        would cover.
        """
        sizes = Counter(sorted(group for group in self.groups if group is not None))
        groups = np.array(self.groups, object)
        return {
            name: np.median(places[groups == name], axis=0) - (0, _LINE if size < _FEW_POINTS else 0)
            for name, size in sizes.most_common(len(PALETTE))
        }

    def _picture_cells(self, places: npt.NDArray[np.float64]) -> dict[int, npt.NDArray[np.float64]]:
        """By image number, the corner of a cell for its picture: a near one without points. Not all images get one."""
        corners = np.array([(x, y) for y in range(0, _HEIGHT, _CELL) for x in range(0, _WIDTH, _CELL)], np.float64)
        cells: dict[int, npt.NDArray[np.float64]] = {}
        if not len(places):
            return cells
        some = np.unique(np.linspace(0, len(places) - 1, _SHAPES).astype(np.int64))
        distances = np.linalg.norm(corners[:, np.newaxis] + _CELL / 2 - places[some], axis=2)
        for margin in itertools.product((-_MARGIN, _MARGIN), repeat=2):
            columns, rows = ((places + margin) // _CELL).astype(np.int64).T
            distances[rows * (_WIDTH // _CELL) + columns] = np.inf
        for cell in np.argsort(distances.min(axis=1)):
            number = int(distances[cell].argmin())
            if distances[cell, number] <= _MAX_DISTANCE:
                cells[int(some[number])] = corners[cell]
                distances[:, number] = np.inf
        return cells

    def _dots(self, places: npt.NDArray[np.float64], colours: dict[str, str]) -> list[str]:
        """The points, those of groups with a colour on top; many are drawn into one image, which has no titles."""
        coloured = np.array([group in colours for group in self.groups], bool)
        grouped_last = np.argsort(coloured, kind="stable")
        if len(places) <= _SHAPES:
            return [self._point(number, places[number], colours) for number in grouped_last.tolist()]
        drawn = np.zeros((2 * _HEIGHT, 2 * _WIDTH, 4), np.uint8)
        known = {name: (*ImageColor.getrgb(colour), 200) for name, colour in colours.items()}
        values = np.array([known.get(group or "", _GREY) for group in self.groups], np.uint8)[grouped_last]
        columns, rows = (2 * places[grouped_last]).astype(np.int64).T
        for down, right in itertools.product((0, 1), repeat=2):
            drawn[rows + down, columns + right] = values
        target = io.BytesIO()
        Image.fromarray(drawn).save(target, "PNG")
        data = data_uri(target.getvalue(), "png")
        return [f'<image width="{_WIDTH}" height="{_HEIGHT}" href="{data}"/>']

    def _colour(self, number: int, colours: dict[str, str]) -> str:
        return colours.get(self.groups[number] or "", "currentColor")

    def _picture(self, number: int) -> bytes | None:
        try:
            return self._thumbnail(self.ids[number], 2 * _PICTURE)
        except Problem:
            return None

    def _title(self, number: int) -> str:
        group = self.groups[number]
        return f"<title>{escape(self.ids[number] + ('' if group is None else f', {group}'))}</title>"

    def _point(self, number: int, place: npt.NDArray[np.float64], colours: dict[str, str]) -> str:
        x, y = place
        colour = self._colour(number, colours)
        opacity = 0.35 if colours and colour == "currentColor" else 0.8
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}" fill-opacity="{opacity}">'
            f"{self._title(number)}</circle>"
        )

    def _image(
        self,
        number: int,
        place: npt.NDArray[np.float64],
        corner: npt.NDArray[np.float64],
        data: bytes,
        colours: dict[str, str],
    ) -> str:
        (x, y), (to_x, to_y) = corner + 2, place
        colour, middle = self._colour(number, colours), _PICTURE / 2
        return (
            f'<g stroke="{colour}"><line x1="{x + middle:.1f}" y1="{y + middle:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{_PICTURE}" height="{_PICTURE}" rx="4" fill="{colour}"/>'
            f'<image x="{x + 2:.1f}" y="{y + 2:.1f}" width="{_PICTURE - 4}" height="{_PICTURE - 4}" '
            f'preserveAspectRatio="xMidYMid slice" href="{data_uri(data)}"/>{self._title(number)}</g>'
        )


def _names(centres: dict[str, npt.NDArray[np.float64]], colours: dict[str, str]) -> list[str]:
    """The groups' names at their centres, or below if another name is there."""
    texts: list[str] = []
    taken: list[tuple[float, float, float]] = []
    for name, (x, y) in centres.items():
        width = _LETTER * len(name)
        while any(abs(x - left) < (width + other) / 2 and abs(y - top) < _LINE for left, top, other in taken):
            y += _LINE
        taken.append((x, y, width))
        texts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" dominant-baseline="central" fill="white" '
            f'stroke="{colours[name]}" stroke-width="5" stroke-linejoin="round" paint-order="stroke" '
            f'pointer-events="none" font-family="system-ui,sans-serif" font-size="14" font-weight="600">'
            f"{escape(name)}</text>"
        )
    return texts


def _legend(colours: dict[str, str], others: int) -> str:
    listed = sorted(colours.items())
    if others:
        listed.append((f"{others:,} other group{'s' * (others > 1)}", "grey"))
    entries = [
        f'<span style="white-space:nowrap"><span style="color:{colour}">●</span> {escape(name)}</span>'
        for name, colour in listed
    ]
    style = "display:flex;flex-wrap:wrap;gap:4px 14px;font:13px system-ui,sans-serif"
    return f'<div style="{style}">{"".join(entries)}</div>' if entries else ""


def group_colours(centres: npt.NDArray[np.float64]) -> list[str]:
    """A colour of its own for each group by its position, `(n, 2)`: the nearer two groups are, the more their colours
    differ. Earlier groups choose first. n is at most 15.
    """
    rgb = np.array([ImageColor.getrgb(colour) for colour in PALETTE]) / 255
    differences = np.linalg.norm(rgb[:, np.newaxis] - rgb, axis=2) + 0.01
    chosen: list[int] = []
    for number, centre in enumerate(centres):
        squares = np.square(centres[:number] - centre).sum(axis=1) + 1e-9
        clash = (1 / (squares[:, np.newaxis] * differences[chosen] ** 2)).sum(axis=0)
        clash[chosen] = np.inf
        chosen.append(int(np.argmin(clash)))
    return [PALETTE[colour] for colour in chosen]
