"""Selected pictures in a notebook: in a row, or on a plane."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from api.errors import Problem
from api.explore.grid import Card, data_uri, grid_html
from api.explore.neighbours import SIDE, Thumbnail, map_in_threads, with_picture

_WIDTH, _HEIGHT, _PICTURE = 960, 640, 44  # pixels


class PictureRow:
    """A grid without a query. A picture that cannot be read is a placeholder with the reason.

    ValueError when `details`, a line for each, are not one for each of `ids`.
    """

    def __init__(
        self, ids: Sequence[str], details: Sequence[str] | None, *, caption: str, thumbnail: Thumbnail
    ) -> None:
        if details is not None and len(details) != len(ids):
            raise ValueError(f"got {len(details)} details for {len(ids)} ids: expected one for each")
        self.ids = list(ids)
        self.details = [""] * len(ids) if details is None else list(details)
        self.caption = caption
        self._thumbnail = thumbnail

    def __repr__(self) -> str:
        lines = [f"{image_id}  {detail}".rstrip() for image_id, detail in zip(self.ids, self.details, strict=True)]
        return "\n".join([self.caption, *lines] if self.caption else lines)

    def _repr_html_(self) -> str:
        return grid_html([], map_in_threads(self._card, self.ids, self.details), caption=self.caption)

    def _card(self, image_id: str, detail: str) -> Card:
        card = Card(heading=image_id.rpartition("/")[2], detail=detail, tooltip=f"{image_id}\n{detail}".rstrip())
        return with_picture(card, lambda: self._thumbnail(image_id, SIDE))


class PictureMap:
    """A map that a notebook shows as one drawing: each image is a point, and as many as fit are shown as pictures.

    `points` is `(n, 2)`, one for each of `ids`; `groups`, if given, colours the points. `thumbnail` is as in
    `Neighbours`: a picture that cannot be read stays a point. ValueError when lengths differ.
    """

    def __init__(
        self,
        points: npt.ArrayLike,
        ids: Sequence[str],
        *,
        thumbnail: Thumbnail,
        groups: Sequence[str | None] | None = None,
    ) -> None:
        self.points = np.asarray(points, np.float64)
        if self.points.shape != (len(ids), 2) or (groups is not None and len(groups) != len(ids)):
            count = "" if groups is None else f" and {len(groups)} groups"
            raise ValueError(f"got points of shape {self.points.shape}{count} for {len(ids)} ids: expected (n, 2)")
        if not np.isfinite(self.points).all():
            raise ValueError("got points that are not finite: expected a place for each picture")
        self.ids = list(ids)
        self.groups = [None] * len(ids) if groups is None else list(groups)
        self._thumbnail = thumbnail

    def __repr__(self) -> str:
        return f"<a map of {len(self.ids):,} images, to be shown in a notebook>"

    def _repr_html_(self) -> str:
        places = self._places()
        shown = self._with_room(places)
        pictures = dict(zip(shown, map_in_threads(self._picture, shown), strict=True))
        hues = self._hues()
        drawn = [self._point(number, places[number], hues) for number in range(len(self.ids))]
        drawn += [self._image(number, places[number], data, hues) for number, data in pictures.items() if data]
        return (
            f'<svg class="likeness-map" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'style="max-width:100%;height:auto" role="img" aria-label="a map of {len(self.ids)} images">'
            f"{''.join(drawn)}</svg>{self._legend(hues)}"
        )

    def _places(self) -> npt.NDArray[np.float64]:
        """Where each point is drawn, in pixels; the picture around it stays inside."""
        if not len(self.points):
            return self.points
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        inside = (self.points - low) / np.maximum(high - low, 1e-12)
        inside[:, 1] = 1 - inside[:, 1]  # upwards
        places: npt.NDArray[np.float64] = _PICTURE / 2 + inside * (np.array([_WIDTH, _HEIGHT]) - _PICTURE)
        return places

    def _with_room(self, places: npt.NDArray[np.float64]) -> list[int]:
        """Numbers of images whose pictures do not cover each other."""
        kept: list[int] = []
        # In random order: ids sort by folder, and the first folders would take all the room.
        for number in np.random.default_rng(0).permutation(len(places)).tolist():
            if not kept or (np.abs(places[kept] - places[number]).max(axis=1) >= _PICTURE).all():
                kept.append(number)
        return kept

    def _hues(self) -> dict[str, int]:
        names = sorted({group for group in self.groups if group is not None})
        return {name: round(360 * number / len(names)) for number, name in enumerate(names)}

    def _colour(self, number: int, hues: dict[str, int]) -> str:
        group = self.groups[number]
        return "currentColor" if group is None else f"hsl({hues[group]} 65% 52%)"

    def _picture(self, number: int) -> bytes | None:
        try:
            return self._thumbnail(self.ids[number], 2 * _PICTURE)
        except Problem:
            return None

    def _point(self, number: int, place: npt.NDArray[np.float64], hues: dict[str, int]) -> str:
        x, y = place
        return (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{self._colour(number, hues)}" fill-opacity=".7">'
            f"<title>{escape(self.ids[number])}</title></circle>"
        )

    def _image(self, number: int, place: npt.NDArray[np.float64], data: bytes, hues: dict[str, int]) -> str:
        x, y = place - _PICTURE / 2
        side = _PICTURE - 4
        return (
            f'<g><title>{escape(self.ids[number])}</title><rect x="{x:.1f}" y="{y:.1f}" width="{_PICTURE}" '
            f'height="{_PICTURE}" rx="4" fill="{self._colour(number, hues)}"/>'
            f'<image x="{x + 2:.1f}" y="{y + 2:.1f}" width="{side}" height="{side}" '
            f'preserveAspectRatio="xMidYMid slice" href="{data_uri(data)}"/></g>'
        )

    def _legend(self, hues: dict[str, int]) -> str:
        entries = [
            f'<span style="white-space:nowrap"><span style="color:hsl({hue} 65% 52%)">●</span> {escape(name)}</span>'
            for name, hue in hues.items()
        ]
        style = "display:flex;flex-wrap:wrap;gap:4px 14px;font:13px system-ui,sans-serif"
        return f'<div style="{style}">{"".join(entries)}</div>' if entries else ""
