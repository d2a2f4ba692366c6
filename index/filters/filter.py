"""Filters: conditions on the columns of rows, written as in MongoDB, evaluated by Arrow over whole batches.

    {"label": "cat", "width": {"$gte": 640}, "$or": [{"tags": {"$in": ["red", "blue"]}}, {"year": None}]}

Parsing checks everything against a schema and makes a tree. All else that asks what a filter says visits the tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, Self

import numpy as np
import pyarrow as pa

from index.collection.rows import JSON, REJECT_COLUMNS
from index.errors import FilterError
from index.filters.columns import Column, ColumnError, Mask, describe, list_columns
from index.filters.operands import OPAQUE
from index.filters.operators import OPERATORS
from index.filters.plain import plain_filter
from index.filters.tree import And, Comparison, Condition, Not, Or

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
    tree: And = field(compare=False, repr=False)
    """A part for each member of the expression, in its order."""

    @classmethod
    def parse(cls, expression: Mapping[str, object], schema: pa.Schema) -> Self:
        """Parse an expression on the columns of `schema`. FilterError says what is wrong with it.

        A column of lists matches if any element does. Times are ISO 8601, to the microsecond, and in UTC without a
        zone. Operands of a float column are rounded to its type, so 0.1 matches a float32's 0.1. It may have times,
        sets, and values of NumPy and pandas; TypeError for others that JSON cannot represent.
        """
        try:
            plain = plain_filter(expression)
        except RecursionError as error:
            raise _too_deep() from error
        _check_length(plain)
        columns = {column.name: Column.of(column) for column in schema if not column.name.startswith("$")}
        try:
            tree = _expression(plain, columns, depth=0)
        except ColumnError as error:
            known = list_columns(columns.values())
            message = f"{error}; columns that can be filtered: {known}"
            raise FilterError(message, error.expected or f"one of the columns {known}", error.got) from error
        return cls._of(plain, tree)

    @classmethod
    def _of(cls, expression: Mapping[str, Any], tree: And) -> Self:
        return cls(json.dumps(expression, sort_keys=True), expression, tree)

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """Which rows match, `(len(batch),)`. Missing columns are null, others cast; CollectionError if that fails."""
        return _mask(self.tree, batch)

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of the columns that it depends on."""
        return frozenset(_columns(self.tree))

    def without(self, column: str) -> Self:
        """The filter without the member of the expression that has a column's name."""
        members = zip(self.expression.items(), self.tree.parts, strict=True)
        rest = [(member, part) for member, part in members if member[0] != column]
        return self._of(dict(member for member, _ in rest), And(tuple(part for _, part in rest)))

    def conditions(self) -> Iterator[Self]:
        """The conditions that must all hold: the members of the expression, and those within `$and`."""
        for (name, operand), part in zip(self.expression.items(), self.tree.parts, strict=True):
            if name == "$and" and isinstance(part, And):
                for each, tree in zip(operand, part.parts, strict=True):
                    assert isinstance(tree, And)
                    yield from self._of(each, tree).conditions()
            else:
                yield self._of({name: operand}, And((part,)))


def filterable(schema: pa.Schema) -> pa.Schema:
    """The columns that filters may name: not those with the reason of a reject, which are null in embedded rows."""
    return pa.schema([field for field in schema if field.name not in REJECT_COLUMNS])


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


def _mask(condition: Condition, batch: pa.RecordBatch) -> Mask:
    match condition:
        case And(parts):
            return reduce(np.logical_and, (_mask(part, batch) for part in parts), np.ones(len(batch), bool))
        case Or(parts):
            return reduce(np.logical_or, (_mask(part, batch) for part in parts), np.zeros(len(batch), bool))
        case Not(part):
            return ~_mask(part, batch)
        case Comparison(column, operator, value):
            passing = OPERATORS[operator].mask
            assert passing is not None
            return passing(column, value, batch)


def _columns(condition: Condition) -> Iterator[str]:
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _columns(part)
        case Not(part):
            yield from _columns(part)
        case Comparison(column):
            yield column.name


def _check_length(expression: object) -> None:
    """FilterError for too many conditions, each of which reads a column of every row."""
    conditions = values = 0
    rest = [expression]
    while rest and conditions <= _MAX_CONDITIONS and values <= _MAX_VALUES:
        match rest.pop():
            case dict() as members:
                conditions += len(members)
                rest += members.values()
            case list() as elements:
                values += len(elements)
                rest += elements
    if rest:
        expected = f"a filter of at most {_MAX_CONDITIONS:,} conditions and {_MAX_VALUES:,} values"
        advice = "list the values of a column in one $in, or split the search"
        raise FilterError(f"expected {expected}, got more: {advice}", f"{expected} ({advice})", "more")


def _expression(expression: object, columns: Mapping[str, Column], depth: int) -> And:
    parts = _object(expression, "a filter", depth).items()
    return And(tuple(_part(name, operand, columns, depth) for name, operand in parts))


def _part(name: str, operand: object, columns: Mapping[str, Column], depth: int) -> Condition:
    if name in columns:
        return _conditions(columns[name], operand, depth)
    if name in ("$and", "$or"):
        if not isinstance(operand, list) or not operand:
            expected, got = "a list of one or more objects", describe(operand)
            raise FilterError(f"{name} takes {expected}, got {got}", f"{expected} for {name}", got)
        parts = tuple(_expression(part, columns, depth + 1) for part in operand)
        return And(parts) if name == "$and" else Or(parts)
    if name == "$not":
        return Not(_expression(operand, columns, depth + 1))
    if name.startswith("$"):
        raise _unknown_operator(name)
    unknown = f"unknown column {describe(name)}"
    raise ColumnError(unknown, got=unknown)


def _conditions(column: Column, operand: object, depth: int) -> Condition:
    """The condition for a column's operand: a value, or operators that must all be true."""
    if not isinstance(operand, dict):
        return _condition(column, "$eq", operand)
    return And(tuple(_condition(column, operator, value, depth) for operator, value in operand.items()))


def _condition(column: Column, operator: str, operand: object, depth: int = 0) -> Condition:
    if operator == "$not":
        if not isinstance(operand, dict):
            raise column.refusal(operator, "an object", operand)
        return Not(_conditions(column, _object(operand, operator, depth + 1), depth + 1))
    if operator not in OPERATORS:
        raise _unknown_operator(operator)
    if column.kind is OPAQUE and operator != "$exists":
        nested = column.element == JSON or pa.types.is_nested(column.element)
        has = "holds nested values, which filters cannot look into" if nested else "has a type that cannot be compared"
        problem = f"it {has}: only $exists works, got {operator}"
        raise column.error(problem, f"only $exists of {column.title}", operator)
    return OPERATORS[operator].read(column, operator, operand)


def _object(value: object, subject: str, depth: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        got = describe(value)
        raise FilterError(f"{subject} takes an object, got {got}", f"an object for {subject}", got)
    if depth > MAX_DEPTH:
        raise _too_deep()
    return value


def _too_deep() -> FilterError:
    expected = "fewer of $and, $or and $not"
    return FilterError(f"the filter is nested deeper than {MAX_DEPTH} levels: expected {expected}", expected, "more")


def _unknown_operator(name: object) -> FilterError:
    unknown = f"unknown operator {describe(name)}"
    known = f"on a column: {', '.join([*OPERATORS, '$not'])}; on whole filters: $and, $or, $not"
    return FilterError(f"{unknown}; {known}", f"an operator {known}", unknown)
