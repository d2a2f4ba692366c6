"""Whether a new version can be an update of the live one, and whether the update is good enough."""

import logging
from collections.abc import Sequence

from index.build.version import VersionBuild
from index.collection.records import RunManifest, VersionManifest
from index.errors import DamagedVersionError, FactoryError

logger = logging.getLogger(__name__)


def updated(build: VersionBuild, base: VersionManifest) -> VersionManifest | None:
    """The updated version; None when only a new build from all rows can be good enough."""
    try:
        manifest = build.update(base) if len(base.runs) < len(build.runs) else build.annotate(base)
    except (DamagedVersionError, FactoryError) as error:
        logger.warning("%s: building from all rows", error)
        return None
    if manifest.below_target:
        logger.warning("the update reaches %s: building from all rows", manifest.missed_message)
        build.discard()
        return None
    return manifest


def covers_first(version: VersionManifest, runs: Sequence[RunManifest]) -> bool:
    """Whether a version can be updated: it covers the first of these runs, and the other runs are of its model."""
    count = len(version.runs)
    agree = all(run.model.agrees_with(version.model) for run in runs[count:])
    return agree and version.runs == [run.run_id for run in runs[:count]]
