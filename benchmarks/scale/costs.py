"""A line in the table of costs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common.report import format_figure


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of one kind of work by variant; the key is "" if there is only one."""

    what: str
    unit: str
    costs: dict[str, float | str]

    def row(self) -> dict[str, str]:
        """The row of the table in `docs/scale.md`."""
        joined = ", ".join(f"{format_figure(value)} {name}".strip() for name, value in self.costs.items())
        return {"what": self.what, "unit": self.unit, "costs": joined or "none"}
