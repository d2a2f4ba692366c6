"""Filters: conditions on the columns of rows, written as in MongoDB, evaluated by Arrow over whole batches.

    {"label": "cat", "width": {"$gte": 640}, "$or": [{"tags": {"$in": ["red", "blue"]}}, {"year": None}]}

Parsing checks everything against a schema and makes a tree, which is what is evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from index.collection.rows import JSON
from index.errors import FilterError
from index.filters.columns import OPAQUE, Column, ColumnError, Mask, describe, list_columns
from index.filters.operators import OPERATORS, And, Comparison, Condition, Not, Or, comparisons, mask
from index.filters.plain import plain_value

MAX_DEPTH = 32
"""Maximum nesting of `$and`, `$or` and `$not`."""
_MAX_CONDITIONS = 10_000
_MAX_VALUES = 100_000


@dataclass(frozen=True)
class Filter:
    """A condition on the columns of a row. Filters of one schema are equal if their keys are."""

    key: str
    """The expression as canonical JSON."""
    expression: Mapping[str, Any] = field(compare=False, repr=False)
    """As JSON has it."""
    tree: Condition = field(compare=False, repr=False)

    @classmethod
    def parse(cls, expression: Mapping[str, object], schema: pa.Schema) -> Self:
        """Parse an expression on the columns of `schema`. FilterError says what is wrong with it.

        A column of lists matches if any element does. Times are ISO 8601, to the microsecond, and in UTC without a
        zone. Operands of a float column are rounded to its type, so 0.1 matches a float32's 0.1. Operands may be times,
        sets, and values of NumPy and pandas; TypeError for others that JSON cannot represent.
        """
        try:
            plain = plain_value(expression)
        except RecursionError as error:
            raise _too_deep() from error
        _check_size(plain)
        by_name = {column.name: Column.of(column) for column in schema if not column.name.startswith("$")}
        try:
            tree = _expression(plain, by_name)
        except ColumnError as error:
            known = list_columns(by_name.values())
            message = f"{error}; columns that can be filtered: {known}"
            raise FilterError(message, error.expected or f"one of the columns {known}", error.got) from error
        return cls(json.dumps(plain, sort_keys=True), plain, tree)

    @property
    def typed_key(self) -> str:
        """The same for filters of all schemas that select the same rows of a segment."""
        types = {each.column.name: str(each.column.type) for each in comparisons(self.tree)}
        return f"{self.key} {json.dumps(types, sort_keys=True)}"

    def mask(self, batch: pa.RecordBatch, known: Mapping[Comparison, Mask] | None = None) -> Mask:
        """Which rows match, `(len(batch),)`. Missing columns are null, others cast; CollectionError if that fails.
        Results of some comparisons are `known`.
        """
        return mask(self.tree, batch, known or {})

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of the columns that it depends on."""
        return frozenset(each.column.name for each in comparisons(self.tree))

    @property
    def of_words(self) -> list[Comparison]:
        """The comparisons that an index of words can answer."""
        return [each for each in comparisons(self.tree) if each.operator == "$match"]


def named_columns(expression: object) -> Iterator[str]:
    """The columns that an expression as JSON names, be it valid or not."""
    rest = [expression]
    while rest:
        members = rest.pop()
        for name, operand in members.items() if isinstance(members, dict) else ():
            if not name.startswith("$"):
                yield name
            elif name in ("$and", "$or", "$not"):
                rest += operand if isinstance(operand, list) else [operand]


def _check_size(expression: object) -> None:
    """FilterError for too many conditions, each of which reads a column of every row, or too deep ones."""
    conditions = values = depth = 0
    rest = [(expression, depth)]
    while rest and conditions <= _MAX_CONDITIONS and values <= _MAX_VALUES and depth <= MAX_DEPTH:
        value, depth = rest.pop()
        if isinstance(value, dict):
            conditions += len(value)
            rest += [(operand, depth + (name in ("$and", "$or", "$not"))) for name, operand in value.items()]
        elif isinstance(value, list):
            values += len(value)
            rest += [(each, depth) for each in value]
    if depth > MAX_DEPTH:
        raise _too_deep()
    if rest:
        expected = f"a filter of at most {_MAX_CONDITIONS:,} conditions and {_MAX_VALUES:,} values"
        advice = "list the values of a column in one $in, or split the search"
        raise FilterError(f"expected {expected}, got more: {advice}", f"{expected} ({advice})", "more")


def _expression(expression: object, by_name: Mapping[str, Column]) -> And:
    if not isinstance(expression, dict):
        raise _refusal("a filter", "an object", expression)
    return And(tuple(_part(name, operand, by_name) for name, operand in expression.items()))


def _part(name: str, operand: object, by_name: Mapping[str, Column]) -> Condition:
    if name in by_name:
        return _conditions(by_name[name], operand if isinstance(operand, dict) else {"$eq": operand})
    if name in ("$and", "$or"):
        if not isinstance(operand, list) or not operand:
            raise _refusal(name, "a list of one or more objects", operand)
        parts = tuple(_expression(part, by_name) for part in operand)
        return And(parts) if name == "$and" else Or(parts)
    if name == "$not":
        return Not(_expression(operand, by_name))
    if name.startswith("$"):
        raise _unknown_operator(name)
    unknown = f"unknown column {describe(name)}"
    raise ColumnError(unknown, got=unknown)


def _conditions(column: Column, operators: Mapping[str, Any]) -> And:
    return And(tuple(_condition(column, operator, operand) for operator, operand in operators.items()))


def _condition(column: Column, operator: str, operand: object) -> Condition:
    if operator == "$not":
        if not isinstance(operand, dict):
            raise column.refusal(operator, "an object", operand)
        return Not(_conditions(column, operand))
    if operator not in OPERATORS:
        raise _unknown_operator(operator)
    if column.kind is OPAQUE and operator != "$exists":
        nested = column.element == JSON or pa.types.is_nested(column.element)
        has = "holds nested values, which filters cannot look into" if nested else "has a type that cannot be compared"
        problem = f"it {has}: only $exists works, got {operator}"
        raise column.error(problem, f"only $exists of {column.title}", operator)
    return OPERATORS[operator].read(column, operator, operand)


def _refusal(subject: str, expected: str, operand: object) -> FilterError:
    got = describe(operand)
    return FilterError(f"{subject} takes {expected}, got {got}", f"{expected} for {subject}", got)


def _too_deep() -> FilterError:
    expected = "fewer of $and, $or and $not"
    return FilterError(f"the filter is nested deeper than {MAX_DEPTH} levels: expected {expected}", expected, "more")


def _unknown_operator(name: object) -> FilterError:
    unknown = f"unknown operator {describe(name)}"
    known = f"on a column: {', '.join([*OPERATORS, '$not'])}; on whole filters: $and, $or, $not"
    return FilterError(f"{unknown}; {known}", f"an operator {known}", unknown)
