"""The last part of re-embedding: make an index version of all live rows, unless there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console

from index.collection import Collection
from index.collection.records import IndexSettings, RunManifest
from index.errors import RolledBackError
from index.versions.current import live_manifest, live_version, standing_manifest
from jobs.indexing.on_ray import run_on_ray


@dataclass(frozen=True, kw_only=True)
class IndexOutcome:
    """The live version before and after, its recall@10, and a note if it needs an explanation that it stayed."""

    before: str | None
    after: str | None
    recall: float | None
    note: str | None = None

    @property
    def promoted(self) -> bool:
        return self.after != self.before

    @classmethod
    def untouched(cls, collection: Collection, note: str | None = None) -> Self:
        """The live version as it is."""
        live = live_manifest(collection)
        version = live.version if live else None
        return cls(before=version, after=version, recall=live.recall["10"] if live else None, note=note)


def bring_index_up_to_date(
    collection: Collection,
    runs: Sequence[RunManifest],
    changes: Mapping[str, Any],
    address: str | None,
    console: Console,
) -> IndexOutcome:
    """Build and promote a version if the live one does not cover all `runs`, or if other settings are requested.

    What was rolled back stays so, with a note. Raises whatever else `build_index` raises.
    """
    standing, before = standing_manifest(collection), live_version(collection).name
    settings = IndexSettings(**{**(standing.settings.model_dump() if standing else {}), **changes})
    ids = [run.run_id for run in runs]
    if standing and (standing.version, standing.runs, standing.settings) == (before, ids, settings):
        return IndexOutcome.untouched(collection)
    from index.build.build_index import build_index

    try:
        built = build_index(collection, settings, run_jobs=run_on_ray(address, console), runs=runs)
    except RolledBackError as error:
        return IndexOutcome.untouched(collection, str(error))
    return IndexOutcome(before=before, after=built.version, recall=built.recall["10"])
