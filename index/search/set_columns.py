"""The columns that a search sorts, groups and counts by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from index.collection.rows import is_list, is_time
from index.errors import OptionError
from index.filters.columns import OPAQUE, Column, list_columns
from index.filters.facets import is_countable
from index.search.result_set import Order
from index.search_options import BEST_FIRST, OF_VECTORS, SearchOptions, column_names, is_set, sort_of

_SCORE: Final = "score"


def require_no_scores(options: SearchOptions) -> None:
    """OptionError for an option that needs the scores of a query."""
    for name in OF_VECTORS:
        if is_set(options, name):
            raise OptionError(name, options.get(name), "a query with it, because there are no scores without one")


def order_of(schema: pa.Schema, sort: str | None, *, is_ranked: bool) -> Order:
    """The order that the option `sort` names. OptionError for a column that cannot be sorted by."""
    if sort is None:
        sort = BEST_FIRST if is_ranked else "image_id"
    name, descending = sort_of(sort)
    if name == _SCORE:
        if not is_ranked:
            raise OptionError("sort", sort, "a column, because images have no score without a query")
        return Order(None, descending)
    return Order(_column(schema, "sort", name, can_sort), descending)


def grouped_by(schema: pa.Schema, name: str | None) -> Column | None:
    """The column that the option `group_by` names. OptionError for one that cannot be grouped by."""
    return None if name is None else _column(schema, "group_by", name, can_group)


def counted(schema: pa.Schema, names: object) -> tuple[Column, ...]:
    """The columns that the option `facets` names. OptionError for one whose values cannot be counted."""
    distinct = dict.fromkeys(column_names("facets", names))
    return tuple(_column(schema, "facets", name, lambda column: is_countable(column.element)) for name in distinct)


def can_sort(column: Column) -> bool:
    """Whether images can be sorted by its values: one for each image, which compare, and fit DuckDB's types."""
    return column.kind is not OPAQUE and not is_list(column.type) and not pa.types.is_decimal256(column.element)


def can_group(column: Column) -> bool:
    """Whether images can be grouped by its values, or by the days of its times."""
    return can_sort(column) and is_countable(column.element)


def group_type(column: Column) -> pa.DataType:
    """The type of the groups that answers show: days are texts."""
    return pa.string() if is_time(column.element) else column.comparison_type


def _column(schema: pa.Schema, option: str, name: object, fits: Callable[[Column], bool]) -> Column:
    fitting = {column.name: column for column in map(Column.of, schema) if fits(column)}
    if not isinstance(name, str) or name not in fitting:
        raise OptionError(option, name, f"one of the columns {list_columns([*fitting.values()])}")
    return fitting[name]
