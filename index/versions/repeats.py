"""Versions that were rolled back: a build does not make one again, and a version that repeats one does not go live."""

from collections.abc import Mapping, Sequence

from index.collection import Collection
from index.collection.annotations import list_annotations
from index.collection.records.index_settings import IndexSettings
from index.collection.records.run_manifest import RunManifest
from index.collection.records.version_manifest import VersionManifest
from index.errors import DamagedVersionError, RolledBackError
from index.versions.servable import is_intact, rolled_back_at


def repeated_versions(
    collection: Collection,
    live: VersionManifest | None,
    runs: Sequence[RunManifest],
    annotations: Mapping[str, list[str]],
) -> dict[str, VersionManifest | None]:
    """The rolled-back versions that a build of these runs would repeat: those with the same rows and annotations, or
    with the same model if the live version has another.

    A manifest is None if it cannot be read: its version may be the same, unless new rows of the live model were
    committed since.
    """
    if not live or not runs:
        return {}
    ids, model = [run.run_id for run in runs], runs[-1].model
    other_model = not live.model.agrees_with(model)
    repeated: dict[str, VersionManifest | None] = {}
    for name in reversed(collection.versions()):
        # An annotated copy of the live version is not newer than a version that was rolled back before.
        if name <= (live.annotates or live.version) or not (when := rolled_back_at(collection, name)):
            continue
        try:
            version = collection.read_version(name)
            # Other annotations of rows that stayed live repeat nothing.
            same = version.runs == ids and (version.annotations == annotations or live.runs != ids)
            if same or (other_model and version.model.agrees_with(model)):
                repeated[name] = version
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
    """RolledBackError if a build would make one of the `rolled_back` versions again."""
    for name, version in rolled_back.items():
        same_rows = version and version.runs == [run.run_id for run in runs]
        if version and (not same_rows or (version.settings == settings and is_intact(collection, version))):
            raise _not_again(collection, name, "these images" if same_rows else f"the model {version.model}", live)


def require_newer_than_choice(collection: Collection, live: VersionManifest, runs: Sequence[RunManifest]) -> None:
    """RolledBackError if all there is, rows and annotations, is what somebody has rolled back for the live version:
    more annotations of its rows would bring in nothing new.
    """
    ids = [run.run_id for run in runs]
    annotations = {annotation.name: annotation.run_ids for annotation in list_annotations(collection)}
    if (live.runs, live.annotations) == (ids, annotations):
        return
    for name, version in repeated_versions(collection, live, runs, annotations).items():
        if version and (version.runs, version.annotations) == (ids, annotations):
            raise _not_again(collection, name, "these images", live.version)


def _not_again(collection: Collection, name: str, content: str, live: str | None) -> RolledBackError:
    # A job that says so may go on and publish the images of the live version with new annotations.
    return RolledBackError(
        f"index {name} has {content} and was rolled back, so it does not replace {live}: run `likeness promote "
        f"{collection.location} {name}` to make {name} live"
    )
