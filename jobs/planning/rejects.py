"""Images that cannot be used, and the reasons."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from index.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.rows import REJECT_COLUMNS, newest_positions
from jobs.planning.plan import written_files

_SHOWN = ("image_id", "uri", *REJECT_COLUMNS)


def list_rejects(collection: Collection) -> list[dict[str, Any]]:
    """Images that are rejected or left out by their newest row, including rows of unpublished runs."""
    snapshot = collection.snapshot()
    older: list[pa.Table] = []
    newer: list[pa.Table] = []
    for run in snapshot.unfinished:
        rows = LiveRows.of_files(collection.storage, written_files(collection, run)).read(_SHOWN)
        (older if run.run_id < snapshot.last_run else newer).append(rows)
    rows = pa.concat_tables([*older, snapshot.live().read(_SHOWN), *newer])
    rows = rows.take(newest_positions([rows["image_id"]])[0])
    return rows.filter(pc.is_valid(rows["error_reason"])).sort_by("image_id").to_pylist()


def count_reasons(reasons: Iterable[object]) -> Counter[str]:
    """How often each reason occurs; equally frequent ones in alphabetical order."""
    return Counter(sorted(map(str, reasons)))


def format_reasons(counts: Counter[str], limit: int | None = None) -> str:
    """ "truncated: 3, timeout: 1"; empty when there are none."""
    return ", ".join(f"{reason}: {count}" for reason, count in counts.most_common(limit))
