"""How a benchmark reports: tables for people, then one line of JSON and an exit status for programs."""

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
Row = Mapping[str, Figure]
Rows = Sequence[Row] | Mapping[str, Row]


@dataclass(frozen=True)
class Bar:
    """A measured value, and the minimum or maximum it must meet. A value equal to the bar meets it."""

    name: str
    value: float
    goal: Literal["≥", "≤"]
    bar: float

    @property
    def ok(self) -> bool:
        """Whether the bar is met; NaN never does."""
        return self.value >= self.bar if self.goal == "≥" else self.value <= self.bar


class Report:
    """The results of a benchmark. Tables are printed at once and kept as figures; bars are printed at the end."""

    def __init__(self, benchmark: str, console: Console | None = None) -> None:
        self.benchmark = benchmark
        self.console = console or Console()
        self.figures: dict[str, Figure] = {}
        self.bars: list[Bar] = []
        self._prefix = ""

    def about(self, subject: str) -> Self:
        """The same report, with names that begin with a subject."""
        report = copy(self)
        report._prefix = f"{subject}: "
        return report

    def table(self, title: str, rows: Rows) -> None:
        """Print rows of the same columns below a title, with numbers in four significant digits. Those of a mapping
        begin with their name.
        """
        if isinstance(rows, Mapping):
            rows = [{"": name, **row} for name, row in rows.items()]
        self.keep(title, rows)
        self._print(self._prefix + title, rows)

    def values(self, title: str, figures: Mapping[str, Figure]) -> None:
        """A table with one figure per row."""
        self.table(title, {name: {"value": value} for name, value in figures.items()})

    def keep(self, name: str, figure: Figure) -> None:
        """Add a figure without printing it."""
        self.figures[self._prefix + name] = figure

    def at_least(self, name: str, value: float, bar: float) -> None:
        """Add a bar that the value must reach."""
        self.bars.append(Bar(self._prefix + name, value, "≥", bar))

    def at_most(self, name: str, value: float, bar: float) -> None:
        """Add a bar that the value must not exceed."""
        self.bars.append(Bar(self._prefix + name, value, "≤", bar))

    def conclude(self) -> int:
        """Print the table of bars, and a line of JSON: `{"benchmark": …, "figures": {…}, "bars": [{"name": …, "value":
        …, "bar": …, "ok": …}]}`. Returns the exit status, 1 if a bar is missed.
        """
        if self.bars:
            rows: list[Row] = [
                {
                    "what": bar.name,
                    "measured": bar.value,
                    "bar": f"{bar.goal} {format_figure(bar.bar)}",
                    "met": "yes" if bar.ok else "NO",
                }
                for bar in self.bars
            ]
            self._print(f"{self.benchmark}: bars", rows)
        bars = [{"name": bar.name, "value": bar.value, "bar": bar.bar, "ok": bar.ok} for bar in self.bars]
        record = {"benchmark": self.benchmark, "figures": self.figures, "bars": bars}
        # Not with rich, which would wrap and colour it.
        print(json.dumps(rounded(record, 6), ensure_ascii=False), file=self.console.file, flush=True)
        return 0 if all(bar.ok for bar in self.bars) else 1

    def _print(self, title: str, rows: Sequence[Row]) -> None:
        table = Table(title=title, title_justify="left")
        for name in rows[0]:
            is_number = any(isinstance(row[name], int | float) for row in rows)
            table.add_column(name, justify="right" if is_number else "left")
        for row in rows:
            table.add_row(*map(format_figure, row.values()))
        self.console.print(table)


def run(
    name: str,
    doc: str | None,
    benchmark: Callable[[Report, Path, Any], None],
    quick: str,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> NoReturn:
    """Parse the command line, run a benchmark with a temporary folder, and exit, with 1 if it misses a bar.

    `quick` is the help of `--quick`; `options` are further arguments, with keyword arguments for `add_argument`.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=quick.replace("%", "%%"))
    for option, settings in (options or {}).items():
        parser.add_argument(option, **settings)
    arguments, report = parser.parse_args(), Report(name)
    with tempfile.TemporaryDirectory() as folder:
        benchmark(report, Path(folder), arguments)
    sys.exit(report.conclude())


def rounded(value: object, digits: int) -> object:
    """Round floats to significant digits, also in lists and mappings. NaN and infinity, which JSON lacks, give None."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(part, digits) for part in value]
    return value


def format_figure(value: Figure) -> str:
    """As in tables: floats in four significant digits."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str("" if value is None else value)
