"""Facets: the values of a column that many images share, and how many have each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import FIXED_COLUMNS
from index.filters.columns import Column, Mask, is_text, is_time

MAX_ROWS = 1_000_000
"""Rows that are looked at; of more, every n-th batch."""
MAX_DISTINCT = 1_000
"""A column with more distinct values has no facet."""

MAX_MONTHS = 24
"""Of more, a time's facet has years."""

Value: TypeAlias = str | int | bool
Batches: TypeAlias = Iterable[tuple[pa.RecordBatch, Mask | None]]
"""Batches with the rows of them that count; None: all."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many of the `rows` that were looked at have each value, by column."""

    rows: int
    values: Mapping[str, Counter[Value]]

    @classmethod
    def total(cls, parts: Iterable[Counts], names: Iterable[str]) -> Counts:
        """The sum, of the columns among `names` that have few values in all parts."""
        parts = list(parts)
        values = {
            name: sum((part.values[name] for part in parts), Counter[Value]())
            for name in names
            if all(name in part.values for part in parts)
        }
        few = {name: counter for name, counter in values.items() if len(counter) <= MAX_DISTINCT}
        return cls(rows=sum(part.rows for part in parts), values=few)

    def shared(self, schema: pa.Schema) -> list[str]:
        """The columns whose values images share: each value is that of two images or more, on average. Of a time, each
        year is: a small collection may have a picture of each month.
        """
        kinds = {
            name: {str(value)[:4] for value in counter} if is_time(schema.field(name).type) else counter
            for name, counter in self.values.items()
        }
        return [name for name, kinds in kinds.items() if kinds and 2 * len(kinds) <= self.values[name].total()]


def facet_columns(schema: pa.Schema) -> list[str]:
    """Names of the columns that may have facets: of text, whole numbers, booleans and times, the source's first."""
    found = [
        field.name for field in schema if field.name not in FIXED_COLUMNS and _is_countable(Column.of(field).element)
    ]
    return [*found, "format"] if "format" in schema.names else found


def count_values(batches: Batches, columns: Iterable[Column]) -> Counts:
    """The counts of these columns. One that has too many values is left out as soon as that shows."""
    counters: dict[Column, Counter[Value]] = {column: Counter() for column in columns}
    rows = 0
    for batch, mask in batches:
        chosen = batch if mask is None else batch.filter(pa.array(mask))
        rows += len(chosen)
        for column in list(counters) if len(chosen) else []:
            counters[column].update(_counts(column.read(chosen)))
            if len(counters[column]) > MAX_DISTINCT:
                del counters[column]
    return Counts(rows=rows, values={column.name: counter for column, counter in counters.items()})


def sampling_step(rows: int) -> int:
    """How many batches of an index with so many rows there are to each that is looked at."""
    return max(1, math.ceil(rows / MAX_ROWS))


def _counts(array: Any) -> dict[Value, int]:
    elements = array.flatten() if hasattr(array, "flatten") and pa.types.is_nested(array.type) else array
    if is_time(elements.type):  # by month; one with a time zone by that of UTC
        elements = pc.strftime(elements.cast(pa.timestamp("us")), format="%Y-%m")
    counted = elements.drop_null().value_counts()
    values, counts = counted.field("values").to_pylist(), counted.field("counts")
    return dict(zip(values, np.from_dlpack(counts).tolist(), strict=True))


def _is_countable(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_time(kind)


def periods(months: Counter[Value]) -> list[tuple[str, int, dict[str, str]]]:
    """Years of a time's months such as "2024-05", or the months if they are few: each with its count and the condition
    that lets it through, the last first.
    """
    few = len(months) <= MAX_MONTHS
    counts = Counter[str]()
    for month, count in months.items():
        counts[str(month) if few else str(month).partition("-")[0]] += count
    return [(period, counts[period], _condition(period)) for period in sorted(counts, reverse=True)]


def _condition(period: str) -> dict[str, str]:
    year, _, month = period.partition("-")
    first = int(year) * 12 + (int(month) - 1 if month else 0)
    bounds = (first, first + (1 if month else 12))
    low, high = (f"{at // 12:04}-{at % 12 + 1:02}-01" for at in bounds)
    return {"$gte": low} | ({"$lt": high} if len(high) == len(low) else {})  # no time is written with a year 10000
