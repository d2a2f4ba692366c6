"""A page of the set of images that a query and a filter select, and how parts of it are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from index.arrays import Vectors
from index.errors import OptionError
from index.filters.columns import Column
from index.filters.facets import Counts
from index.filters.filter import Filter
from index.matches import Match
from index.search_options import Place, QueryLimits
from index.words.ranked import WordQuery

MAX_VALUES: Final = 100_000
"""Maximum of different values of a column that are counted among the images of a set."""


@dataclass(frozen=True)
class Order:
    """By a column, or by score if that is None; then by id and by position: an id may be in several collections. Images
    without a value come last.
    """

    column: Column | None
    descending: bool = False


BEST: Final = Order(None, descending=True)


@dataclass(frozen=True, kw_only=True)
class SetRequest:
    """The first `depth` images, or groups of them, `after` the one with this key, id and position. The search for the
    first page looked for the `first` ones.

    `query` is `(1, dim)`, unit norm. Searches look `width` times as far as the index is tuned to. With `words` the set
    is what these find, and their scores are its order.
    """

    query: Vectors | None
    words: WordQuery | None
    limits: QueryLimits
    where: Filter | None
    width: float
    order: Order
    group_by: Column | None
    facets: tuple[Column, ...]
    after: tuple[Any, str, int] | None
    first: int
    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A page of a set of `total` images. `exact`: all images were compared, or the filter alone decides.

    `keys` are what the matches are sorted by, `positions` are theirs in the index. `group_sizes` are of all groups,
    None without groups, `facets` of the whole set, None if none was asked for. `end` is where the page ends, None if it
    is the last.
    """

    matches: Sequence[Match]
    keys: Sequence[Any]
    positions: Sequence[int]
    total: int
    exact: bool
    group_sizes: Mapping[Any, int] | None
    facets: Counts | None
    end: Place | None


@dataclass(slots=True)
class Hit:
    """An image of a page; with groups the first of its `group`. `key` is what it is sorted by.

    `score` is None without a query. The whole picture (`part` 0) or its n-th tile matches. `duplicates` are ids folded
    into it. In a search for words too, `words` are those that matched, by column, and `vector_rank` is None for one of
    the images that only have words. `row` is what a shard sends with it of the image's row.
    """

    key: Any
    image_id: str
    position: int
    score: float | None
    part: int = 0
    group: Any = None
    duplicates: list[str] = field(default_factory=list)
    words: Mapping[str, tuple[str, ...]] | None = None
    vector_rank: int | None = None
    row: Mapping[str, Any] | None = None

    @property
    def place(self) -> tuple[Any, str, int]:
        """What it is ordered by."""
        return self.key, self.image_id, self.position


@dataclass(frozen=True, kw_only=True)
class SetPage:
    """The `total` of a set, whether that is `exact`, the hits of a page, the sizes of all groups, and its facets.

    The next page is `after` the image with this key, id and position; None if it depends on all images before it.
    """

    total: int
    exact: bool
    hits: Sequence[Hit]
    group_sizes: Mapping[Any, int]
    facets: Counts
    after: tuple[Any, str, int] | None = None

    def of(self, hits: Sequence[Hit]) -> SetPage:
        """The page with these hits, after which the next one begins."""
        return replace(self, hits=hits, after=hits[-1].place if hits else None)

    @classmethod
    def merged(cls, pages: Sequence[SetPage], request: SetRequest) -> SetPage:
        """The page of several parts of an index, whose positions are those of the whole."""
        sizes: Counter[Any] = Counter()
        for page in pages:
            sizes.update(page.group_sizes)
        all_hits = (hit for page in pages for hit in page.hits)
        hits = merged_hits(all_hits, descending=request.order.descending, grouped=request.group_by is not None)
        return cls(
            total=sum(page.total for page in pages),
            exact=all(page.exact for page in pages),
            hits=hits[: request.depth],
            group_sizes=sizes,
            facets=Counts.total(
                (page.facets for page in pages), (column.name for column in request.facets), MAX_VALUES
            ),
        )

    def shifted(self, start: int) -> SetPage:
        """That of a part which begins at `start`, with positions in the whole."""
        return replace(self, hits=[replace(hit, position=hit.position + start) for hit in self.hits])

    def require_facets(self, request: SetRequest) -> None:
        """OptionError for a column that has too many values to count."""
        for column in request.facets:
            if column.name not in self.facets.values:
                expected = f"columns of one type with at most {MAX_VALUES:,} different values among the images found"
                raise OptionError("facets", column.name, expected)


def merged_hits(hits: Iterable[Hit], *, descending: bool, grouped: bool) -> list[Hit]:
    """The hits of several parts of a set in order; with groups the first of each."""
    by_id = sorted(hits, key=attrgetter("image_id"))
    known = [hit for hit in by_id if hit.key is not None]
    known.sort(key=attrgetter("key"), reverse=descending)
    ranked = [*known, *(hit for hit in by_id if hit.key is None)]
    if not grouped:
        return ranked
    first: dict[Any, Hit] = {}
    for hit in ranked:
        first.setdefault(hit.group, hit)
    return [*first.values()]
