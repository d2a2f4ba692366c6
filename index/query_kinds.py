"""Kinds of queries: on them depends how far a search has to look, and what its scores mean."""

from collections.abc import Sequence
from typing import Final, Literal, get_args

QueryKind = Literal["image", "mix", "contrast", "text"]
"""An image; a mix of several; one in which some have a negative weight; words."""

KINDS: Final[tuple[QueryKind, ...]] = get_args(QueryKind)

Source = Literal["image", "text", "vector"]
"""What a part of a query was made from. A vector that somebody sends may be of anything."""


def kind_of(parts: Sequence[tuple[Source, float]]) -> QueryKind | None:
    """The kind of a query of these parts, each with its weight. None for those that nothing was measured with: sent
    vectors, words beside images, unlike words, or unlike everything.
    """
    weights = [weight for _, weight in parts]
    sources = {source for source, _ in parts}
    if max(weights, default=0) <= 0:
        return None
    if sources == {"image"}:
        return "contrast" if min(weights) < 0 else "mix" if len(weights) > 1 else "image"
    return "text" if sources == {"text"} and min(weights) > 0 else None
