"""Selected pictures in a notebook, in a row."""

from __future__ import annotations

from collections.abc import Sequence

from api.explore.grid import Card, grid_html
from api.explore.neighbours import SIDE, Thumbnail, map_concurrently, with_picture


class PictureRow:
    """A grid without a query. For a picture that cannot be read, it gives the reason.

    `details` has a line for each of `ids`. Raises ValueError if their numbers differ.
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
        return grid_html([], map_concurrently(self._card, self.ids, self.details), caption=self.caption)

    def _card(self, image_id: str, detail: str) -> Card:
        card = Card(heading=image_id.rpartition("/")[2], detail=detail, tooltip=f"{image_id}\n{detail}".rstrip())
        return with_picture(card, lambda: self._thumbnail(image_id, SIDE))
