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
    """Images whose newest row is a reject, or that were left out, including rows of runs that were not published."""
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
    """How often each reason occurs; equally frequent ones are in the order of their names."""
    return Counter(sorted(map(str, reasons)))


def shown_reasons(counts: Counter[str], most: int | None = None) -> str:
    """ "truncated: 3, timeout: 1"; empty when there are none."""
    return ", ".join(f"{reason}: {count}" for reason, count in counts.most_common(most))
