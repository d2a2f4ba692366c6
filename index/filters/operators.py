"""The operators on a column: how each checks its operand, and how Arrow compares with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from index.filters.columns import Column, Mask
from index.filters.operands import has_steps, in_steps, int_limits, is_text, of_steps
from index.filters.tree import Comparison, Condition, Not, Or

Read = Callable[[Column, str, Any], Condition]


class Operator(NamedTuple):
    """`read` checks an operand and makes the condition, perhaps of other operators. Raises FilterError.

    `mask` says which rows of a batch pass a Comparison's value; None if `read` makes no Comparison of this operator.
    """

    read: Read
    mask: Callable[[Column, Any, pa.RecordBatch], Mask] | None = None


def _equal(column: Column, operator: str, operand: object) -> Condition:
    return _among(column, operator, [operand])


def _among(column: Column, operator: str, operands: object) -> Condition:
    if not isinstance(operands, list):
        raise column.refusal(operator, "a list", operands)
    values = column.values(operator, [operand for operand in operands if operand is not None])
    stored = column.comparison_type
    if has_steps(stored):
        low, high = int_limits(stored)
        steps = (in_steps(value, stored) for value in values)
        values = [of_steps(int(step), stored) for step in steps if low <= step <= high and step == int(step)]
    elif pa.types.is_floating(stored):
        values += [-value for value in values if value == 0]  # is_in distinguishes 0.0 and -0.0
    among = Comparison(column, "$in", pa.array(values, stored))
    return Or((among, Not(_present(column)))) if None in operands else among


def _ordered(column: Column, operator: str, operand: object) -> Condition:
    [value] = column.values(operator, [operand])
    stored = column.comparison_type
    if has_steps(stored):
        # Between two integers `x > 10.5` is `x > 10`, and `x >= 10.5` is `x >= 11`.
        low, high = int_limits(stored)
        value = in_steps(value, stored)
        if not low <= value <= high:  # so all values pass, or none, as those from a limit on or beyond it
            all_pass = (value < low) == operator.startswith("$gt")
            value, operator = min(max(value, low), high), f"{operator[:3]}{'e' if all_pass else ''}"
        value = of_steps(math.floor(value) if operator in ("$gt", "$lte") else math.ceil(value), stored)
    return Comparison(column, operator, pa.scalar(value, stored))


def _prefixed(column: Column, operator: str, operand: object) -> Condition:
    if not is_text(column.comparison_type):
        raise column.error(f"{operator} works only on text", f"a column of text for {operator}", column.title)
    return Comparison(column, operator, *column.values(operator, [operand]))


def _exists(column: Column, operator: str, operand: object) -> Condition:
    if not isinstance(operand, bool):
        raise column.refusal(operator, "true or false", operand)
    return _present(column) if operand else Not(_present(column))


def _present(column: Column) -> Condition:
    return Comparison(column, "$exists", True)


def _negated(read: Read) -> Read:
    return lambda column, operator, operand: Not(read(column, operator, operand))


def _any_element(compare: Callable[[Any, Any], Any]) -> Callable[[Column, Any, pa.RecordBatch], Mask]:
    return lambda column, value, batch: column.any_element(batch, compare, value)


OPERATORS = {
    "$eq": Operator(_equal),
    "$ne": Operator(_negated(_equal)),
    "$in": Operator(_among, _any_element(pc.is_in)),
    "$nin": Operator(_negated(_among)),
    "$gt": Operator(_ordered, _any_element(pc.greater)),
    "$gte": Operator(_ordered, _any_element(pc.greater_equal)),
    "$lt": Operator(_ordered, _any_element(pc.less)),
    "$lte": Operator(_ordered, _any_element(pc.less_equal)),
    "$prefix": Operator(_prefixed, _any_element(pc.starts_with)),
    "$exists": Operator(_exists, lambda column, _, batch: column.present(batch)),
}
