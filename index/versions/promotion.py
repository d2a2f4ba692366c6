"""What operators do with index versions: list them, promote one, go back."""

import logging
from dataclasses import dataclass

from index.collection import Collection
from index.collection.records import VersionManifest
from index.errors import DamagedVersionError, EmptyCollectionError
from index.versions.current import (
    UNFIT_VERSION,
    check_version,
    live_version,
    mark_rolled_back,
    older_versions,
    require_servable,
    rolled_back_at,
    unmark,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Version:
    """A complete version. `manifest` is None, and `damage` says why, when it cannot be read.

    `rolled_back`: there was a rollback from it, or another version was chosen during its build, and it was not promoted
    since.
    """

    name: str
    live: bool
    rolled_back: bool
    manifest: VersionManifest | None
    damage: str | None = None


@dataclass(frozen=True, kw_only=True)
class RolledBack:
    """The version that is live now, the one that was live before, and why versions in between were passed over."""

    manifest: VersionManifest
    before: str
    skipped: dict[str, str]


def list_versions(collection: Collection) -> list[Version]:
    """Every complete version, oldest first. Reads manifests only."""
    current = live_version(collection)
    if current.damage and not current.name:
        logger.warning("%s", current.damage)
    return [_version(collection, name, live=name == current.name) for name in collection.versions()]


def promote(collection: Collection, version: str) -> VersionManifest:
    """Make a version the live one, once every byte of it has been verified; in a bucket the size of every file.

    DamagedVersionError names the file that is not whole: the live version then stays as it is. A version whose
    recall is below its target is promoted too: that is for whoever names it to decide. To promote an older version than
    the live one is to roll that back. OvertakenError when somebody makes another version live at the same moment.
    """
    manifest = collection.read_version(version)
    check_version(collection, manifest, verify=collection.storage.is_local)
    before = live_version(collection).name
    if before and before > version:
        mark_rolled_back(collection, before)
    collection.promote(version, before)
    unmark(collection, version)
    return manifest


def rollback(collection: Collection) -> RolledBack:
    """Make the newest good version before the live one live.

    Good is what is whole, meets the recall that was asked for and was not rolled back itself: that is remembered of
    the version that is left now. Of a bucket's files the sizes are checked: a server verifies every byte when it opens
    them. DamagedVersionError when none is good, with the reason of each; EmptyCollectionError when no version is live,
    OvertakenError when another is by now.
    """
    before = collection.current()
    if before is None:
        raise EmptyCollectionError(f"{collection.location} has no live index version to go back from")
    skipped: dict[str, str] = {}
    for name in older_versions(collection, before):
        try:
            manifest = require_servable(collection, name, verify=collection.storage.is_local)
        except UNFIT_VERSION as error:
            skipped[name] = str(error)
            continue
        # First, because a rollback that was cut short is repeated, and must not come back to this version.
        mark_rolled_back(collection, before)
        collection.promote(name, before)
        return RolledBack(manifest=manifest, before=before, skipped=skipped)
    reasons = "; ".join(skipped.values()) or "there is no older one"
    raise DamagedVersionError(
        f"no version before {before} to go back to: {reasons}. It stays the live one; build another with "
        "`likeness compact`"
    )


def _version(collection: Collection, name: str, *, live: bool) -> Version:
    manifest, damage = None, None
    try:
        manifest = collection.read_version(name)
    except DamagedVersionError as error:
        damage = str(error)
    return Version(
        name=name,
        live=live,
        rolled_back=rolled_back_at(collection, name) is not None,
        manifest=manifest,
        damage=damage,
    )
