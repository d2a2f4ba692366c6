"""The columns that a search sorts, groups and counts by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from index.collection.rows import is_list
from index.errors import OptionError
from index.filters.columns import OPAQUE, Column, list_columns
from index.filters.facets import is_countable
from index.search.result_set import Order
from index.search_options import BEST_FIRST, SearchOptions, column_names, is_set

_SCORE: Final = "score"
_OF_A_QUERY: Final = ("min_score", "distinct", "diversity")


@dataclass(frozen=True)
class SetColumns:
    order: Order
    group_by: Column | None
    facets: tuple[Column, ...]

    @classmethod
    def of(cls, schema: pa.Schema, options: SearchOptions, *, has_query: bool, has_words: bool) -> SetColumns:
        """Those that the options name. OptionError for one that cannot be used like that, or needs a query."""
        if not has_query:
            for name in _OF_A_QUERY:
                if is_set(options, name):
                    raise OptionError(
                        name, options.get(name), "a query with it, because there are no scores without one"
                    )
        is_ranked = has_query or has_words
        sort, group_by, facets = options.get("sort"), options.get("group_by"), options.get("facets")
        if sort is None:
            sort = BEST_FIRST if is_ranked else "image_id"
        return cls(
            _order(schema, sort, is_ranked=is_ranked),
            None if group_by is None else _column(schema, "group_by", group_by, can_group),
            tuple(
                _column(schema, "facets", name, _can_count) for name in dict.fromkeys(column_names("facets", facets))
            ),
        )


def can_sort(column: Column) -> bool:
    """Whether images can be sorted by its values: one for each image, which compare, and fit DuckDB's types."""
    return column.kind is not OPAQUE and not is_list(column.type) and not pa.types.is_decimal256(column.element)


def can_group(column: Column) -> bool:
    """Whether images can be grouped by its values, or by the days of its times."""
    return can_sort(column) and is_countable(column.element)


def _can_count(column: Column) -> bool:
    return is_countable(column.element)


def _order(schema: pa.Schema, sort: str, *, is_ranked: bool) -> Order:
    name = sort.removeprefix("-")
    if name == _SCORE:
        if not is_ranked:
            raise OptionError("sort", sort, "a column, because images have no score without a query")
        return Order(None, sort.startswith("-"))
    return Order(_column(schema, "sort", name, can_sort), sort.startswith("-"))


def _column(schema: pa.Schema, option: str, name: object, fits: Callable[[Column], bool]) -> Column:
    fitting = {column.name: column for column in map(Column.of, schema) if fits(column)}
    if not isinstance(name, str) or name not in fitting:
        raise OptionError(option, name, f"one of the columns {list_columns([*fitting.values()])}")
    return fitting[name]
