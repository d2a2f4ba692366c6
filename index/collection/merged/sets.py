"""The records of merged runs, and reading them."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field

from index.collection.layout import MANIFEST, MERGED, merged_path
from index.collection.records.bounds import Time
from index.collection.records.record import OtherFormatError, Record
from index.collection.records.run_manifest import RowFile, RunManifest
from index.collection.row_files import damaged_run, map_small
from index.storage import Storage

R = TypeVar("R", bound=Record)

RUNS_FILE: Final = "runs.json"
"""In the folder of a set: its `MergedSet`."""
MANIFEST_PATH: Final = f"{MERGED}/{MANIFEST}"

KEPT_FOR: Final = timedelta(days=1)
"""How long a set that was merged into another stays."""

LAST_NUMBER: Final = 99_999_999
SetNumber = Annotated[int, Field(ge=1, le=LAST_NUMBER)]


class MergedFacts(Record):
    """A file of facts, and which of the set's runs have rows in it, by their numbers in the set."""

    file: RowFile
    runs: list[int]


class MergedSet(Record):
    """`runs.json`: the manifests of merged runs, oldest first, and the files that have their facts."""

    runs: list[RunManifest]
    facts: list[MergedFacts]


class MergedManifest(Record):
    """`merged/manifest.json`: the sets that count; and those that were merged into others, which stay for a while, each
    with the time of that.
    """

    format: Literal[3] = 3
    sets: list[SetNumber]
    replaced: dict[SetNumber, Time]

    def recently_replaced(self, now: datetime) -> dict[int, datetime]:
        """Those of the `replaced` that stay, as someone may be reading them."""
        return {number: at for number, at in self.replaced.items() if at > now - KEPT_FOR}


class MergedRun(RunManifest):
    """A run's manifest, from a set, with the files that have its facts, among others'."""

    merged_in: SetNumber
    merged_facts: list[RowFile]


def read_merged_runs(storage: Storage) -> dict[str, MergedRun]:
    """The runs in sets, by id. Few files are read, however many runs there are. DamagedRunError names a damaged one."""
    sets = map_small(storage, partial(_read_set, storage), read_manifest(storage).sets)
    return {run.run_id: run for runs in sets for run in runs}


def read_manifest(storage: Storage) -> MergedManifest:
    """Which sets count; none if nothing was merged."""
    return _read(storage, MANIFEST_PATH, MergedManifest) or MergedManifest(sets=[], replaced={})


def _read_set(storage: Storage, number: int) -> list[MergedRun]:
    """The runs of a set."""
    path = merged_path(number, RUNS_FILE)
    if (found := _read(storage, path, MergedSet)) is None:
        raise damaged_run(path, "it is missing")
    facts = defaultdict[int, list[RowFile]](list)
    for each in found.facts:
        for run in each.runs:
            facts[run].append(each.file)
    return [
        MergedRun.model_construct(**dict(run), merged_in=number, merged_facts=facts[position])
        for position, run in enumerate(found.runs)
    ]


def _read(storage: Storage, path: str, record: type[R]) -> R | None:
    try:
        return record.from_bytes(storage.read(path))
    except (FileNotFoundError, OtherFormatError):
        return None  # as if nothing was merged: the runs say of which format they are
    except ValueError as error:
        raise damaged_run(path, error) from error
