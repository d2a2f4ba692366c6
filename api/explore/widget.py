"""The clickable grid of a notebook. Not in `api.explore`, because anywidget is an extra."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from api.errors import ApiError
from api.explore.exploration import Exploration
from api.explore.grid import CSS, Card, data_uri
from embedder.errors import EmbedderError
from index.errors import CollectionError

_CONTROLS = """
.likeness .lk-controls { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin-bottom: 8px; }
.likeness .lk-button, .likeness .lk-toward { font: inherit; color: inherit; cursor: pointer; padding: 3px 10px;
  border: 1px solid color-mix(in srgb, currentColor 35%, transparent); border-radius: 6px; background: none; }
.likeness .lk-button:disabled { opacity: .4; cursor: default; }
.likeness .lk-slide { display: flex; gap: 8px; align-items: center; margin-left: auto; }
.likeness .lk-slide span { max-width: 160px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.likeness .lk-grid .lk-card { position: relative; }
.likeness .lk-like { display: block; width: 100%; padding: 0; border: 0; border-radius: 8px; background: none;
  color: inherit; font: inherit; cursor: pointer; }
.likeness .lk-like:hover .lk-mat { background: color-mix(in srgb, currentColor 16%, transparent); }
.likeness .lk-toward { position: absolute; top: 4px; right: 4px; padding: 0 6px; opacity: 0;
  backdrop-filter: blur(4px); }
.likeness .lk-card:hover .lk-toward, .likeness .lk-toward:focus-visible { opacity: 1; }
.likeness[aria-busy="true"] .lk-row { opacity: .5; }
"""


class ExploreWidget(anywidget.AnyWidget):
    """Click a match to make it the query, slide between two queries, turn pages, go back."""

    _esm = Path(__file__).parent / "widget.js"
    _css = CSS + _CONTROLS
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, exploration: Exploration) -> None:
        self.exploration = exploration
        super().__init__(view=self._view())
        self.on_msg(self._on_message)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Also the static grid, for pages without live widgets, such as exports and nbviewer."""
        data, metadata = super()._repr_mimebundle_(**options) or ({}, {})
        return {**data, "text/html": self.exploration.results._repr_html_()}, metadata

    def _on_message(self, _: object, message: dict[str, Any], buffers: object) -> None:
        try:
            match message:
                case {"like": str(image_id)}:
                    self.exploration.like(image_id)
                case {"toward": str(image_id)}:
                    self.exploration.toward(image_id)
                case {"share": int() | float() as share}:
                    self.exploration.slide(float(share))
                case {"page": int(page)}:
                    self.exploration.turn_to(page)
                case {"back": True}:
                    self.exploration.back()
        except (ApiError, EmbedderError, CollectionError, OSError) as error:
            # Keep the current view: an exception would end up in a log that nobody sees.
            self.view = {**self.view, "error": str(error)}
        else:
            self.view = self._view()

    def _view(self) -> dict[str, Any]:
        exploration, results = self.exploration, self.exploration.results
        return {
            "caption": results.caption,
            "error": "",
            "query": [_fields(card) for card in results.query_cards()],
            "matches": [
                {**_fields(card), "id": match.image_id}
                for card, match in zip(results.match_cards(), results, strict=False)
            ],
            "ends": exploration.ends,
            "share": exploration.share,
            "page": exploration.page,
            "has_more": exploration.has_more,
            "can_go_back": exploration.can_go_back,
        }


def _fields(card: Card) -> dict[str, Any]:
    fields = asdict(card)
    jpeg = fields.pop("jpeg")
    return {**fields, "src": data_uri(jpeg) if jpeg else ""}
