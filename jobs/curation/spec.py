"""The settings of a selection."""

from __future__ import annotations

import json
from typing import Self

from pydantic import Field, model_validator

from index.collection.annotations import PRUNE, SELECT
from jobs.fields import ColumnName, Expression, Section


class SelectSpec(Section):
    """What to select: `n` images that represent all, or one of each group of near-equal ones (`prune`)."""

    name: ColumnName = Field(description="the column's name, and the prefix of further columns: NAME_score")
    n: int | None = Field(None, ge=1, description="how many images to pick")
    prune: float | None = Field(
        None, ge=-1, le=1, description="keep one of each group of images with this cosine or more between them: 0.95"
    )
    diverse: float = Field(
        1.0, ge=0, le=1_000_000, allow_inf_nan=False, description="with -n: the weight of the distance from other picks"
    )
    typical: float = Field(
        0.0,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="with -n: the weight of the closeness to the middle of a cluster",
    )
    balance: str | None = Field(
        None, description="with -n: a column; the same number of picks for each of its values, as far as there are any"
    )
    filter: Expression | None = Field(None, description="choose only among images that pass this filter")
    continue_: bool = Field(False, description="with -n: keep the picks that NAME has, and add more until there are n")

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.n is None) == (self.prune is None):
            raise ValueError("expected one of -n and --prune")
        if self.prune is not None and (self.diverse, self.typical, self.balance, self.continue_) != (1, 0, None, False):
            raise ValueError("--diverse, --typical, --balance and --continue go with -n, not with --prune")
        if not self.diverse and not self.typical:
            raise ValueError("expected a weight above 0 for --diverse or --typical")
        return self

    @property
    def kind(self) -> str:
        return SELECT if self.prune is None else PRUNE

    @property
    def text(self) -> str:
        """The options that the columns are made by."""
        options = self.model_dump(mode="json", exclude={"name", "continue_"}, exclude_defaults=True)
        shown = (f"{'-n' if name == 'n' else f'--{name}'} {_shown(value)}" for name, value in options.items())
        return f"{self.kind} {' '.join(shown)}"


def _shown(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
