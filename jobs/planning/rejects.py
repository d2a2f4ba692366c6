"""Lists rejects, and counts their reasons."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from index.collection import Collection
from index.collection.rows import REJECT_COLUMNS

_SHOWN = ("image_id", "uri", *REJECT_COLUMNS)


def list_rejects(collection: Collection) -> list[dict[str, Any]]:
    """Images that are rejected or left out by their newest row, including rows of unpublished runs."""
    names = ", ".join(_SHOWN)
    sql = f"SELECT {names} FROM live_rows WHERE error_reason IS NOT NULL ORDER BY image_id"
    return collection.snapshot().newest().table(sql).to_pylist()


def count_reasons(reasons: Iterable[object]) -> Counter[str]:
    """How often each reason occurs; equally frequent ones in alphabetical order."""
    return Counter(sorted(map(str, reasons)))


def format_reasons(counts: Counter[str], limit: int | None = None) -> str:
    """ "truncated: 3, timeout: 1"; empty when there are none."""
    return ", ".join(f"{reason}: {count}" for reason, count in counts.most_common(limit))
