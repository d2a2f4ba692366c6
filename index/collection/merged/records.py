"""The records of merged runs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from index.collection.bounds import Count, Time
from index.collection.records import Record, RowFile, RunManifest

RUNS_FILE: Final = "runs.json"
"""In the folder of a set: its `MergedSet`."""

_FILE_SIZE: Final = 16  # of a row file's entry in a manifest, in rows of facts: fewer, but manifests are read whole

SetNumber = Annotated[int, Field(ge=1, le=99_999_999)]


class MergedFacts(Record):
    """A file of facts, and which of the set's runs have rows in it, by their numbers in the set."""

    file: RowFile
    runs: list[int]


class MergedSet(Record):
    """`runs.json`: the manifests of merged runs, oldest first, and the files that have their facts and deletes."""

    format: Literal[1] = 1
    runs: list[RunManifest]
    facts: list[MergedFacts]
    deletes: RowFile | None


class SetEntry(Record):
    number: SetNumber
    size: Count
    """See `size_of`."""


class Replaced(Record):
    """A set that was merged into another, at a time."""

    number: SetNumber
    at: Time


class MergedManifest(Record):
    """`merged/manifest.json`: the sets that count, and those that stay for a while."""

    format: Literal[1] = 1
    sets: list[SetEntry]
    replaced: list[Replaced]


class MergedRun(RunManifest):
    """A run's manifest, from a set, with the files that have its facts and deletes, among others'."""

    merged_facts: list[RowFile]
    merged_deletes: RowFile | None


def size_of(run: RunManifest) -> int:
    """What a run costs to merge, in rows of facts."""
    deletes = run.deletes.rows if run.deletes else 0
    return sum(file.rows for file in run.files) + deletes + _FILE_SIZE * len(run.files)
