"""What earlier runs of a source left: one to resume, and the filter of the last."""

from embedder.images.exif import EXIF_VERSION
from index.collection.collection import Snapshot
from index.collection.records import ModelRecord, RunSettings, RunStart
from index.storage.storage import canonical_address
from index.versions.servable import live_or_last_good_manifest
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter


def unfinished_run(snapshot: Snapshot, source: str, model: ModelRecord, image_filter: ImageFilter) -> RunStart | None:
    """The newest run of a source, a model and a filter that was started and not committed."""
    # A newer committed run would hide an older one's rows of the same ids; a new run copies these instead.
    newer = (run for run in snapshot.unfinished if run.run_id > snapshot.last_run)
    same = [run for run in newer if run.source == source and not image_filter.settings.differing(run)]
    started = [run for run in same if run.model.agrees_with(model)]
    if not started:
        return None
    # A run that is in the live version has lost its manifest. If it were resumed, its new rows would seem indexed.
    live = live_or_last_good_manifest(snapshot.collection)
    return None if live and started[-1].run_id in live.runs else started[-1]


def last_filter(snapshot: Snapshot, source: str) -> ImageFilter:
    """The filter for another run of a source, of the settings of its last: it cannot judge images."""
    runs = (run for run in reversed(snapshot.committed) if canonical_address(run.source) == source)
    settings = (RunSettings(keep=run.keep, exif=EXIF_VERSION * bool(run.exif)) for run in runs)
    return next((ImageFilter(settings=each) for each in settings), EVERY_IMAGE)
