"""Finds unfinished runs that no job will resume; `index.versions.prune` removes them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from index.collection import Collection
from index.collection.records import RunManifest, RunStart

FORGOTTEN = timedelta(days=30)
"""An unfinished run to which nothing was written for so long will not be resumed.

A change of models may take weeks, with pauses, and removing its run would lose all that it has embedded.
"""


def abandoned_runs(collection: Collection, idle: timedelta) -> dict[str, int]:
    """Unfinished runs that the next job will not use: the bytes in each, by id.

    These are runs to which nothing was written within `idle`, if a later run of the same source and model was committed
    (it took over what it needed of them), else within `FORGOTTEN`.
    """
    snapshot = collection.snapshot()
    found = {}
    for start in snapshot.unfinished:
        since = datetime.now(UTC) - (idle if _is_made_up_for(start, snapshot.committed) else FORGOTTEN)
        files = [file for file in collection.storage.walk(f"runs/{start.run_id}") if not file.is_folder]
        if all(file.modified is not None and file.modified <= since for file in files):
            found[start.run_id] = sum(file.size for file in files)
    return found


def _is_made_up_for(start: RunStart, committed: Iterable[RunManifest]) -> bool:
    return any(
        run.source == start.source and run.model.agrees_with(start.model) and run.run_id > start.run_id
        for run in committed
    )
