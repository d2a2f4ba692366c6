"""What has happened to a source since its rows were written, and the plans that bring its collection up to date."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.exif import EXIF_COLUMNS
from index.collection.collection import Collection, Snapshot
from index.collection.live_rows import LiveRows
from index.collection.records import ModelRecord, RowFile
from index.collection.rows import STATE_COLUMNS, TEXT, conform, is_filtered, metadata_columns
from index.storage.storage import canonical_address
from jobs.errors import TooManyMissingError
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter, leave_out
from jobs.planning.plan import Counts, plan_run, unchanged_mask
from jobs.planning.reuse import ReusableRows, find_known
from jobs.sources.listing import (
    KNOWN,
    LISTING,
    REFUSAL,
    REFUSED_STAGE,
    Column,
    concat_listings,
    refused_mask,
    together,
    with_columns,
    with_outcome,
)

_COMPARED_ROWS = 2**18
"""Rows whose metadata is held at once."""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """Of another source, which has so many `rows`, those whose ids are listed here for images elsewhere."""

    source: str
    rows: int
    images: pa.Table

    @property
    def warning(self) -> str:
        """What is said before other images take the ids of these."""
        first = self.images.slice(0, 1).to_pylist()[0]
        return (
            f"{self.images.num_rows:,} ids belong to images elsewhere, which will be replaced; the first is "
            f"{first['image_id']}, now {first['uri']}. A collection for each source keeps both"
        )


@dataclass(frozen=True, kw_only=True)
class SourceChange:
    """What is to be written, a run for each source, with what is known already.

    `rows` counts the source's live rows, `others` those of other sources, `kept` the images that are missing and stay
    found. With other models' rows in the collection all sources are covered, the one that was listed first.
    """

    known: list[ReusableRows]
    rows: int
    others: int
    kept: int
    counts: Counts
    replaced: list[Replaced]

    def require_few(self, source: str, max_missing: float, *, delete: bool) -> None:
        """`TooManyMissingError` when too many would be deleted, or the last, or too many of another source replaced."""
        gone = self.counts.missing - self.counts.moved
        if delete and self.counts.listed == self.others == 0:
            # No index of no images could take over: deleted, they would still be found.
            raise TooManyMissingError(
                f"{gone:,} of the {self.rows:,} images of {source} are no longer listed, and the collection has no "
                "others, so nothing was changed: an index cannot be empty. Is a disk not mounted, or the address "
                "wrong? If they are really gone, remove the collection, or embed other images into it first"
            )
        if delete:
            missing = f"{source} are no longer listed"
            remedy = "Is a disk not mounted, or the address wrong? If they are really gone"
            _require_few(gone, self.rows, missing, remedy, max_missing)
        for other in self.replaced:
            taken = f"{other.source} would be replaced by those that have the same ids in {source}"
            remedy = "Is the address wrong? A collection for each source keeps both. If one takes the other's place"
            _require_few(other.images.num_rows, other.rows, taken, remedy, max_missing)


def _require_few(count: int, rows: int, what: str, remedy: str, max_missing: float) -> None:
    if count <= max_missing * rows:
        return
    share = count / rows
    raise TooManyMissingError(
        f"{count:,} of the {rows:,} images of {what} ({share:.1%}, over the {max_missing:.0%} of --max-missing), so "
        f"nothing was changed. {remedy}, say so with --max-missing {min(1.0, share + 0.01):.2f}"
    )


def compare(
    listing: pa.Table,
    snapshot: Snapshot,
    source: str,
    model: ModelRecord,
    *,
    delete: bool,
    verify_hash: bool,
    images: ImageFilter = EVERY_IMAGE,
) -> SourceChange:
    """Compare a listing with the live rows. Nothing is written. `images` says which of the listing are embedded."""
    live = snapshot.live()
    own, same_model = live.of_source(source), live.of_model(model)
    state, relabelled = _compare_metadata(same_model, listing)
    # Most collections have one source and one model: then these are the very same rows.
    rows = state if own is same_model else own.read(["image_id", "content_hash", "error_stage", "error_reason"])
    missing = rows.filter(pc.invert(pc.is_in(rows["image_id"], listing["image_id"])))
    # What only a listing said, such as a repeated id, is gone once it says so no more.
    gone = missing if delete else missing.filter(pc.equal(missing["error_stage"], pa.scalar(REFUSED_STAGE)))
    kept = missing.filter(pc.invert(pc.is_in(missing["image_id"], gone["image_id"])))
    if len(agreeing := same_model.of_exif(images.exif)) < len(same_model):
        other = pc.invert(pc.is_in(state["image_id"], agreeing.read(["image_id"])["image_id"]))
        relabelled = pc.or_(relabelled, pc.and_(other, pc.is_in(state["image_id"], listing["image_id"])))
    relabelled = pc.and_(relabelled, pc.is_in(state["image_id"], rows["image_id"]))
    listing, stale = _find_left_out(images, listing, state, same_model.of_keep(images.key))
    # Such rows cover nothing: they are written anew, with the vector that they have if it still counts.
    anew = pc.or_(relabelled, pc.is_in(state["image_id"], stale)) if len(stale) else relabelled
    current = state.filter(pc.invert(anew)) if pc.any(anew).as_py() else state
    listings = {source: listing}
    for name in live.sources:
        theirs = live.of_source(name)
        if len(theirs) > len(theirs.of_model(model)):  # an index holds one model's vectors: all are embedded anew
            listings[name] = _relisted(listing, theirs, kept, own=name == source)
    known, counts = [], Counts()
    for name, listed in listings.items():
        keep = partial(_still_listed, snapshot.collection, listed)
        # Other sources' images stay as their own last job had them.
        which = images if name == source else last_filter(snapshot, name)
        plan = plan_run(listed, snapshot, name, model, current, keep=keep, verify_hash=verify_hash, images=which)
        if name == source:
            plan = replace(plan, deletes=gone["image_id"])
        # Where images are only added, reading all of them here would cost more than it saves: none has moved.
        found = find_known(plan, snapshot, by_content=delete or kept.num_rows > 0, verify_hash=verify_hash)
        known.append(found)
        counts += _counts(found, state, live)
    replaced = [] if known[0].plan.done else _replaced(live, source, listing)
    counts += Counts(
        replaced=sum(other.images.num_rows for other in replaced),
        missing=missing.num_rows,
        moved=_moved(missing, known[0], rows),
        deleted=gone.num_rows,
    )
    return SourceChange(
        known=known,
        rows=len(own),
        others=len(live) - len(own),
        kept=kept["error_reason"].null_count,
        counts=counts,
        replaced=replaced,
    )


def _find_left_out(images: ImageFilter, listing: pa.Table, state: pa.Table, same: LiveRows) -> tuple[pa.Table, Column]:
    """The listing, in which images that are left out are refused; and the ids of live rows that have another outcome
    now, or one that cannot be told from them.

    `state` has the `STATE_COLUMNS` of live rows, `same` are those of runs with the same expression.
    """
    if images.key is None:
        ids = state["image_id"].filter(is_filtered(state))
        return listing, ids.filter(pc.is_in(ids, listing["image_id"])) if len(ids) else ids
    unchanged = unchanged_mask(listing, state)
    at = pc.if_else(unchanged, pc.index_in(listing["image_id"], state["image_id"]), pa.scalar(None, pa.int32()))
    rows = state.select(["size", *KNOWN.names, "error_reason"]).take(at)
    why, judged = images.judge(with_outcome(listing, rows, KNOWN.names))
    why = pc.if_else(refused_mask(listing), pa.scalar(None, TEXT), why)
    out, before = pc.is_valid(why), is_filtered(rows)
    failed = pc.and_not(pc.is_valid(rows["error_reason"]), before)
    made = pc.is_in(listing["image_id"], same.read(["image_id"])["image_id"])
    good = pc.or_(pc.or_(made, failed), pc.and_not(pa.array(judged), before))
    stale = listing["image_id"].filter(pc.and_not(unchanged, pc.if_else(out, before, good)))
    if not pc.any(out).as_py():
        return listing, stale
    rows = rows.take(pc.if_else(out, pa.array(np.arange(rows.num_rows)), pa.scalar(None, pa.int64())))
    return leave_out(with_outcome(listing, rows, KNOWN.names), why), stale


def _compare_metadata(live: LiveRows, listing: pa.Table) -> tuple[pa.Table, Column]:
    """The `STATE_COLUMNS` of rows, and a mask over them: their images are listed, with other metadata.

    Only a part of the rows' metadata is held, as captions may have any length.
    """
    names = [name for name in live.metadata if name not in EXIF_COLUMNS]
    listed = listing.select(metadata_columns(listing.schema))
    schema = together(listed.schema, pa.schema([live.schema_of(names).field(name) for name in names]))
    # In one array each, to take from.
    there = {field.name: conform(listing, pa.schema([field]))[field.name].combine_chunks() for field in schema}
    states, masks = [live.schema_of(STATE_COLUMNS).empty_table()], [np.zeros(0, bool)]
    for rows in live.parts([*STATE_COLUMNS, *names], _COMPARED_ROWS):
        states.append(rows.select(STATE_COLUMNS))
        differs = np.zeros(rows.num_rows, bool)
        if there:
            at = pc.index_in(rows["image_id"], listing["image_id"])
            for field in schema:
                here = conform(rows, pa.schema([field]))[field.name]
                differs |= _differ(there[field.name].take(at), here)
            differs &= pc.is_valid(at).to_numpy()
        masks.append(differs)
    return pa.concat_tables(states), pa.array(np.concatenate(masks))


def _differ(one: Any, other: Any) -> npt.NDArray[np.bool_]:
    """A mask: what is nowhere is the same."""
    neither = pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True))
    same: Column = pc.or_(neither, pc.equal(one, other).fill_null(False))
    mask: npt.NDArray[np.bool_] = pc.invert(same).to_numpy(zero_copy_only=False)
    return mask


def _still_listed(collection: Collection, listing: pa.Table, files: Sequence[RowFile]) -> list[RowFile]:
    """The files of an unfinished run whose images are all still listed with their metadata: else rows would outlive
    their images. `find_known` finds the other rows of a file that is left out.
    """
    rows, relabelled = _compare_metadata(LiveRows.of_files(collection.storage, files), listing)
    gone = pc.invert(pc.is_in(rows["image_id"], listing["image_id"]))
    wrong = np.cumsum([0, *pc.or_(gone, relabelled).to_numpy()])
    ends = np.cumsum([file.rows for file in files])
    return [file for file, end in zip(files, ends, strict=True) if wrong[end] == wrong[end - file.rows]]


def _moved(missing: pa.Table, known: ReusableRows, rows: pa.Table) -> int:
    """How many of the missing rows have come back under a new id: no more of a content than there are new ids of it."""
    ids = known.plan.todo["image_id"].take(known.todo)
    arrived = pc.value_counts(known.hashes.filter(pc.invert(pc.is_in(ids, rows["image_id"]))))
    gone = pc.value_counts(missing["content_hash"])
    at = pc.index_in(gone.field("values"), arrived.field("values"), skip_nulls=True)
    return _true(pc.min_element_wise(gone.field("counts"), arrived.field("counts").take(at), skip_nulls=False))


def _replaced(live: LiveRows, source: str, listing: pa.Table) -> list[Replaced]:
    found = []
    for name in live.sources:
        if name == source:
            continue
        theirs = live.of_source(name)
        images = theirs.read(["image_id", "uri"])
        here = listing["uri"].take(pc.index_in(images["image_id"], listing["image_id"]))
        images = images.filter(pc.not_equal(images["uri"], here))  # which drops what is null: an id that is not listed
        if images.num_rows:
            found.append(Replaced(source=name, rows=len(theirs), images=images))
    return found


def _relisted(listing: pa.Table, theirs: LiveRows, kept: pa.Table, *, own: bool) -> pa.Table:
    """The listing of a source whose rows are another model's: its own and what is kept, or what its rows say."""
    if own and not kept.num_rows:
        return listing
    rows = theirs.read([*LISTING.names, *REFUSAL.names, *KNOWN.names, *(set(theirs.metadata) - {*EXIF_COLUMNS})])
    refused = pc.or_(pc.equal(rows["error_stage"], pa.scalar(REFUSED_STAGE)), is_filtered(rows))
    # Of other rejects another model may think otherwise.
    reasons = {each.name: pc.if_else(refused, rows[each.name], pa.scalar(None, each.type)) for each in REFUSAL}
    rows = with_columns(rows, reasons)
    if not own:
        return rows.filter(pc.invert(pc.is_in(rows["image_id"], listing["image_id"])))
    return concat_listings([listing, rows.filter(pc.is_in(rows["image_id"], kept["image_id"]))])


def last_filter(snapshot: Snapshot, source: str) -> ImageFilter:
    """That of the source's last run, as far as runs record it: nothing is judged by it."""
    runs = (run for run in reversed(snapshot.committed) if canonical_address(run.source) == source)
    return next((ImageFilter(key=run.keep, exif=run.exif) for run in runs), EVERY_IMAGE)


def _counts(known: ReusableRows, before: pa.Table, live: LiveRows) -> Counts:
    """Why each image is to do. `before` has the `STATE_COLUMNS` of the model's rows, `live` the rows of all models."""
    plan, todo = known.plan, known.plan.todo
    if plan.files:  # what they have is done, and is no less new for that
        done = pc.invert(pc.is_in(plan.listing["image_id"], todo["image_id"]))
        todo = plan.listing.filter(pc.invert(pc.and_(unchanged_mask(plan.listing, plan.live), done)))
    same_model = _true(pc.is_in(todo["image_id"], before["image_id"]))
    there = same_model
    if len(live) > before.num_rows:
        there = _true(pc.is_in(todo["image_id"], live.read(["image_id"])["image_id"]))
    settled = with_columns(before, {"retryable": pa.nulls(before.num_rows, pa.bool_())})
    retried = _true(unchanged_mask(todo, settled.filter(before["retryable"])))
    return Counts(
        listed=plan.listing.num_rows,
        unchanged=plan.listing.num_rows - todo.num_rows,
        new=todo.num_rows - there,
        changed=same_model - retried,
        retried=retried,
        other_model=there - same_model,
        resumed=todo.num_rows - plan.todo.num_rows,
        reused=len(known),
        refused=len(known.refused) - known.filtered,
        filtered=known.filtered,
        to_embed=plan.todo.num_rows - len(known) - len(known.refused),
    )


def _true(mask: Any) -> int:
    return int(pc.sum(mask).as_py() or 0)
