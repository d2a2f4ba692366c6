"""Facets: the values of a column that many images share, and how many have each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import FIXED_COLUMNS, is_text, is_time
from index.errors import OptionError
from index.filters.columns import Column

MAX_ROWS = 1_000_000
"""Maximum number of rows that are counted; if there are more, every n-th block is."""
MAX_DISTINCT = 1_000
"""A column with more distinct values has no facet."""

MAX_MONTHS = 24
"""With more distinct months, the facet of a time has years."""

Value: TypeAlias = str | int | bool


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many of the `rows` that were counted have each value, by column."""

    rows: int
    values: Mapping[str, Counter[Value]]

    @classmethod
    def total(cls, parts: Iterable[Counts], names: Iterable[str], max_distinct: int | None = None) -> Counts:
        """The sum for the columns among `names` that have few values in all parts."""
        parts = list(parts)
        values = {
            name: sum((part.values[name] for part in parts), Counter[Value]())
            for name in names
            if all(name in part.values for part in parts)
        }
        few = {name: counter for name, counter in values.items() if len(counter) <= (max_distinct or MAX_DISTINCT)}
        return cls(rows=sum(part.rows for part in parts), values=few)

    def shared(self, schema: pa.Schema) -> list[str]:
        """The columns whose values images share: a value has two images or more, on average. For a time, a year has,
        because a small collection may have one picture per month.
        """
        distinct = {
            name: {str(value)[:4] for value in counter} if is_time(schema.field(name).type) else counter
            for name, counter in self.values.items()
        }
        return [name for name, values in distinct.items() if values and 2 * len(values) <= self.values[name].total()]


def facet_columns(schema: pa.Schema) -> list[str]:
    """Names of the columns that may have facets: text, integers, booleans and times; the source's, then `format`."""
    metadata = [field for field in schema if field.name not in FIXED_COLUMNS]
    names = [field.name for field in metadata if is_countable(Column.of(field).element)]
    return [*names, "format"] if "format" in schema.names else names


def count_values(
    batches: Iterable[pa.RecordBatch], columns: Iterable[Column], max_distinct: int | None = None
) -> Counts:
    """Counts the values of these columns; drops a column as soon as it has too many, or values of different types."""
    counters: dict[Column, Counter[Value]] = {column: Counter() for column in columns}
    rows = 0
    for batch in batches:
        rows += len(batch)
        for column in list(counters) if len(batch) else []:
            with suppress(OptionError):
                counters[column].update(_counts(column.read(batch)))
                if len(counters[column]) <= (max_distinct or MAX_DISTINCT):
                    continue
            del counters[column]
    return Counts(rows=rows, values={column.name: counter for column, counter in counters.items()})


def _counts(array: Any) -> dict[Value, int]:
    """How many rows have each value."""
    is_list, array = pa.types.is_nested(array.type), array.drop_null()
    elements = array.flatten() if is_list else array
    if is_time(elements.type):  # by month, in UTC if it has a time zone; without times that Python cannot represent
        times, seconds = elements.cast(pa.timestamp("us"), safe=False), elements.cast(pa.timestamp("s"), safe=False)
        bounds = pa.array([datetime.min, datetime.max], pa.timestamp("us")).cast(pa.timestamp("s"), safe=False)
        valid = pc.and_(pc.greater_equal(seconds, bounds[0]), pc.less_equal(seconds, bounds[1]))
        elements = pc.if_else(valid, pc.strftime(times, format="%Y-%m"), pa.scalar(None, pa.string()))
    if is_list:  # an image counts once, even if its list has a value several times
        table = pa.table({"row": pc.list_parent_indices(array), "value": elements})
        elements = table.group_by(["row", "value"], use_threads=False).aggregate([])["value"]
    counted = elements.drop_null().value_counts()
    values, counts = counted.field("values").to_pylist(), counted.field("counts")
    return dict(zip(values, np.from_dlpack(counts).tolist(), strict=True))


def is_countable(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_time(kind)


def periods(months: Counter[Value]) -> list[tuple[str, int, dict[str, str]]]:
    """Months such as "2024-05", or their years if there are more than `MAX_MONTHS`, latest first: each with its count
    and the condition of a filter for it.
    """
    by_month = len(months) <= MAX_MONTHS
    counts = Counter[str]()
    for month, count in months.items():
        counts[str(month) if by_month else str(month).partition("-")[0]] += count
    return [(period, counts[period], _condition(period)) for period in sorted(counts, reverse=True)]


def _condition(period: str) -> dict[str, str]:
    year, _, month = period.partition("-")
    first = int(year) * 12 + (int(month) - 1 if month else 0)
    bounds = (first, first + (1 if month else 12))
    low, high = (f"{at // 12:04}-{at % 12 + 1:02}-01" for at in bounds)
    return {"$gte": low} | ({"$lt": high} if len(high) == len(low) else {})  # ISO 8601 has no year 10000
