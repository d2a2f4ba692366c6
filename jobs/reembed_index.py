"""The last part of re-embedding: an index version of all live rows, made only where there is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console

from index.collection import Collection
from index.records import IndexSettings
from index.versions import list_versions, live_manifest
from jobs.index import run_on_ray


@dataclass(frozen=True, kw_only=True)
class IndexOutcome:
    """The live version before and after, its recall@10, and why it stayed if that needs saying."""

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
    collection: Collection, changes: Mapping[str, Any], address: str | None, console: Console
) -> IndexOutcome:
    """Build and promote a version where the live one does not cover every run, or other settings are asked for.

    A version that covers every run and was rolled back stays so until something changes. Raises what
    `index.build.build_index` raises.
    """
    live = live_manifest(collection)
    settings = IndexSettings(**{**(live.settings.model_dump() if live else {}), **changes})
    runs = [run.run_id for run in collection.runs()]
    if live and live.runs == runs and live.settings == settings:
        return IndexOutcome.untouched(collection)
    for version in list_versions(collection):
        made = version.manifest
        if version.rolled_back and made and made.runs == runs and made.settings == settings:
            return IndexOutcome.untouched(
                collection,
                f"index {version.name} has these images and was rolled back: `likeness promote` takes it again",
            )
    from index.build import build_index

    built = build_index(collection, settings, run_jobs=run_on_ray(address, console))
    return IndexOutcome(before=live.version if live else None, after=built.version, recall=built.recall["10"])
