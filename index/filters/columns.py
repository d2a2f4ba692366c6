"""The columns that filters and facets read: their types, as messages name them, and their values in Arrow's batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.rows import JSON, conform, is_list
from index.errors import FilterError
from index.filters.operands import KINDS, OPAQUE, Kind, is_time

Mask = npt.NDArray[np.bool_]

_MAX_LISTED = 30  # columns in a message
_MAX_SHOWN = 60  # characters of a type or a value in a message


class ColumnError(FilterError):
    """A column, or a condition on it, is wrong. `Filter.parse` adds the known columns, which `expected` defaults to."""


@dataclass(frozen=True)
class Column:
    name: str
    type: pa.DataType
    """The type in the schema, see `_unwrapped`."""
    element: pa.DataType
    kind: Kind

    @classmethod
    def of(cls, column: pa.Field[Any]) -> Column:
        unwrapped: Any = _unwrapped(column.type)
        element = unwrapped.value_type if is_list(unwrapped) else unwrapped
        return cls(column.name, unwrapped, element, next(kind for kind in KINDS if kind.includes(element)))

    def __reduce__(self) -> Any:
        return Column.of, (pa.field(self.name, self.type),)  # the functions of its kind cannot be pickled

    def __str__(self) -> str:
        return f"{self.name} ({_abbreviate(type_name(self.type))}{', $exists alone' if self.kind is OPAQUE else ''})"

    @property
    def title(self) -> str:
        return f"column {self.name!r} ({_abbreviate(type_name(self.type))})"

    @property
    def comparison_type(self) -> pa.DataType:
        """The type to which elements are cast for comparison, because Arrow lacks kernels for some types."""
        if pa.types.is_string_view(self.element) or pa.types.is_null(self.element):
            return pa.string()
        if pa.types.is_date32(self.element) or pa.types.is_time32(self.element):
            return pa.int32()
        if is_time(self.element) or pa.types.is_time64(self.element) or pa.types.is_duration(self.element):
            return pa.int64()
        if pa.types.is_decimal(self.element):
            return pa.decimal256(self.element.precision, self.element.scale)
        return pa.float32() if pa.types.is_float16(self.element) else self.element

    def values(self, operator: str, operands: list[object]) -> list[Any]:
        """The operands, converted for comparison with the column's elements."""
        values = []
        for operand in operands:
            value = self.kind.read(operand, self.element)
            if value is None:
                raise self.refusal(operator, self.kind.expected, operand)
            values.append(value)
        return values

    def refusal(self, operator: str, expected: str, operand: object) -> ColumnError:
        got = describe(operand)
        return self.error(f"{operator} takes {expected}, got {got}", f"{expected} for {operator} of {self.title}", got)

    def error(self, problem: str, expected: str, got: str) -> ColumnError:
        return ColumnError(f"{self.title}: {problem}", expected, got)

    def read(self, batch: pa.RecordBatch) -> Any:
        """The column as one array of `type`."""
        present = [self.name] if self.name in batch.schema.names else []
        table = conform(pa.Table.from_batches([batch.select(present)]), pa.schema([pa.field(self.name, self.type)]))
        chunks = table.column(0).chunks
        return chunks[0] if chunks else pa.array([], self.type)

    def present(self, batch: pa.RecordBatch) -> Mask:
        """Which rows have a value; NaN is none, as an answer shows it as null."""
        return ~_mask_of(self.read(batch).is_null(nan_is_null=True))

    def any_element(self, batch: pa.RecordBatch, compare: Callable[[Any, Any], Any], value: object) -> Mask:
        """Which rows have a value, or any element of it, that passes. `compare` takes an Arrow array and `value`, and
        returns booleans, where null counts as false.
        """
        array = self.read(batch)
        if not is_list(self.type):
            return _mask_of(compare(array.cast(self.comparison_type), value))
        offsets = array.offsets.to_numpy()
        elements = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        # Counts the hits before each list's start and end; they differ if the list has a hit.
        passed = _mask_of(compare(elements.cast(self.comparison_type), value))
        hits = np.concatenate([[0], np.cumsum(passed)])[offsets - offsets[0]]
        matches: Mask = (hits[1:] > hits[:-1]) & _mask_of(array.is_valid())  # a null list may still have elements
        return matches


def type_name(kind: pa.DataType) -> str:
    return "json" if kind == JSON else str(kind)


def list_columns(columns: Collection[Column]) -> str:
    more = f" and {len(columns) - _MAX_LISTED:,} more" if len(columns) > _MAX_LISTED else ""
    return (", ".join(map(str, itertools.islice(columns, _MAX_LISTED))) or "none") + more


def _mask_of(booleans: Any) -> Mask:
    mask: Mask = booleans.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _unwrapped(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries and fixed lengths; Arrow can cast to it."""
    inner: Any = kind
    if pa.types.is_dictionary(kind):
        return inner.value_type  # type: ignore[no-any-return]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_unwrapped(inner.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_unwrapped(inner.value_type))
    return kind


def describe(value: object) -> str:
    """A JSON value in a message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list" if value else "an empty list"
    return _abbreviate(repr(value) if isinstance(value, str) else json.dumps(value))


def _abbreviate(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
