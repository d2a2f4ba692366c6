"""What operators do with index versions: list them, promote one, go back, serve the last good one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from index.collection import Collection
from index.errors import DamagedVersionError, EmptyCollectionError, RecallTooLowError, RolledBackError
from index.records import VersionManifest
from index.search import Searcher
from index.verify import check_version

NOT_GOOD = (DamagedVersionError, RecallTooLowError, RolledBackError)
"""Errors that say why a version is not good enough to go back to."""

OpenVersion = Callable[[Collection, str | None], Searcher]
"""A function like `Searcher.open`."""

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
    try:
        current = collection.current()
    except DamagedVersionError as error:
        logger.warning("%s", error)
        current = None
    return [_version(collection, name, live=name == current) for name in collection.versions()]


def live_manifest(collection: Collection) -> VersionManifest | None:
    """The manifest of the live version; None if there is none, or (with a warning) if it cannot be read."""
    try:
        current = collection.current()
        return collection.read_version(current) if current else None
    except DamagedVersionError as error:
        logger.warning("%s", error)
        return None


def promote(collection: Collection, version: str) -> VersionManifest:
    """Make a version the live one, once every byte of it has been verified; in a bucket the size of every file.

    DamagedVersionError names the file that is not whole: the live version then stays as it is. A version whose
    recall is below its target is promoted too: that is for whoever names it to decide. OvertakenError when somebody
    makes another version live at the same moment.
    """
    manifest = collection.read_version(version)
    check_version(collection, manifest, verify=collection.storage.is_local)
    collection.promote(version, live_version(collection))
    collection.storage.delete(_mark(version))
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
    for name in _older(collection, before):
        try:
            manifest = require_good(collection, name, verify=collection.storage.is_local)
        except NOT_GOOD as error:
            skipped[name] = str(error)
            continue
        # First, because a rollback that was cut short is repeated, and must not come back to this version.
        pass_over(collection, before)
        collection.promote(name, before)
        return RolledBack(manifest=manifest, before=before, skipped=skipped)
    reasons = "; ".join(skipped.values()) or "there is no older one"
    raise DamagedVersionError(
        f"no version before {before} to go back to: {reasons}. It stays the live one; build another with "
        "`likeness compact`"
    )


def open_last_good(collection: Collection, open_version: OpenVersion = Searcher.open) -> Searcher:
    """The live version; if that is damaged, the newest good one before it, with a warning that names the file.

    If CURRENT itself cannot be read, the newest good version. DamagedVersionError of the live version when none is
    good; EmptyCollectionError when there is no version.
    """
    try:
        return open_version(collection, None)
    except DamagedVersionError as error:
        damage = error
    for name in _older(collection, live_version(collection)):
        try:
            require_good(collection, name, verify=False)  # opening it verifies every byte
            searcher = open_version(collection, name)
        except NOT_GOOD as error:
            logger.warning("%s", error)
            continue
        logger.warning("%s. Serving index version %s, the last good one", damage, name)
        return searcher
    raise damage


def pass_over(collection: Collection, version: str) -> None:
    """Record that another version was chosen instead of this one: it goes live only if it is promoted."""
    collection.storage.write_atomic(_mark(version), f"{datetime.now(UTC).isoformat()}\n".encode())


def require_good(collection: Collection, version: str, *, verify: bool = True) -> VersionManifest:
    """The manifest of a version whose files are whole, whose recall meets its target, and that was not rolled back.

    Otherwise raises one of NOT_GOOD. Without `verify` altered bytes are not noticed.
    """
    manifest = collection.read_version(version)
    if _was_rolled_back(collection, version):
        raise RolledBackError(f"index version {version} was rolled back: `likeness promote` takes it again")
    if manifest.below_target:
        raise RecallTooLowError(
            f"index version {version} has a recall@10 of {manifest.recall['10']}, below its target of "
            f"{manifest.settings.target_recall}"
        )
    check_version(collection, manifest, verify=verify)
    return manifest


def _version(collection: Collection, name: str, *, live: bool) -> Version:
    manifest, damage = None, None
    try:
        manifest = collection.read_version(name)
    except DamagedVersionError as error:
        damage = str(error)
    return Version(
        name=name,
        live=live,
        rolled_back=_was_rolled_back(collection, name),
        manifest=manifest,
        damage=damage,
    )


def _mark(version: str) -> str:
    """The file whose presence marks a version as rolled back."""
    return f"index/{version}/rolled_back"


def _was_rolled_back(collection: Collection, version: str) -> bool:
    return collection.storage.is_file(_mark(version))


def _older(collection: Collection, version: str | None) -> Iterator[str]:
    """Versions before this one, or all of them; newest first."""
    return (name for name in reversed(collection.versions()) if version is None or name < version)


def live_version(collection: Collection) -> str | None:
    """The number of the live version; None if there is none, or if CURRENT cannot be read."""
    try:
        return collection.current()
    except DamagedVersionError:
        return None
