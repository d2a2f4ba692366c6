"""The state of an exploration of a collection: the query, the page, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from api.client.query import Example, Search
from api.errors import InvalidRequest
from api.explore.neighbours import Neighbours
from index.search_options import MAX_K

Find: TypeAlias = Callable[[Search], Neighbours]


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One search: by `query`, or by a mix in which `other` has the weight `share`, from 0 to 1."""

    query: Example
    other: Example | None = None
    share: float = 0.0
    page: int = 0


class Exploration:
    """Searches, one after another. If a method's search raises, the state does not change.

    `options` apply to each search, and their `k` is the number of matches on a page. `results` is the current page.
    """

    def __init__(self, find: Find, query: Example, other: Example | None, options: Search) -> None:
        self._find = find
        self._options = options
        self._k = options.get("k") or 18
        self._steps: list[_Step] = []
        self._go(_Step(query=query, other=other, share=0.5 if other else 0.0))

    @property
    def page(self) -> int:
        return self._steps[-1].page

    @property
    def share(self) -> float:
        return self._steps[-1].share

    @property
    def ends(self) -> list[str]:
        """Names of the two queries at the ends of the slider; empty if there is only one."""
        step = self._steps[-1]
        return [] if step.other is None else [_name(step.query), _name(step.other)]

    @property
    def can_go_back(self) -> bool:
        return len(self._steps) > 1

    def like(self, image_id: str) -> None:
        self._go(_Step(query={"id": image_id}))

    def toward(self, image_id: str) -> None:
        """Make an image the other end of the slider, and mix both queries equally."""
        self._go(replace(self._steps[-1], other={"id": image_id}, share=0.5, page=0))

    def slide(self, share: float) -> None:
        """Mix the two queries: 0 is the first alone, 1 is the other."""
        self._go(replace(self._steps[-1], share=min(1.0, max(0.0, share)), page=0))

    def turn_to(self, page: int) -> None:
        self._go(replace(self._steps[-1], page=max(0, page)))

    def back(self) -> None:
        """Undo the last step; does nothing at the first."""
        if self.can_go_back:
            self._steps.pop()
            self._show(self._steps[-1])

    def _go(self, step: _Step) -> None:
        self._show(step)
        self._steps.append(step)

    def _show(self, step: _Step) -> None:
        """Search for one match more than fits on a page, to know whether there is a next page."""
        parts: list[Example] = [{**step.query, "weight": round(1 - step.share, 2)}]
        if step.other is not None:
            parts.append({**step.other, "weight": round(step.share, 2)})
        mixed = [part for part in parts if part["weight"] > 0]
        query: Search = {"queries": [{**mixed[0], "weight": 1.0}] if len(mixed) == 1 else mixed}
        first = step.page * self._k
        if first + self._k > MAX_K:
            raise InvalidRequest(f"only the first {MAX_K:,} matches can be shown")
        results = self._find({**self._options, **query, "k": min(self._k + 1, MAX_K - first), "offset": first})
        self.has_more = len(results) > self._k
        self.results = replace(results, matches=results.matches[: self._k])


def _name(example: Example) -> str:
    for name in ("text", "id", "url"):
        if name in example:
            return str(example[name])
    return "a picture" if "image" in example else "a vector"
