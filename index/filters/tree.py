"""A filter as a tree of conditions, whose columns and values have been checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from index.filters.columns import Column


@dataclass(frozen=True, eq=False)
class Comparison:
    """Holds for rows whose value of the column, or any element of it, compares with `value`, which `operator` defines:
    a key of `index.filters.operators.OPERATORS`.
    """

    column: Column
    operator: str
    value: Any


@dataclass(frozen=True, eq=False)
class Not:
    part: Condition


@dataclass(frozen=True, eq=False)
class And:
    """Holds if all parts do, and without any."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, eq=False)
class Or:
    parts: tuple[Condition, ...]


Condition: TypeAlias = Comparison | Not | And | Or
