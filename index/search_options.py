"""The options of a search: their names, types, bounds and defaults, for HTTP, Python and the command line."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeGuard, get_type_hints

import numpy as np
import numpy.typing as npt
from pydantic import Field, GetPydanticSchema, PlainValidator, WithJsonSchema
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict  # pydantic refuses `typing.TypedDict` before Python 3.12

from index.errors import OptionError

DEFAULT_K = 10
MAX_K = 10_000
"""Maximum of `k + offset`."""

MAX_DIVERSE = 1_000
"""Maximum of `k + offset` with `diversity`, whose cost grows with its square."""

BEST_FIRST: Final = "-score"
"""The default order of matches, if there is a query."""

DISTINCT: Final = 0.98
"""Default minimum cosine of duplicates."""

PICTURE_FIELDS: Final = ("width", "height", "format", "size", "modified")
"""Columns besides the metadata that `fields` may name."""

_Names = Annotated[Sequence[str], GetPydanticSchema(lambda _, schema_of: schema_of(list[str]))]


def duplicate_cosine(distinct: object) -> float | None:
    """The minimum cosine of duplicates that an option `distinct` stands for. ValueError says what was expected."""
    if distinct is None or distinct is False:
        return None
    if distinct is True:
        return DISTINCT
    if isinstance(distinct, int | float | np.number) and -1 <= distinct <= 1:
        return float(distinct)
    raise ValueError(f"a cosine from -1 to 1, or true for {DISTINCT}")


class SearchOptions(TypedDict, total=False):
    """Which neighbours of a query to return. `Searcher.search`, the client and the notebook take these as keywords,
    where None counts as absent; servers as fields, and `likeness search` as options: their names, types, bounds and
    descriptions are read here. `QueryLimits.checked` checks what callers in Python pass, and what depends on several.
    """

    offset: Annotated[
        int | None,
        Field(
            json_schema_extra={"minimum": 0, "maximum": MAX_K},  # checked with k
            description=f"how many matches to skip, by default none; k + offset may be at most {MAX_K:,}",
        ),
    ]
    min_score: Annotated[
        float | None, Field(ge=-1, le=1, allow_inf_nan=False, description="the lowest cosine of a match")
    ]
    filter: Annotated[
        Annotated[Mapping[str, Any], GetPydanticSchema(lambda _, schema_of: schema_of(dict[str, Any]))] | None,
        Field(
            description="a condition on columns, in MongoDB's syntax: a value, or $eq $ne $in $nin $gt $gte $lt $lte "
            "$exists $prefix $match, combined by $and $or $not",
            examples=[{"label": "cat", "width": {"$gte": 640}}],
        ),
    ]
    distinct: Annotated[
        Annotated[float, Field(ge=-1, le=1)] | bool | None,
        PlainValidator(duplicate_cosine),
        WithJsonSchema({"anyOf": [{"type": "number", "minimum": -1, "maximum": 1}, {"type": "boolean"}]}),
        Field(
            description=f"return only the best of images with this cosine or more between them; true means {DISTINCT}",
            examples=[True, DISTINCT],
        ),
    ]
    diversity: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            allow_inf_nan=False,
            description="how much to prefer images that differ from the matches before them: 0 ranks by score alone, 1 "
            f"by difference alone; k + offset may then be at most {MAX_DIVERSE:,}",
        ),
    ]
    sort: Annotated[
        str | None,
        Field(
            description="the column to sort by, ascending, or descending with - before its name; `score` is the score. "
            "By default the best come first, and without a query it is by id. Images without a value come last",
            examples=["-width"],
        ),
    ]
    group_by: Annotated[
        str | None,
        Field(
            description="return the first image of each group that has the same value of this column, or of a time the "
            "same day, with the group's size",
            examples=["label"],
        ),
    ]
    facets: Annotated[
        _Names | None,
        Field(max_length=100, description="columns whose values to count among all images found", examples=[["label"]]),
    ]
    fields: Annotated[
        _Names | None,
        Field(
            max_length=1_000,
            description=f"metadata columns to return, and any of {', '.join(PICTURE_FIELDS)}; by default all metadata",
            examples=[["label"]],
        ),
    ]


OF_VECTORS: Final = ("min_score", "distinct", "diversity")
"""Options that are about vectors and their scores: they need a query that has some."""


def sort_of(option: str) -> tuple[str, bool]:
    """The column of an option `sort`, and whether it is descending."""
    return option.removeprefix("-"), option.startswith("-")


def columns_by_option(options: SearchOptions) -> dict[str, Sequence[str]]:
    """The columns, or `score`, to sort, group and count by."""
    sort, group_by = options.get("sort"), options.get("group_by")
    return {
        "sort": [] if sort is None else [sort_of(sort)[0]],
        "group_by": [] if group_by is None else [group_by],
        "facets": options.get("facets") or [],
    }


def is_set(options: Mapping[str, Any], name: str) -> bool:
    """Whether an option asks for something: a lowest score of 0 does, a diversity of 0 does not."""
    value = options.get(name)
    return bool(value) if name == "diversity" else value is not None and value is not False


@dataclass(frozen=True)
class Place:
    """Where a page ended: after `seen` matches, with the image `image_id` at this `position` of the index, whose key is
    `key` if the order is by score. Without a position the next page begins at the offset `seen`. The first page of the
    search had ended after `first`.
    """

    seen: Annotated[int, Field(ge=0, le=2**53)]
    first: Annotated[int, Field(ge=1, le=MAX_K)]
    image_id: str = ""
    position: Annotated[int, Field(ge=0)] | None = None
    key: float | None = None


@dataclass(frozen=True, kw_only=True)
class QueryLimits:
    """Which of a query's neighbours to return: `k` after the first `offset`, of those that meet the conditions."""

    k: int
    offset: int
    min_score: float
    distinct: float | None
    diversity: float
    exclude: frozenset[str]

    @classmethod
    def checked(cls, k: object, options: SearchOptions, exclude: Iterable[str] = ()) -> QueryLimits:
        """OptionError for the first option that is invalid."""
        k, offset = checked_k(k), _or(options.get("offset"), 0)
        if not is_whole(offset) or not 0 <= offset <= MAX_K - k:
            raise OptionError("offset", offset, f"a whole number from 0 to {MAX_K - k:,}: k + offset is limited")
        diversity = checked_number("diversity", _or(options.get("diversity"), 0.0))
        if diversity and k + offset > MAX_DIVERSE:
            expected = f"k + offset of at most {MAX_DIVERSE:,} with it, not {k + offset:,}"
            raise OptionError("diversity", diversity, expected)
        for name in ("sort", "group_by"):
            if not isinstance(value := options.get(name), str | None):
                raise OptionError(name, value, "the name of a column")
            for other in ("distinct", "diversity"):
                if value not in (None, BEST_FIRST) and is_set(options, other):
                    raise OptionError(other, options.get(other), f"none with {name}, because it keeps the best first")
        if isinstance(exclude, str):  # whose characters would be taken for ids
            raise OptionError("exclude", exclude, "a set or a list of ids")
        try:
            distinct = duplicate_cosine(options.get("distinct"))
        except ValueError as error:
            raise OptionError("distinct", options.get("distinct"), str(error)) from error
        return cls(
            k=k,
            offset=int(offset),
            min_score=-math.inf if (score := options.get("min_score")) is None else checked_min_score(score),
            distinct=distinct,
            diversity=diversity,
            exclude=frozenset(exclude),
        )

    @property
    def has_all_scores(self) -> bool:
        """Whether every score is within the bounds."""
        return self.min_score == -math.inf

    def within(self, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which of the scores, rounded as answers show them, are within the bounds."""
        return scores >= self.min_score

    @property
    def depth(self) -> int:
        return self.k + self.offset

    @property
    def is_by_rank(self) -> bool:
        """Whether what a page has depends on all matches before it."""
        return self.distinct is not None or self.diversity > 0


def checked_k(k: object, maximum: int = MAX_K) -> int:
    """How many matches to return: the default for None. OptionError for anything but a number up to the maximum."""
    k = _or(k, DEFAULT_K)
    if not is_whole(k) or not 1 <= k <= maximum:
        raise OptionError("k", k, f"a whole number from 1 to {maximum:,}")
    return int(k)


def column_names(option: str, names: object) -> tuple[str, ...]:
    """The columns that an option lists, none for None. OptionError for anything but a list of texts."""
    if names is None:
        return ()
    if isinstance(names, str | Mapping) or not isinstance(names, Collection):
        raise OptionError(option, names, "a list of columns")
    if not all(isinstance(name, str) for name in names):
        raise OptionError(option, names, "a list of columns")
    return tuple(names)


def checked_min_score(value: object) -> float:
    return checked_number("min_score", value)


def checked_number(name: str, value: object, options: type = SearchOptions) -> float:
    """`value` as a float. OptionError if it is no number within the bounds that the option `name` declares."""
    low, high = _bounds(options, name)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        raise OptionError(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


@cache
def _bounds(options: type, name: str) -> tuple[float, float]:
    declared = FieldInfo.from_annotation(get_type_hints(options, include_extras=True)[name]).metadata
    [low], [high] = ([getattr(each, end) for each in declared if hasattr(each, end)] for end in ("ge", "le"))
    return low, high


def _or(value: Any, default: float) -> Any:
    return default if value is None else value


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
