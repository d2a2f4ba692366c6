"""Numbers for people, and tables of them in Markdown, as `docs/scale.md` has them."""

from __future__ import annotations

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers in three significant digits, or whole from a hundred on."""
    lines = [columns, ["---"] * len(columns), *([shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def duration(seconds: float) -> str:
    """For people."""
    for unit, name in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{shown(seconds / unit)} {name}"
    return f"{shown(seconds)} s" if seconds >= 1 else "under 1 s"


def amount(size: float) -> str:
    """Bytes for people, in two or three digits."""
    for unit, name in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 100 * unit else f"{size / unit:,.0f} {name}"
    return f"{size / 1e3:.3g} kB"


def shown(cell: object) -> str:
    """A number in three significant digits, or whole from a hundred on; anything else as it is."""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
