"""Builds index versions, from all live rows or by updating the live version, and publishes those that are good."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from index.collection import Collection
from index.errors import DamagedVersionError, FactoryError, OvertakenError, RecallTooLowError
from index.records import (
    IndexSettings,
    RunManifest,
    SegmentRecord,
    VersionManifest,
)
from index.segment_job import SegmentJob
from index.verify import check_version
from index.version_build import RunJobs, VersionBuild
from index.versions import NOT_GOOD, live_manifest, live_version, pass_over, require_good

logger = logging.getLogger(__name__)


def run_here(jobs: Sequence[SegmentJob]) -> list[SegmentRecord | None]:
    """Build segments one after the other in this process; each uses all cores."""
    return [job.run() for job in jobs]


def build_index(
    collection: Collection,
    settings: IndexSettings | None = None,
    *,
    promote: bool = True,
    rebuild: bool = False,
    run_jobs: RunJobs = run_here,
    runs: Sequence[RunManifest] | None = None,
) -> VersionManifest:
    """Index the live embedded rows as a new version, measure it, and make it the live one.

    The live version is updated by the changes since. If there are none, and every file is whole (in a bucket: has its
    size), it is returned. Everything is built anew with `rebuild`, with other settings, for another model, and when an
    update's recall is below the target. A version that is complete but not live is not built twice. `settings` None:
    those of the live version. `runs` are all committed ones, if the caller has read them.

    EmptyCollectionError when nothing is embedded, ModelMismatchError when the vectors are of two models,
    CollectionError for a vector that is not of unit norm, FactoryError for an index that cannot be built,
    RecallTooLowError when recall@10 is below the target, OvertakenError when somebody made another version live
    meanwhile: the new version is then complete, and not live. The live version stays as it is.
    """
    runs = collection.runs() if runs is None else runs
    before, live = live_version(collection), live_manifest(collection)
    settings = settings or (live.settings if live else IndexSettings())
    base = live if live and _covers_first(live, runs) else None
    update = base is not None and not rebuild and settings == base.settings
    if base and update and len(base.runs) == len(runs) and _is_whole(collection, base):
        logger.info("index version %s covers all runs already: nothing to build", base.version)
        return base
    manifest = None if rebuild else _made_already(collection, runs, settings, before)
    if base and update and manifest is None and len(base.runs) < len(runs):
        manifest = _updated(VersionBuild(collection, runs, settings, run_jobs), base)
    manifest = manifest or VersionBuild(collection, runs, settings, run_jobs).from_scratch()
    if manifest.below_target:
        raise RecallTooLowError(_too_low(collection, manifest))
    if promote:
        _promote(collection, manifest, before)
    return manifest


def _made_already(
    collection: Collection, runs: Sequence[RunManifest], settings: IndexSettings, live: str | None
) -> VersionManifest | None:
    """The newest version if it is of exactly these runs and settings: it is below its target, or its job was stopped
    before it went live. None if it is damaged or was rolled back.
    """
    newest = max(collection.versions(), default="")
    if newest <= (live or ""):
        return None
    try:
        manifest = collection.read_version(newest)
        if manifest.runs != [run.run_id for run in runs] or manifest.settings != settings:
            return None
        return require_good(collection, newest)
    except RecallTooLowError:
        return manifest
    except NOT_GOOD as error:
        logger.warning("%s", error)
        return None


def _promote(collection: Collection, manifest: VersionManifest, before: str | None) -> None:
    """Make a version live, unless another than `before` is: whoever chose that does not know of this one."""
    try:
        collection.promote(manifest.version, before)
    except OvertakenError as error:
        pass_over(collection, manifest.version)
        raise OvertakenError(
            f"index version {live_version(collection)} was made live while {manifest.version} was built, so that "
            f"stays: `likeness promote {collection.location} {manifest.version}` takes this one"
        ) from error


def _updated(build: VersionBuild, base: VersionManifest) -> VersionManifest | None:
    """The updated version; None when only a new build from all rows can be good enough."""
    try:
        manifest = build.update(base)
    except (DamagedVersionError, FactoryError) as error:
        logger.warning("%s: building from all rows", error)
        return None
    if manifest.below_target:
        logger.warning("the update reaches recall@10 %.6g: building from all rows", manifest.recall["10"])
        build.discard()
        return None
    return manifest


def _covers_first(version: VersionManifest, runs: Sequence[RunManifest]) -> bool:
    """Whether a version can be updated: it covers the first of these runs, and the other runs are of its model."""
    count = len(version.runs)
    return version.runs == [run.run_id for run in runs[:count]] and all(
        run.model.agrees_with(version.model) for run in runs[count:]
    )


def _is_whole(collection: Collection, manifest: VersionManifest) -> bool:
    try:
        # In a bucket only sizes are compared: otherwise each night without changes would download the whole index.
        check_version(collection, manifest, verify=collection.storage.is_local)
    except DamagedVersionError as error:
        logger.warning("%s", error)
        return False
    return True


def _too_low(collection: Collection, manifest: VersionManifest) -> str:
    live = collection.current()
    return (
        f"index version {manifest.version} reaches recall@10 {manifest.recall['10']:.6g}, expected "
        f"{manifest.settings.target_recall:g} or more: it is not live, "
        + (f"{live} still is" if live else "and no other is")
        + "; allow more memory with --max-memory, name another index with --factory, lower --target-recall, or put it "
        f"live as it is with `likeness promote {collection.location} {manifest.version}`"
    )
