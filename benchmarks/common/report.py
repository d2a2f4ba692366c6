"""How a benchmark reports: tables for people, then one last line of JSON, and an exit status for machines."""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from rich.console import Console
from rich.table import Table

Figure = float | int | str | None | Sequence["Figure"] | Mapping[str, "Figure"]


@dataclass(frozen=True)
class Bar:
    """A value that was measured, and on which side of its bar it must be; the bar itself is good enough."""

    name: str
    value: float
    goal: Literal["≥", "≤"]
    bar: float

    @property
    def ok(self) -> bool:
        """Whether the bar is met. A value that is not a number misses every bar."""
        return self.value >= self.bar if self.goal == "≥" else self.value <= self.bar


class Report:
    """What a benchmark finds. Every table is printed at once and kept as figures; the bars are printed at the end."""

    def __init__(self, benchmark: str, console: Console | None = None) -> None:
        self.benchmark = benchmark
        self.console = console or Console()
        self.figures: dict[str, Figure] = {}
        self.bars: list[Bar] = []
        self._prefix = ""

    def about(self, subject: str) -> Self:
        """The same report, in which everything is named after a subject."""
        named = copy(self)
        named._prefix = f"{subject}: "
        return named

    def table(self, title: str, rows: Sequence[Mapping[str, Figure]]) -> None:
        """Print rows of the same columns below a title: numbers to the right, in four significant digits."""
        self.keep(title, rows)
        self._print(self._prefix + title, rows)

    def values(self, title: str, figures: Mapping[str, Figure]) -> None:
        """A table of one figure in a row."""
        self.table(title, [{"": name, "value": value} for name, value in figures.items()])

    def keep(self, name: str, figure: Figure) -> None:
        """Note a figure without printing it."""
        self.figures[self._prefix + name] = figure

    def at_least(self, name: str, value: float, bar: float) -> None:
        """Add a bar that the value must reach."""
        self.bars.append(Bar(self._prefix + name, value, "≥", bar))

    def at_most(self, name: str, value: float, bar: float) -> None:
        """Add a bar that the value must not exceed."""
        self.bars.append(Bar(self._prefix + name, value, "≤", bar))

    def to_json(self) -> str:
        """`{"benchmark": …, "figures": {…}, "bars": [{"name": …, "value": …, "bar": …, "ok": …}]}`."""
        bars = [{"name": bar.name, "value": bar.value, "bar": bar.bar, "ok": bar.ok} for bar in self.bars]
        record = {"benchmark": self.benchmark, "figures": self.figures, "bars": bars}
        return json.dumps(rounded(record, 6), ensure_ascii=False)

    def conclude(self) -> int:
        """Print the table of bars and the line of JSON; returns the exit status, 1 when a bar is missed."""
        if self.bars:
            rows: list[Mapping[str, Figure]] = [
                {
                    "what": bar.name,
                    "measured": bar.value,
                    "bar": f"{bar.goal} {shown(bar.bar)}",
                    "met": "yes" if bar.ok else "NO",
                }
                for bar in self.bars
            ]
            self._print(f"{self.benchmark}: bars", rows)
        # Not through rich, which would wrap and colour it.
        print(self.to_json(), file=self.console.file, flush=True)
        return 0 if all(bar.ok for bar in self.bars) else 1

    def _print(self, title: str, rows: Sequence[Mapping[str, Figure]]) -> None:
        table = Table(title=title, title_justify="left")
        for name in rows[0]:
            is_number = any(isinstance(row[name], int | float) for row in rows)
            table.add_column(name, justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*map(shown, row.values()))
        self.console.print(table)


def run(
    name: str,
    doc: str | None,
    benchmark: Callable[[Report, Path, Any], None],
    quick: str,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> NoReturn:
    """Run a benchmark in a folder that goes with it, as the command line says, and exit: with 1 when it misses a bar.

    `quick` is the help of `--quick`; `options` are further arguments, each with what `add_argument` takes.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=quick)
    for option, about in (options or {}).items():
        parser.add_argument(option, **about)
    given, report = parser.parse_args(), Report(name)
    with tempfile.TemporaryDirectory() as folder:
        benchmark(report, Path(folder), given)
    sys.exit(report.conclude())


def rounded(value: object, digits: int) -> object:
    """Numbers to so many significant digits, within lists and mappings too. What is not finite has no JSON: None."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(part, digits) for part in value]
    return value


def shown(value: Figure) -> str:
    """As a table has it: floats in four significant digits."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str("" if value is None else value)
