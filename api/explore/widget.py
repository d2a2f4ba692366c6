"""The clickable grid of a notebook. Not in `api.explore`, because anywidget is an extra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from api.client.query import Example, Search
from api.errors import ApiError
from api.explore.neighbours import Neighbours
from api.problems import InvalidRequest
from api.search.page import naming_option
from embedder.errors import EmbedderError
from index.errors import CollectionError
from index.search_options import MAX_K, checked_k

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


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One search: by `query`, or by a mix in which `other` has the weight `share`, from 0 to 1."""

    query: Example
    other: Example | None = None
    share: float = 0.0
    page: int = 0

    @property
    def ends(self) -> list[str]:
        """Names of the two queries at the ends of the slider; empty if there is only one."""
        return [] if self.other is None else [_name(self.query), _name(self.other)]


class ExploreWidget(anywidget.AnyWidget):
    """Click a match to make it the query, slide between two queries, turn pages, go back.

    `options` apply to each search, `words="only"` to those by text alone, and `k` is the number of matches on a page.
    If a search raises, the view stays and says why. Raises Problem for a wrong `k`.
    """

    _esm = Path(__file__).parent / "widget.js"
    _css = _CONTROLS  # the grid brings its own style
    view = traitlets.Dict().tag(sync=True)

    def __init__(
        self, search: Callable[..., Neighbours], query: Example, other: Example | None, options: Search
    ) -> None:
        self._search = search
        self._options = options
        with naming_option():
            self._k = checked_k(options.get("k"))
        self._steps: list[_Step] = []
        self._go(_Step(query=query, other=other, share=0.5 if other else 0.0))
        super().__init__(view=self._view())
        self.on_msg(self._on_message)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Also the static grid, for pages without live widgets, such as exports and nbviewer."""
        data, metadata = super()._repr_mimebundle_(**options) or ({}, {})
        return {**data, "text/html": self.view["html"]}, metadata

    def _on_message(self, _: object, message: dict[str, Any], buffers: object) -> None:
        step = self._steps[-1]
        try:
            match message:
                case {"like": str(image_id)}:
                    self._go(_Step(query={"id": image_id}))
                case {"toward": str(image_id)}:
                    self._go(replace(step, other={"id": image_id}, share=0.5, page=0))
                case {"share": int() | float() as share}:
                    self._go(replace(step, share=min(1.0, max(0.0, share)), page=0))
                case {"page": int(page)}:
                    self._go(replace(step, page=max(0, page)))
                case {"back": True} if len(self._steps) > 1:
                    self._show(self._steps[-2])
                    self._steps.pop()
        except (ApiError, EmbedderError, CollectionError, OSError) as error:
            # Keep the current view: an exception would end up in a log that nobody sees.
            self.view = {**self.view, "error": str(error)}
        else:
            self.view = self._view()

    def _go(self, step: _Step) -> None:
        self._show(step)
        self._steps.append(step)

    def _show(self, step: _Step) -> None:
        parts: list[Example] = [{**step.query, "weight": round(1 - step.share, 2)}]
        if step.other is not None:
            parts.append({**step.other, "weight": round(step.share, 2)})
        mixed = [part for part in parts if part["weight"]]
        queries = [{**mixed[0], "weight": 1.0}] if len(mixed) == 1 else mixed
        first = step.page * self._k
        if first + self._k > MAX_K:
            raise InvalidRequest(f"only the first {MAX_K:,} matches can be shown")
        options: dict[str, Any] = {**self._options, "queries": queries, "k": self._k, "offset": first}
        if options.get("words") == "only" and (len(queries) > 1 or "text" not in queries[0]):
            del options["words"]
        self._results = self._search(**options)

    def _view(self) -> dict[str, Any]:
        step = self._steps[-1]
        return {
            "html": self._results._repr_html_(),
            "ids": [match.image_id for match in self._results],
            "error": "",
            "ends": step.ends,
            "share": step.share,
            "page": step.page,
            "has_more": self._results.cursor is not None and (step.page + 2) * self._k <= MAX_K,
            "can_go_back": len(self._steps) > 1,
        }


def _name(example: Example) -> str:
    for name in ("text", "id", "url"):
        if name in example:
            return str(example[name])
    return "a picture" if "image" in example else "a vector"
