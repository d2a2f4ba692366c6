"""A plan: what a run has to write for the images of one source."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from embedder.images.exif import EXIF_VERSION
from index.collection.catalog.catalog import Catalog
from index.collection.catalog.workspace import StoredAnswer
from index.collection.collection import Collection, Snapshot
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RowFile, RunSettings, RunStart
from index.storage.storage import canonical_address
from index.versions.servable import live_or_last_good_manifest
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter
from jobs.sources.stored_listing import Listing


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`todo` is the part of a listing of `listed` images to embed. Others need no model: `copies` take the outcome of
    the rows of `catalog` at `COPIED`; `refused` are rejected by the listing, or the `filtered` ones by `image_filter`.
    `run` is the unfinished run to resume, `files` those of its files that count. `attempt` numbers the tries at a run:
    rows of later ones win, so the names of their files sort later.

    `rejects` has `image_id`, `uri`, `error_reason` and `retryable` of the live rejects of the listed images, `deletes`
    the `seq` and `image_id` of rows that the run will record as deleted; None: there are none. If the resumed run may
    have rows of images that are gone since, those of the `images`, a query with `image_id`, count. With `moved`, the
    model is no longer where the collection says, and the run records its new place, if nothing else.
    """

    source: str
    model: ModelRecord
    listed: int
    todo: Listing
    copies: Listing | None = None
    catalog: Catalog | None = None
    refused: Listing | None = None
    rejects: StoredAnswer | None = None
    images: str = ""
    moved: bool = False
    run: RunStart | None = None
    files: Sequence[RowFile] = ()
    attempt: int = 1
    deletes: StoredAnswer | None = None
    filtered: int = 0
    image_filter: ImageFilter = EVERY_IMAGE

    @property
    def done(self) -> bool:
        """Whether there is nothing to embed and nothing to commit."""
        known = (self.copies.num_rows if self.copies else 0) + self.refusals
        return self.todo.num_rows + known + self.deleted == 0 and self.run is None and not self.moved

    @property
    def deleted(self) -> int:
        return self.deletes.num_rows if self.deletes else 0

    @property
    def already_there(self) -> int:
        return self.listed - self.todo.num_rows - self.refusals

    @property
    def refusals(self) -> int:
        return self.refused.num_rows if self.refused else 0

    def start(self, collection: Collection) -> RunStart:
        """The run to resume, or a new one."""
        return self.run or collection.start_run(self.source, self.model, settings=self.image_filter.settings)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Images of the source, compared with their rows.

    `listed` = `unchanged` + `new` + `changed` + `retried` + `other_model`; an image also counts as changed if its
    metadata or the outcome of the filter changed. Of those that are not unchanged, `resumed` were written by an
    unfinished run, `reused` take the vector of the same content (they were moved, copied, touched or relabelled),
    `refused` are rejected by the listing itself (an unreadable line, a repeated id), `filtered` are left out without
    reading them, and `to_embed` need the model unless they are left out after reading. `replaced` take the ids of other
    sources' images. `missing` have a row but are not listed; of these, `moved` are listed under another id, and
    `deleted` lose their row.
    """

    listed: int = 0
    unchanged: int = 0
    new: int = 0
    changed: int = 0
    retried: int = 0
    other_model: int = 0
    resumed: int = 0
    reused: int = 0
    refused: int = 0
    filtered: int = 0
    to_embed: int = 0
    replaced: int = 0
    missing: int = 0
    moved: int = 0
    deleted: int = 0


def write_block(collection: Collection, run_id: str, attempt: int, rows: pa.Table) -> RowFile:
    """Write a block of a run's rows as one file."""
    ids = [str(image_id) for image_id in rows["image_id"].to_pylist()]
    return collection.write_rows(run_id, block_name(attempt, ids), rows)


def block_name(attempt: int, image_ids: list[str]) -> str:
    """The start of the names of a block's files; later attempts sort later. `write_rows` adds a token.

    An actor that seemed dead may write the block long after Ray had it embedded again, perhaps on another device. The
    token prevents its file from replacing the one that counts.
    """
    digest = hashlib.sha256("\n".join(image_ids).encode()).hexdigest()
    return f"{attempt:04}-{digest[:20]}"


def next_attempt(files: Sequence[RowFile]) -> int:
    """The number of the next try at a run that has these files."""
    return 1 + max((int(file.path.rpartition("/")[2].split("-")[0]) for file in files), default=0)


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
