"""The result of a search, in this process and over HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass

from embedder.identity import ModelIdentity
from index.match import Match


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Matches, best first, with the index version and model.

    `searched` of the `ntotal` images were searched: fewer than all if a part of the index did not answer and the caller
    allowed that. `timing_ms`: fetch, decode and embed, if the query needed them, search and total.
    """

    matches: list[Match]
    version: str
    ntotal: int
    searched: int
    model: ModelIdentity
    timing_ms: Mapping[str, float]
