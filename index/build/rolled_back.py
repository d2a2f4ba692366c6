"""Versions that were rolled back: a build does not make them again, nor make what repeats them live."""

from collections.abc import Mapping, Sequence

from index.collection import Collection
from index.collection.records import IndexSettings, RunManifest, VersionManifest
from index.errors import DamagedVersionError, RolledBackError
from index.versions.servable import is_intact, rolled_back_at


def versions_repeated(
    collection: Collection,
    live: VersionManifest | None,
    runs: Sequence[RunManifest],
    annotations: Mapping[str, list[str]],
) -> dict[str, VersionManifest | None]:
    """The versions that were rolled back, and that a build of these runs would repeat: of the same rows
    and annotations, or another model.

    None where a manifest cannot be read: it may be the same, unless new rows of the live model were committed since.
    """
    if not live or not runs:
        return {}
    ids, model = [run.run_id for run in runs], runs[-1].model
    other_model = not live.model.agrees_with(model)
    repeated: dict[str, VersionManifest | None] = {}
    for name in reversed(collection.versions()):
        # Annotating the live version does not make it newer than one that was rolled back.
        if name <= (live.annotates or live.version) or not (when := rolled_back_at(collection, name)):
            continue
        try:
            made = collection.read_version(name)
            # Another annotation of rows that stayed live repeats nothing.
            same = made.runs == ids and (made.annotations == annotations or live.runs != ids)
            if same or (other_model and made.model.agrees_with(model)):
                repeated[name] = made
        except DamagedVersionError:
            if other_model or runs[-1].finished_at <= when:
                repeated[name] = None
    return repeated


def require_no_repeat(
    collection: Collection,
    rolled_back: Mapping[str, VersionManifest | None],
    runs: Sequence[RunManifest],
    settings: IndexSettings,
    live: str | None,
) -> None:
    """RolledBackError when one of the versions that were `rolled_back` is just what a build would make again."""
    for name, made in rolled_back.items():
        same_rows = made and made.runs == [run.run_id for run in runs]
        if made and (not same_rows or (made.settings == settings and is_intact(collection, made))):
            raise RolledBackError(
                f"index {name} has {'these images' if same_rows else f'the model {made.model}'} and was rolled back: "
                f"{live} stays live; run `likeness promote {collection.location} {name}` to make {name} live"
            )
