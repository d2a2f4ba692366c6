"""Merges runs, at the end of each job."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa

from index.collection.catalog.catalog import RunRows
from index.collection.catalog.row_facts import read_schema, write_parts
from index.collection.collection import Collection
from index.collection.layout import FACTS, MERGED, merged_path, next_number
from index.collection.merged.policy import choose
from index.collection.merged.sets import (
    LAST_NUMBER,
    MANIFEST_PATH,
    RUNS_FILE,
    MergedFacts,
    MergedManifest,
    MergedRun,
    MergedSet,
    read_manifest,
)
from index.collection.records.run_manifest import RowFile, RunManifest
from index.collection.row_files import copies_here, open_rows, valid
from index.collection.rows import in_parts
from index.storage import Storage
from index.storage.scratch import Scratch

_MANIFEST_SIZE: Final = 16  # in rows of facts: it has the bytes of about as many, and manifests are read whole


def merge_runs(collection: Collection) -> None:
    """Merge the sets and runs that `choose` names, if any, and remove sets that were replaced more than `KEPT_FOR` ago.

    The caller has the lease. DamagedRunError if a file of facts was altered.
    """
    storage, groups = collection.storage, dict[int | str, list[RunManifest]]()
    before = read_manifest(storage)
    for run in collection.runs():
        groups.setdefault(run.merged_in if isinstance(run, MergedRun) else run.run_id, []).append(run)
    chosen = {[*groups][number] for number in choose([sum(map(size_of, runs)) for runs in groups.values()])}
    if not chosen:
        return
    number, numbers = _new_number(collection, before), [each for each in before.sets if each in chosen]
    merged = (run for name in chosen for run in groups[name])
    _write_set(collection, number, sorted(merged, key=lambda run: run.run_id))
    now = datetime.now(UTC)
    kept = before.recently_replaced(now)
    after = MergedManifest(
        sets=[*(each for each in before.sets if each not in chosen), number],
        replaced=kept | dict.fromkeys(numbers, now),
    )
    collection.check_lease()
    storage.write_atomic(MANIFEST_PATH, after.to_bytes())
    for each in before.replaced.keys() - kept.keys():
        storage.delete(merged_path(each))


def size_of(run: RunManifest) -> int:
    """What a run costs to merge, in rows of facts."""
    return _MANIFEST_SIZE + sum(file.rows for file in run.facts)


def _new_number(collection: Collection, manifest: MergedManifest) -> int:
    """A number that no set has, not even one that was not completed."""
    folders = {int(entry.name) for entry in collection.storage.list(MERGED) if entry.name.isdecimal()}
    return next_number(folders.union(manifest.sets, manifest.replaced), LAST_NUMBER)


def _write_set(collection: Collection, number: int, runs: Sequence[RunManifest]) -> None:
    storage = collection.storage
    facts = dict[RowFile, set[int]]()
    for position, rows in enumerate(RunRows.of(storage, run) for run in runs):
        for file in rows.facts or ():
            facts.setdefault(file, set()).add(position)
    with Scratch("merge") as scratch:
        merged = MergedSet(runs=list(runs), facts=_write_facts(storage, number, facts, scratch.path))
    collection.check_lease()
    storage.write_atomic(merged_path(number, RUNS_FILE), merged.to_bytes())


def _write_facts(storage: Storage, number: int, files: Mapping[RowFile, set[int]], folder: Path) -> list[MergedFacts]:
    """Write the facts in `files`, which have those of the runs at these positions."""
    groups = dict[pa.Schema, dict[Path, RowFile]]()
    for path, file in zip(copies_here(storage, list(files), folder), files, strict=True):
        groups.setdefault(read_schema(path, file), {})[path] = file
    written = list[MergedFacts]()
    for group in groups.values():
        tables = map(pa.concat_tables, in_parts(itertools.starmap(_read, group.items())))
        positions = sorted(set().union(*(files[file] for file in group.values())))
        made = write_parts(storage, merged_path(number, FACTS), tables, first=len(written))
        written += [MergedFacts(file=file, runs=positions) for file in made]
    return written


def _read(path: Path, file: RowFile) -> pa.Table:
    with open_rows(path, file) as parquet:
        return valid(parquet.read())
