"""Which version is live, which ones are fit to be, which one is served if the live one is damaged, and which model the
collection has.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from index.collection.cache.file_cache import first_damage
from index.collection.collection import Collection, Snapshot
from index.collection.layout import ROLLED_BACK, SUPERSEDED, version_path
from index.collection.records.model_record import ModelRecord
from index.collection.records.version_manifest import VersionManifest
from index.errors import DamagedVersionError, RecallTooLowError, RolledBackError
from index.versions.files import version_files

T = TypeVar("T")

UNFIT_VERSION = (DamagedVersionError, RecallTooLowError, RolledBackError)
"""Errors for a version that is not good enough to be served."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LiveVersion:
    """The version that CURRENT names. `damage` says why its name or manifest is unknown. All None: none is live."""

    name: str | None = None
    manifest: VersionManifest | None = None
    damage: DamagedVersionError | None = None


def live_version(collection: Collection) -> LiveVersion:
    """The live version, as far as it can be read."""
    name = None
    try:
        name = collection.current()
        return LiveVersion(name=name, manifest=collection.read_version(name) if name else None)
    except DamagedVersionError as error:
        return LiveVersion(name=name, damage=error)


def live_manifest(collection: Collection) -> VersionManifest | None:
    """None if there is no live version, or (with a warning) if it cannot be read."""
    live = live_version(collection)
    if live.damage:
        logger.warning("%s", live.damage)
    return live.manifest


def live_or_last_good_manifest(collection: Collection) -> VersionManifest | None:
    """The live version; if that cannot be read, the newest good one before it. Jobs continue with its model."""
    live = live_version(collection)
    return live.manifest or newest_good(collection, live.name)


def newest_good(collection: Collection, before: str | None) -> VersionManifest | None:
    """The manifest of the newest good version before `before` (None: of all versions); None if there is none."""
    for name in older_versions(collection, before):
        with suppress(*UNFIT_VERSION):
            return require_servable(collection, name, verify=False)
    return None


def open_last_good(collection: Collection, open_version: Callable[[Collection, str | None], T]) -> T:
    """Open the live version; if that or CURRENT is damaged, the newest good one before it, with a warning.

    If none is good, raises the DamagedVersionError of the live version; if there is no version, what `open_version`
    raises.
    """
    try:
        return open_version(collection, None)
    except DamagedVersionError as error:
        damage = error
    for name in older_versions(collection, live_version(collection).name):
        try:
            require_servable(collection, name, verify=False)  # opening it verifies every byte
            opened = open_version(collection, name)
        except UNFIT_VERSION as error:
            logger.warning("%s", error)
            continue
        logger.warning("%s. Serving index version %s, the last good one", damage, name)
        return opened
    raise damage


def collection_model(snapshot: Snapshot) -> ModelRecord | None:
    """The live version's model, so that a rollback restores the model too; without a version, the newest run's."""
    found = live_or_last_good_manifest(snapshot.collection) or next(reversed(snapshot.committed), None)
    return found.model if found else None


def require_servable(collection: Collection, version: str, *, verify: bool = True) -> VersionManifest:
    """The manifest of a version that is intact, meets its target and was not rolled back; else an `UNFIT_VERSION`."""
    manifest = collection.read_version(version)
    if rolled_back_at(collection, version):
        command = f"likeness promote {collection.location} {version}"
        raise RolledBackError(f"index version {version} was rolled back: run `{command}` to make it live")
    if manifest.below_target:
        raise RecallTooLowError(f"index version {version} reaches {manifest.missed_message}")
    check_version(collection, manifest, verify=verify)
    return manifest


def check_version(
    collection: Collection, manifest: VersionManifest, *, verify: bool = True, here: Path | None = None
) -> None:
    """DamagedVersionError if a file of a version does not match its manifest. Without `verify` only sizes count. Files
    of a bucket are linked to their paths below the folder `here`, if one is given.
    """
    damage = first_damage(collection.storage, version_files(manifest), here, verify=verify)
    if damage:
        path, problem = damage
        raise DamagedVersionError(
            f"index version {manifest.version} is damaged: {path} {problem}; other versions: "
            f"{collection.other_versions(manifest.version)}; go back with `likeness rollback`, or build it again with "
            "`likeness compact`",
            path,
        )


def older_versions(collection: Collection, version: str | None) -> Iterator[str]:
    """Versions before `version` (None: all), newest first."""
    return (name for name in reversed(collection.versions()) if version is None or name < version)


def is_intact(collection: Collection, manifest: VersionManifest) -> bool:
    """Whether all files of a version exist unaltered; logs a warning if not."""
    try:
        # In a bucket only sizes are compared; otherwise every night without changes would download the whole index.
        check_version(collection, manifest, verify=collection.storage.is_local)
    except DamagedVersionError as error:
        logger.warning("%s", error)
        return False
    return True


def mark_rolled_back(collection: Collection, version: str) -> None:
    """Record that another version was chosen instead of this one, which then goes live only if promoted."""
    collection.storage.write_atomic(version_path(version, ROLLED_BACK), f"{datetime.now(UTC).isoformat()}\n".encode())


def was_live(collection: Collection, version: str) -> bool:
    """Whether another version has replaced this one as the live one."""
    return collection.storage.is_file(version_path(version, SUPERSEDED))


def rolled_back_at(collection: Collection, version: str) -> datetime | None:
    """When a version was rolled back; None if it was not. If the time cannot be read, it is now."""
    try:
        time = collection.storage.read(version_path(version, ROLLED_BACK)).decode().strip()
        return datetime.fromisoformat(time).astimezone(UTC)
    except FileNotFoundError:
        return None
    except (ValueError, OverflowError):
        return datetime.now(UTC)
