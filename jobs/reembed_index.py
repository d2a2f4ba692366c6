"""The last part of re-embedding: make an index version of all live rows, unless there is one."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console

from index.collection import Collection
from index.records import IndexSettings, RunManifest, VersionManifest
from index.versions import NOT_GOOD, list_versions, live_manifest, require_good
from jobs.index import run_on_ray


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

    A version that covers every run and was rolled back stays so until something changes, or, if it brought another
    model, until it is promoted. Raises what `index.build.build_index` raises.
    """
    live = live_manifest(collection)
    settings = IndexSettings(**{**_settings(collection, live).model_dump(), **changes})
    if live and live.runs == [run.run_id for run in runs] and live.settings == settings:
        return IndexOutcome.untouched(collection)
    if note := _gone_back_from(collection, live, runs, settings):
        return IndexOutcome.untouched(collection, note)
    from index.build import build_index

    built = build_index(collection, settings, run_jobs=run_on_ray(address, console), runs=runs)
    return IndexOutcome(before=live.version if live else None, after=built.version, recall=built.recall["10"])


def _settings(collection: Collection, live: VersionManifest | None) -> IndexSettings:
    """The settings of the live version; if it cannot be read, of the newest good one: limits hold after damage too."""
    if live:
        return live.settings
    for name in reversed(collection.versions()):
        with suppress(*NOT_GOOD):
            return require_good(collection, name, verify=False).settings
    return IndexSettings()


def _gone_back_from(
    collection: Collection, live: VersionManifest | None, runs: Sequence[RunManifest], settings: IndexSettings
) -> str | None:
    """Names a rolled-back version, if a new build would be the same again or have its model."""
    ids = [run.run_id for run in runs]
    other_model = bool(live and runs and not live.model.agrees_with(runs[-1].model))
    for version in list_versions(collection):
        made = version.manifest
        if not made or not version.rolled_back:
            continue
        again = f"index {version.name} has %s and was rolled back: `likeness promote` takes it again"
        if made.runs == ids and made.settings == settings:
            return again % "these images"
        if other_model and live and version.name > live.version and made.model.agrees_with(runs[-1].model):
            return again % f"the model {made.model}"
    return None
