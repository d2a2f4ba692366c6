"""What a unit of each kind of work costs: the record of `docs/scale.json`, and the table of it in `docs/scale.md`."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from benchmarks.common.report import rounded

FIGURES, PAGE = "scale.json", "scale.md"
_TABLE = re.compile(r"(<!-- costs -->\n).*(<!-- end of costs -->)", re.DOTALL)


class Record(BaseModel):
    """Figures that were measured together."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Cost(Record):
    """Of one thing in a unit, by what makes a difference to it; by "" where nothing does."""

    what: str
    unit: str
    costs: dict[str, float | str]


class Costs(Record):
    """All of them, and the date and the machine that they are of. `quick`: of few rows, nothing to plan with."""

    date: str
    machine: str
    quick: bool
    costs: list[Cost]

    @classmethod
    def read(cls, folder: Path) -> Costs:
        """What `write` wrote."""
        return cls.model_validate_json((folder / FIGURES).read_text())

    def write(self, folder: Path) -> None:
        """The figures as JSON, in four significant digits, and the page with a table of them."""
        measured = type(self).model_validate(rounded(self.model_dump(), 4))
        (folder / FIGURES).write_text(measured.model_dump_json(indent=1) + "\n")
        page = folder / PAGE
        page.write_text(measured.put_into(page.read_text()))

    def put_into(self, page: str) -> str:
        """The page with the table of these costs between its two marks."""
        return _TABLE.sub(lambda found: f"{found[1]}\n{self.table()}\n\n{found[2]}", page)

    def table(self) -> str:
        """In Markdown, below a line that says where it was measured."""
        lines = [f"Measured {self.date} on {self.machine}.{' **A quick run: nothing to plan with.**' * self.quick}", ""]
        lines += ["| what | unit | costs |", "|---|---|---|"]
        return "\n".join([*lines, *(f"| {each.what} | {each.unit} | {_joined(each)} |" for each in self.costs)])


def _joined(cost: Cost) -> str:
    return ", ".join(f"{_shown(value)} {name}".strip() for name, value in cost.costs.items()) or "none"


def _shown(value: float | str) -> str:
    """Three significant digits, or all of them from a hundred on."""
    if isinstance(value, str):
        return f"`{value}`"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
