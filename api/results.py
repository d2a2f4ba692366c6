"""What a search answers, to those who ask in this process and to those who ask over HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass

from embedder.identity import ModelIdentity
from index.match import Match


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Matches, best first, and what found them.

    `searched` of the `ntotal` images were looked through: fewer than all where a part of the index did not answer and
    the caller allowed that. `timing_ms`: fetch, decode and embed, those that it took, search and total.
    """

    matches: list[Match]
    version: str
    ntotal: int
    searched: int
    model: ModelIdentity
    timing_ms: Mapping[str, float]
