"""Reads merged runs."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Final, TypeVar

from index.collection.layout import MANIFEST, MERGED, merged_path
from index.collection.merged.records import RUNS_FILE, MergedManifest, MergedRun, MergedSet
from index.collection.records import Record, RowFile
from index.collection.row_files import damaged_run, map_in_threads
from index.storage import Storage

R = TypeVar("R", bound=Record)

MANIFEST_PATH: Final = f"{MERGED}/{MANIFEST}"


def read_merged_runs(storage: Storage) -> dict[str, MergedRun]:
    """The runs in sets, by id. Few files are read, however many runs there are. DamagedRunError names a damaged one."""
    numbers = [entry.number for entry in read_manifest(storage).sets]
    return {run.run_id: run for runs in map_in_threads(partial(read_set, storage), numbers) for run in runs}


def read_manifest(storage: Storage) -> MergedManifest:
    """Which sets count; none if nothing was merged."""
    try:
        return _read(storage, MANIFEST_PATH, MergedManifest)
    except FileNotFoundError:
        return MergedManifest(sets=[], replaced=[])


def read_set(storage: Storage, number: int) -> list[MergedRun]:
    """The runs of a set."""
    path = merged_path(number, RUNS_FILE)
    try:
        found = _read(storage, path, MergedSet)
    except FileNotFoundError as error:
        raise damaged_run(path, "it is missing") from error
    facts = defaultdict[int, list[RowFile]](list)
    for each in found.facts:
        for run in each.runs:
            facts[run].append(each.file)
    return [
        MergedRun.model_construct(
            **dict(run), merged_facts=facts[position], merged_deletes=found.deletes if run.deletes else None
        )
        for position, run in enumerate(found.runs)
    ]


def _read(storage: Storage, path: str, record: type[R]) -> R:
    try:
        return record.from_bytes(storage.read(path))
    except ValueError as error:
        raise damaged_run(path, error) from error
