"""What operators do with index versions: list them, promote one, go back."""

import logging
from contextlib import suppress
from dataclasses import dataclass

from index.collection import Collection
from index.collection.layout import ROLLED_BACK, version_path
from index.collection.records.version_manifest import VersionManifest
from index.errors import DamagedVersionError, EmptyCollectionError
from index.versions.servable import (
    UNFIT_VERSION,
    check_version,
    live_version,
    mark_rolled_back,
    older_versions,
    require_servable,
    rolled_back_at,
    was_live,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A complete version. `rolled_back`: somebody chose another one instead, or it repeats one of which that is true.
    `was_live`: it is or was live. `damage`: why there is no `manifest`.
    """

    name: str
    live: bool
    rolled_back: bool
    was_live: bool
    manifest: VersionManifest | None
    damage: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """The version that is live now, the one that was live before, and why versions in between were skipped."""

    manifest: VersionManifest
    before: str
    skipped: dict[str, str]


def list_versions(collection: Collection) -> list[Version]:
    """Every complete version, oldest first. Reads manifests only."""
    current = live_version(collection)
    if current.damage and not current.name:
        logger.warning("%s", current.damage)
    versions = []
    for name in collection.versions():
        manifest, damage = None, None
        try:
            manifest = collection.read_version(name)
        except DamagedVersionError as error:
            damage = str(error)
        rolled_back, live = rolled_back_at(collection, name) is not None, name == current.name
        versions.append(
            Version(
                name=name,
                live=live,
                rolled_back=rolled_back,
                was_live=live or was_live(collection, name),
                manifest=manifest,
                damage=damage,
            )
        )
    return versions


def promote(collection: Collection, version: str) -> VersionManifest:
    """Make a version live after verifying every byte of it; in a bucket, the size of every file.

    Its recall may be below its target. Promoting an older version than the live one rolls the live one back. Versions
    that were not made live only because they repeat this one are no longer refused.
    DamagedVersionError names a damaged file; OvertakenError if another version goes live meanwhile.
    """
    manifest = collection.read_version(version)
    check_version(collection, manifest, verify=collection.storage.is_local)
    before = live_version(collection).name
    if before and before > version:
        mark_rolled_back(collection, before)
    collection.promote(version, before)
    collection.storage.delete(version_path(version, ROLLED_BACK))
    for name in collection.versions():
        if name > version and name != before and not was_live(collection, name):
            with suppress(DamagedVersionError):
                repeated = collection.read_version(name)
                if (repeated.runs, repeated.annotations) == (manifest.runs, manifest.annotations):
                    collection.storage.delete(version_path(name, ROLLED_BACK))
    return manifest


def rollback(collection: Collection) -> Rollback:
    """Make the newest good version before the live one live (see `require_servable`); in a bucket, checks only sizes.

    DamagedVersionError if none is good, with the reason for each; EmptyCollectionError if no version is live;
    OvertakenError if another version goes live meanwhile.
    """
    before = collection.current()
    if before is None:
        raise EmptyCollectionError(f"{collection.location} has no live index version to roll back")
    skipped: dict[str, str] = {}
    for name in older_versions(collection, before):
        try:
            manifest = require_servable(collection, name, verify=collection.storage.is_local)
        except UNFIT_VERSION as error:
            skipped[name] = str(error)
            continue
        # First, because an interrupted rollback is repeated, and must not come back to this version.
        mark_rolled_back(collection, before)
        collection.promote(name, before)
        return Rollback(manifest=manifest, before=before, skipped=skipped)
    reasons = "; ".join(skipped.values()) or "there is no older one"
    raise DamagedVersionError(
        f"no version before {before} to go back to: {reasons}. {before} stays live; build another one with "
        "`likeness compact`"
    )
