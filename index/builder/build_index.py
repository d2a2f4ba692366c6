"""Builds index versions, from all live rows or by updating the live version, and makes good ones live."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from index.arrays import Vectors
from index.builder.queries_file import queries_of
from index.builder.segment import SegmentJob
from index.builder.version import RunJobs, Texts, VersionBuild
from index.collection import Collection
from index.collection.annotations import list_annotations
from index.collection.layout import MANIFEST, QUERIES, WORDS, run_path, version_path
from index.collection.records.index_settings import IndexSettings
from index.collection.records.run_manifest import RunManifest
from index.collection.records.version_manifest import SegmentRecord, VersionManifest
from index.errors import (
    DamagedRunError,
    DamagedVersionError,
    FactoryError,
    OvertakenError,
    RecallTooLowError,
    RolledBackError,
)
from index.versions.repeats import repeated_versions, require_no_repeat
from index.versions.servable import (
    UNFIT_VERSION,
    is_intact,
    live_version,
    mark_rolled_back,
    newest_good,
    require_servable,
)

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
    accept_lost_runs: bool = False,
    run_jobs: RunJobs = run_here,
    runs: Sequence[RunManifest] | None = None,
    texts: Texts = lambda: None,
) -> VersionManifest:
    """Index the live embedded rows with their annotations as a new version, measure it, and make it the live one.

    The live version is updated by the changes since, sharing all segments if only annotations have changed; if nothing
    has, and it is whole, it is returned. Everything is built anew with `rebuild`, with other settings, for another
    model, if an update's recall is below the target, and if a query in the live version costs twice what it should.
    `settings` are by default those of the live version, `runs` all committed ones. `texts` makes vectors of texts to
    measure recall with, if the live version has none of this model and of these settings. A damaged CURRENT is repaired
    first.

    EmptyCollectionError if nothing is embedded, ModelMismatchError if the vectors are of two models, CollectionError
    for a vector that is not of unit norm, FactoryError for an index that cannot be built, DamagedRunError if the
    manifest of a run of the live version is lost (unless `accept_lost_runs`). After a RecallTooLowError, an
    OvertakenError or a RolledBackError the new version is complete but not live.
    """
    before, live = _repair_current(collection)
    runs = collection.runs() if runs is None else runs
    annotations = list_annotations(collection)
    columns = {annotation.name: annotation.run_ids for annotation in annotations}
    settings = settings or (live.settings if live else IndexSettings())
    if live and not accept_lost_runs:
        require_all_runs(collection, live, runs)
    base = live if live and _can_update(live, runs) else None
    update = base is not None and not rebuild and settings == base.settings and not base.aged
    changed = base is not None and (len(base.runs) < len(runs) or base.annotations != columns)
    if base and update and base.version == before and not changed and is_intact(collection, base):
        logger.info("index version %s covers all runs already: nothing to build", base.version)
        return base
    rolled_back = repeated_versions(collection, live, runs, columns)
    if rolled_back and not rebuild:
        require_no_repeat(collection, rolled_back, runs, settings, before)
    if base and base.aged:
        logger.warning("%s: building from all rows", _aged_message(base))
    manifest = None if rebuild else _unpublished_version(collection, runs, columns, settings, before)
    new_build = partial(VersionBuild, collection, runs, annotations, settings, run_jobs)
    if base and update and manifest is None and changed:
        manifest = _try_update(new_build(), base)
    manifest = manifest or new_build().from_scratch(partial(_known_texts, collection, live, runs[-1:], settings, texts))
    if manifest.below_target:
        raise RecallTooLowError(_too_low(collection, manifest))
    if manifest.aged:
        logger.warning("%s: the next build will be one from all rows", _aged_message(manifest))
    if promote and rolled_back:
        raise _repeats(collection, manifest, rolled_back, before)
    if promote:
        _promote(collection, manifest, before)
    return manifest


def _repeats(
    collection: Collection, manifest: VersionManifest, rolled_back: Mapping[str, object], before: str | None
) -> RolledBackError:
    """Marks a version that repeats one that was rolled back; returns the error that says so."""
    mark_rolled_back(collection, manifest.version)
    repeats = "may repeat" if None in rolled_back.values() else "repeats"
    were = "was" if len(rolled_back) == 1 else "were"
    return RolledBackError(
        f"index version {manifest.version} was built but is not live, because it {repeats} "
        f"{' and '.join(rolled_back)}, which {were} rolled back: {before} stays live; run "
        f"`likeness promote {collection.location} {manifest.version}` to make the new one live"
    )


def _repair_current(collection: Collection) -> tuple[str | None, VersionManifest | None]:
    """The live version's name, and its manifest or the newest good one, which goes live if CURRENT is lost."""
    live = live_version(collection)
    if live.manifest:
        return live.name, live.manifest
    good = newest_good(collection, live.name)
    if live.damage and good and not live.name:
        collection.promote(good.version, None)
        logger.warning("%s. Index version %s, the newest good one, is live again", live.damage, good.version)
        return good.version, good
    if live.damage:
        logger.warning("%s", live.damage)
    return live.name, good


def require_all_runs(collection: Collection, live: VersionManifest, runs: Sequence[RunManifest]) -> None:
    """DamagedRunError if the live version was built from a run whose manifest is lost: its images would vanish."""
    listed = {run.run_id for run in runs}
    lost = [run_id for run_id in live.runs if run_id not in listed]
    if not lost:
        return
    collection.check_lease()  # a job that has taken it over may have committed these runs
    sources = {start.run_id: f" (of {start.source})" for start in collection.snapshot().unfinished}
    named = " and ".join(f"{run_path(run_id, MANIFEST)}{sources.get(run_id, '')}" for run_id in lost)
    raise DamagedRunError(
        f"{named} is missing, and index version {live.version}, which stays live, was built from it: building without "
        "it would lose its images. Restore the file from a backup; or embed the source again with `likeness embed`, "
        f"then run `likeness index {collection.location} --accept-lost-runs` to go on without the file",
        run_path(lost[0], MANIFEST),
    )


def _unpublished_version(
    collection: Collection,
    runs: Sequence[RunManifest],
    columns: Mapping[str, list[str]],
    settings: IndexSettings,
    live: str | None,
) -> VersionManifest | None:
    """The newest version, if it is whole, newer than the live one, and of this content and these settings: its recall
    was too low, or its build was stopped before it went live.
    """
    newest = max(collection.versions(), default="")
    if newest <= (live or ""):
        return None
    try:
        manifest = collection.read_version(newest)
        content = manifest.runs, manifest.annotations, manifest.settings
        if content != ([run.run_id for run in runs], columns, settings):
            return None
        return require_servable(collection, newest)
    except RecallTooLowError:
        return manifest
    except UNFIT_VERSION as error:
        logger.warning("%s", error)
        return None


def _can_update(version: VersionManifest, runs: Sequence[RunManifest]) -> bool:
    """Whether a version covers the first of these runs, the other runs are of its model, and it has an index of words,
    which older releases did not write.
    """
    included, newer = runs[: len(version.runs)], runs[len(version.runs) :]
    agree = all(run.model.agrees_with(version.model) for run in newer)
    words = version.settings.words == () or all(WORDS in segment.files for segment in version.segments)
    return agree and words and version.runs == [run.run_id for run in included]


def _try_update(build: VersionBuild, base: VersionManifest) -> VersionManifest | None:
    """The updated version; None if all rows have to be built anew."""
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


def _aged_message(manifest: VersionManifest) -> str:
    ratio = f"{manifest.ageing:.1f} times as much as after the last build from all rows"
    return f"a query in index version {manifest.version} costs {ratio}"


def _promote(collection: Collection, manifest: VersionManifest, before: str | None) -> None:
    """Make a version live, unless another than `before` was made live during the build."""
    try:
        collection.promote(manifest.version, before)
    except OvertakenError as error:
        mark_rolled_back(collection, manifest.version)
        raise OvertakenError(
            f"index version {live_version(collection).name} was made live while {manifest.version} was built, so it "
            f"stays live: run `likeness promote {collection.location} {manifest.version}` to replace it"
        ) from error


def _known_texts(
    collection: Collection,
    live: VersionManifest | None,
    newest: Sequence[RunManifest],
    settings: IndexSettings,
    texts: Texts,
) -> Vectors | None:
    """Vectors of texts: those of the live version if they are of the same model and the same list, else new ones."""
    if live and live.settings.queries == settings.queries and all(run.model.agrees_with(live.model) for run in newest):
        with suppress(FileNotFoundError, DamagedVersionError):
            content = collection.storage.read(version_path(live.version, QUERIES))
            if QUERIES in live.files and hashlib.sha256(content).hexdigest() == live.files[QUERIES].sha256:
                known = queries_of(live, content).of("text").vectors
                return known if len(known) else texts()
    return texts()


def _too_low(collection: Collection, manifest: VersionManifest) -> str:
    live = live_version(collection).name
    return (
        f"index version {manifest.version} reaches {manifest.missed_message}: it is not live, "
        + (f"{live} still is" if live else "and no other is")
        + "; allow more memory with --max-memory, name another index with --factory, lower --target-recall, or put it "
        f"live as it is with `likeness promote {collection.location} {manifest.version}`"
    )
