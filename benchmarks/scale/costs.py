"""What a unit of each kind of work costs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common.report import shown


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one thing in a unit, by what makes a difference to it; by "" where nothing does."""

    what: str
    unit: str
    costs: dict[str, float | str]

    def row(self) -> dict[str, str]:
        """Of the table in `docs/scale.md`."""
        joined = ", ".join(f"{shown(value)} {name}".strip() for name, value in self.costs.items())
        return {"what": self.what, "unit": self.unit, "costs": joined or "none"}
