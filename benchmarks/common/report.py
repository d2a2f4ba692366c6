"""How a benchmark reports: tables for people, then one last line of JSON, and an exit status for machines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rich.console import Console
from rich.table import Table

Figure = float | int | str | None | Sequence["Figure"] | Mapping[str, "Figure"]


class Goal(Enum):
    """On which side of its bar a value should be; the bar itself is good enough."""

    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A value that was measured, and what it must reach."""

    name: str
    value: float
    bar: float
    goal: Goal = Goal.AT_LEAST

    @property
    def ok(self) -> bool:
        """Whether the bar is met. A value that is not a number misses every bar."""
        return self.value >= self.bar if self.goal is Goal.AT_LEAST else self.value <= self.bar


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a benchmark. `figures`: what was measured, the units in the names."""

    benchmark: str
    figures: Mapping[str, Figure]
    bars: Sequence[Bar] = field(default_factory=tuple)

    def to_json(self) -> str:
        """`{"benchmark": …, "figures": {…}, "bars": [{"name": …, "value": …, "bar": …, "ok": …}]}`."""
        bars = [{"name": b.name, "value": _rounded(b.value), "bar": b.bar, "ok": b.ok} for b in self.bars]
        figures = _rounded(self.figures)
        return json.dumps({"benchmark": self.benchmark, "figures": figures, "bars": bars}, ensure_ascii=False)

    def conclude(self, console: Console | None = None) -> int:
        """Print the table of bars and the line of JSON; returns the exit status, 1 when a bar is missed."""
        console = console or Console()
        if self.bars:
            rows = [
                (
                    bar.name,
                    _shown(bar.value),
                    f"{bar.goal.value} {_shown(bar.bar)}",
                    "yes" if bar.ok else "NO",
                )
                for bar in self.bars
            ]
            print_table(f"{self.benchmark}: bars", ("what", "measured", "bar", "met"), rows, console)
        # Not through rich, which would wrap and colour it.
        print(self.to_json(), file=console.file, flush=True)
        return 0 if all(bar.ok for bar in self.bars) else 1


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], console: Console | None = None
) -> None:
    """Print rows below a title, numbers to the right and in four significant digits."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        is_number = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(name, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(_shown(cell) for cell in row))
    (console or Console()).print(table)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _rounded(value: object) -> object:
    """Numbers to six significant digits; a measurement has no more. What is not finite has no JSON: null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(part) for part in value]
    return value
