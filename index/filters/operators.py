"""A checked filter as a tree of conditions; the operators in it; and its visitors, `mask` and `comparisons`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.rows import is_text
from index.filters.columns import Column, Mask, of_steps, step_limits
from index.words.text import MAX_TERMS, all_terms
from index.words.word_index import matching


@dataclass(frozen=True, eq=False)
class Comparison:
    """Holds for rows whose value of the column compares with `value`, as `OPERATORS` says."""

    column: Column
    operator: str
    value: Any


@dataclass(frozen=True, eq=False)
class Not:
    part: Condition


@dataclass(frozen=True, eq=False)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, eq=False)
class Or:
    parts: tuple[Condition, ...]


Condition: TypeAlias = Comparison | Not | And | Or
Read = Callable[[Column, str, Any], Condition]


def mask(condition: Condition, batch: pa.RecordBatch, known: Mapping[Comparison, Mask]) -> Mask:
    """The rows of a batch for which it holds, `(len(batch),)`. Those of some comparisons are `known`."""
    match condition:
        case And(parts):
            return reduce(np.logical_and, (mask(part, batch, known) for part in parts), np.ones(len(batch), bool))
        case Or(parts):
            return reduce(np.logical_or, (mask(part, batch, known) for part in parts), np.zeros(len(batch), bool))
        case Not(part):
            return ~mask(part, batch, known)
        case Comparison(column, operator, value):
            return known[condition] if condition in known else OPERATORS[operator].mask(column, value, batch)


def comparisons(condition: Condition) -> Iterator[Comparison]:
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from comparisons(part)
        case Not(part):
            yield from comparisons(part)
        case Comparison():
            yield condition


def _among(column: Column, operator: str, operands: object) -> Condition:
    if not isinstance(operands, list):
        raise column.refusal(operator, "a list", operands)
    if any(operand != operand for operand in operands):
        expected = f"{column.kind.expected} (for a missing value use null, in Python None)"
        raise column.refusal(operator, expected, math.nan)
    values = [column.value(operator, operand) for operand in operands if operand is not None]
    stored = column.comparison_type
    if limits := step_limits(stored):
        low, high = limits
        values = [of_steps(int(value), stored) for value in values if low <= value <= high and value == int(value)]
    elif pa.types.is_floating(stored):
        values += [-value for value in values if value == 0]  # is_in distinguishes 0.0 and -0.0
    among = Comparison(column, "$in", pa.array(values, stored))
    return Or((among, _exists(column, "$exists", False))) if None in operands else among


def _ordered(column: Column, operator: str, operand: object) -> Condition:
    value = column.value(operator, operand)
    stored = column.comparison_type
    if limits := step_limits(stored):
        # Between two integers `x > 10.5` is `x > 10`, and `x >= 10.5` is `x >= 11`.
        low, high = limits
        if not low <= value <= high:  # all values pass, as those from the limit on; or none, as those beyond it
            all_pass = (value < low) == operator.startswith("$gt")
            value, operator = min(max(value, low), high), f"{operator[:3]}{'e' if all_pass else ''}"
        value = of_steps(math.floor(value) if operator in ("$gt", "$lte") else math.ceil(value), stored)
    return Comparison(column, operator, pa.scalar(value, stored))


def _prefixed(column: Column, operator: str, operand: object) -> Comparison:
    if not is_text(column.comparison_type):
        raise column.error(f"{operator} works only on text", f"a column of text for {operator}", column.title)
    return Comparison(column, operator, column.value(operator, operand))


def _matched(column: Column, operator: str, operand: object) -> Condition:
    terms = all_terms(_prefixed(column, operator, operand).value)
    if len(terms) > MAX_TERMS:
        raise column.refusal(operator, f"at most {MAX_TERMS} words and phrases", operand)
    return Comparison(column, operator, terms)


def _exists(column: Column, operator: str, operand: object) -> Condition:
    if not isinstance(operand, bool):
        raise column.refusal(operator, "true or false", operand)
    present = Comparison(column, operator, None)
    return present if operand else Not(present)


def _equal(column: Column, operator: str, operand: object) -> Condition:
    if isinstance(operand, list):
        several = "$in" if operator == "$eq" else "$nin"
        raise column.refusal(operator, f"{column.kind.expected} (for a list use {several})", operand)
    return _among(column, operator, [operand])


def _negated(read: Read) -> Read:
    return lambda column, operator, operand: Not(read(column, operator, operand))


def _any_element(compare: Callable[[Any, Any], Any]) -> Callable[[Column, Any, pa.RecordBatch], Mask]:
    return lambda column, value, batch: column.any_element(batch, compare, value)


class Operator(NamedTuple):
    """`read` checks an operand and makes the condition; it raises FilterError. `mask` is of the rows that compare with
    a Comparison's value; the Comparisons of `$eq`, `$ne` and `$nin` have the operator `$in`.
    """

    read: Read
    mask: Callable[[Column, Any, pa.RecordBatch], Mask] = _any_element(pc.is_in)


OPERATORS = {
    "$eq": Operator(_equal),
    "$ne": Operator(_negated(_equal)),
    "$in": Operator(_among),
    "$nin": Operator(_negated(_among)),
    "$gt": Operator(_ordered, _any_element(pc.greater)),
    "$gte": Operator(_ordered, _any_element(pc.greater_equal)),
    "$lt": Operator(_ordered, _any_element(pc.less)),
    "$lte": Operator(_ordered, _any_element(pc.less_equal)),
    "$prefix": Operator(_prefixed, _any_element(pc.starts_with)),
    "$match": Operator(_matched, lambda column, terms, batch: matching(column.name, column.read(batch), terms)),
    "$exists": Operator(_exists, lambda column, _, batch: column.present(batch)),
}
