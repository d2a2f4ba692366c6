"""Compares a source with its rows, and plans the runs that bring the collection up to date."""

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
from index.collection.rows import JSON, STATE_COLUMNS, TEXT, conform, in_memory, is_filtered, is_list, metadata_columns
from index.storage.storage import canonical_address
from jobs.errors import TooManyMissingError
from jobs.planning.image_filter import EVERY_IMAGE, ImageFilter, leave_out
from jobs.planning.plan import NO_IDS, Counts, plan_run, postpone, unchanged_mask
from jobs.planning.reuse import ReusableRows, find_reusable
from jobs.sources.listing import (
    FILE_FACTS,
    LISTING,
    REFUSAL,
    REFUSED_STAGE,
    Column,
    concat_listings,
    merge_schemas,
    refused_mask,
    with_columns,
    with_outcome,
)

_COMPARED_ROWS = 2**18
"""Rows whose metadata is in memory at once."""


@dataclass(frozen=True, kw_only=True)
class ReplacedImages:
    """The `images` of another source, out of its `rows`, whose ids the listing gives to images elsewhere."""

    source: str
    rows: int
    images: pa.Table

    @property
    def warning(self) -> str:
        """A warning that other images will take these ids."""
        first = self.images.slice(0, 1).to_pylist()[0]
        return (
            f"{self.images.num_rows:,} ids belong to images elsewhere, which will be replaced; the first is "
            f"{first['image_id']}, now {first['uri']}. To keep both, use a collection for each source"
        )


@dataclass(frozen=True, kw_only=True)
class SourceChange:
    """What changed in a source. `reusable` has the plan of each run to write, and the rows that need no model.

    `rows` counts the source's live rows, `others` those of other sources, `kept` the missing images that searches will
    still find. The listed source comes first; other sources follow if they have rows of another model, which are
    embedded again.
    """

    reusable: list[ReusableRows]
    rows: int
    others: int
    kept: int
    counts: Counts
    replaced: list[ReplacedImages]

    def check_limits(self, source: str, max_missing: float, *, delete: bool) -> None:
        """Raise `TooManyMissingError` if too many images would be deleted or replaced, or none would be left."""
        gone = self.counts.missing - self.counts.moved
        if delete and self.counts.listed == self.others == 0:
            # An index cannot be empty, so the current one would stay live and still find the deleted images.
            raise TooManyMissingError(
                f"{gone:,} of the {self.rows:,} images of {source} are no longer there, and the collection has no "
                "others, so nothing was changed: an index cannot be empty. Is a disk not mounted, or the address "
                "wrong? If the images are really gone, remove the collection, or embed other images into it first"
            )
        if delete:
            missing = f"{source} are no longer there"
            remedy = "Is a disk not mounted, or the address wrong? If the images are really gone"
            _check_share(gone, self.rows, missing, remedy, max_missing)
        for other in self.replaced:
            replaced = f"{other.source} would be replaced by images with the same ids in {source}"
            remedy = "Is the address wrong? To keep both, use a collection for each source. If you mean to replace them"
            _check_share(other.images.num_rows, other.rows, replaced, remedy, max_missing)


def _check_share(count: int, rows: int, problem: str, remedy: str, max_missing: float) -> None:
    if count <= max_missing * rows:
        return
    share = count / rows
    raise TooManyMissingError(
        f"{count:,} of the {rows:,} images of {problem} ({share:.1%}, over the {max_missing:.0%} of --max-missing), so "
        f"nothing was changed. {remedy}, use --max-missing {min(1.0, share + 0.01):.2f}"
    )


def compare(
    listing: pa.Table,
    snapshot: Snapshot,
    source: str,
    model: ModelRecord,
    *,
    delete: bool,
    verify_hash: bool,
    image_filter: ImageFilter = EVERY_IMAGE,
    postponed: Column = NO_IDS,
) -> SourceChange:
    """Compare a listing with the live rows, without writing anything. Rejects of the ids `postponed` have to wait."""
    live = snapshot.live()
    own, same_model = live.of_source(source), live.of_model(model)
    state, relabelled = _compare_metadata(same_model, listing, postponed)
    # With one source and one model, as in most collections, these are the same rows.
    rows = state if own is same_model else own.read(["image_id", "content_hash", "error_stage", "error_reason"])
    missing = rows.filter(pc.invert(pc.is_in(rows["image_id"], listing["image_id"])))
    # Rows that exist only because a listing refused them, such as a repeated id, go once it no longer does.
    gone = missing if delete else missing.filter(pc.equal(missing["error_stage"], pa.scalar(REFUSED_STAGE)))
    kept = missing.filter(pc.invert(pc.is_in(missing["image_id"], gone["image_id"])))
    if len(agreeing := same_model.of_exif(image_filter.exif)) < len(same_model):
        other_exif = pc.invert(pc.is_in(state["image_id"], agreeing.read(["image_id"])["image_id"]))
        relabelled = pc.or_(relabelled, pc.and_(other_exif, pc.is_in(state["image_id"], listing["image_id"])))
    relabelled = pc.and_(relabelled, pc.is_in(state["image_id"], rows["image_id"]))
    listing, stale = _leave_out(image_filter, listing, state, same_model.of_keep(image_filter.key))
    # Such rows do not cover their images: they are rewritten, with their own vector if it is still valid.
    rewritten = pc.or_(relabelled, pc.is_in(state["image_id"], stale)) if len(stale) else relabelled
    current = state.filter(pc.invert(rewritten)) if pc.any(rewritten).as_py() else state
    listings = {source: listing} | {
        name: _relisted(listing, theirs, kept, own=name == source)
        for name, theirs in {name: live.of_source(name) for name in live.sources}.items()
        if len(theirs) > len(theirs.of_model(model))  # an index has one model's vectors, so all are embedded again
    }
    planned = partial(plan_run, snapshot=snapshot, model=model, verify_hash=verify_hash, postponed=postponed)
    reusable, counts = [], Counts()
    for name, listed in listings.items():
        select = partial(_still_listed, snapshot.collection, listed)
        images = image_filter if name == source else last_filter(snapshot, name)  # as their last job left them
        plan = planned(listed, source=name, live=current, select_files=select, image_filter=images)
        if name == source:
            plan = replace(plan, deletes=gone["image_id"])
        # If no image is missing, none has moved, and reading all new ones to look for copies costs more than it saves.
        reusable.append(find_reusable(plan, snapshot, by_content=delete or len(kept) > 0, verify_hash=verify_hash))
        counts += _counts(reusable[-1], state, live)
    replaced = [] if reusable[0].plan.done else _replaced(live, source, listing)
    counts += Counts(
        replaced=sum(other.images.num_rows for other in replaced),
        missing=missing.num_rows,
        moved=_count_moved(missing, reusable[0], rows),
        deleted=gone.num_rows,
    )
    return SourceChange(
        reusable=reusable,
        rows=len(own),
        others=len(live) - len(own),
        kept=kept["error_reason"].null_count,
        counts=counts,
        replaced=replaced,
    )


def _leave_out(images: ImageFilter, listing: pa.Table, state: pa.Table, same: LiveRows) -> tuple[pa.Table, Column]:
    """The listing, in which images that are left out are refused; and the ids of live rows whose outcome has changed,
    or cannot be decided without the file.

    `state` has the `STATE_COLUMNS` of live rows; `same` are those of runs with the same expression.
    """
    if images.key is None:
        ids = state["image_id"].filter(is_filtered(state))
        return listing, ids.filter(pc.is_in(ids, listing["image_id"])) if len(ids) else ids
    unchanged = unchanged_mask(listing, state)
    at = pc.if_else(unchanged, pc.index_in(listing["image_id"], state["image_id"]), pa.scalar(None, pa.int32()))
    rows = state.select(["size", *FILE_FACTS.names, "error_reason"]).take(at)
    reasons, judged = images.judge(with_outcome(listing, rows, FILE_FACTS.names))
    reasons = pc.if_else(refused_mask(listing), pa.scalar(None, TEXT), reasons)
    out, before = pc.is_valid(reasons), is_filtered(rows)
    failed = pc.and_not(pc.is_valid(rows["error_reason"]), before)
    made = pc.is_in(listing["image_id"], same.read(["image_id"])["image_id"])
    good = pc.or_(pc.or_(made, failed), pc.and_not(pa.array(judged), before))
    stale = listing["image_id"].filter(pc.and_not(unchanged, pc.if_else(out, before, good)))
    if not pc.any(out).as_py():
        return listing, stale
    rows = rows.take(pc.if_else(out, pa.array(np.arange(rows.num_rows)), pa.scalar(None, pa.int64())))
    found = listing["content_hash"] if "content_hash" in listing.column_names else pa.nulls(listing.num_rows, TEXT)
    listing = with_outcome(listing, rows, FILE_FACTS.names)
    listing = with_columns(listing, {"content_hash": pc.coalesce(found, listing["content_hash"])})
    return leave_out(listing, reasons), stale


def _compare_metadata(live: LiveRows, listing: pa.Table, postponed: Column = NO_IDS) -> tuple[pa.Table, Column]:
    """The `STATE_COLUMNS` of rows, and a mask over them: the image is listed, with other metadata.

    Rows of the ids `postponed` are not retryable now. Metadata is read in parts, as captions may have any length.
    """
    names = [name for name in live.metadata if name not in EXIF_COLUMNS]
    listed = listing.select(metadata_columns(listing.schema))
    schema = merge_schemas(listed.schema, pa.schema([live.schema_of(names).field(name) for name in names]))
    # Each column as one array, to take from.
    columns = {field.name: conform(listing, pa.schema([field]))[field.name].combine_chunks() for field in schema}
    # Text in some rows makes the column text in all, so with another type its values are written again.
    typed = [field.name for field in in_memory(listed.schema) if field.name in names and field.type != TEXT]
    texts = {name: live.of_text(name).read(["image_id"])["image_id"] for name in typed}
    states, masks = [live.schema_of(STATE_COLUMNS).empty_table()], [np.zeros(0, bool)]
    for rows in live.parts([*STATE_COLUMNS, *names], _COMPARED_ROWS):
        states.append(rows.select(STATE_COLUMNS))
        differs = np.zeros(rows.num_rows, bool)
        if columns:
            at = pc.index_in(rows["image_id"], listing["image_id"])
            for field in schema:
                recorded = conform(rows, pa.schema([field]))[field.name]
                differs |= _differs_mask(columns[field.name].take(at), recorded)
                if field.name in texts:
                    differs |= pc.is_in(rows["image_id"], texts[field.name]).to_numpy()
            differs &= pc.is_valid(at).to_numpy()
        masks.append(differs)
    return postpone(pa.concat_tables(states), postponed), pa.array(np.concatenate(masks))


def _differs_mask(one: Any, other: Any) -> npt.NDArray[np.bool_]:
    """Where two columns differ; null and NaN are equal to each other and themselves."""
    if one.type == JSON:
        one, other = one.cast(TEXT), other.cast(TEXT)
    if is_list(one.type):
        return _different_lists(one, other)
    neither = pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True))
    same: Column = pc.or_(neither, pc.equal(one, other).fill_null(False))
    mask: npt.NDArray[np.bool_] = pc.invert(same).to_numpy(zero_copy_only=False)
    return mask


def _different_lists(one: Any, other: Any) -> npt.NDArray[np.bool_]:
    lengths, others = (pc.list_value_length(lists).fill_null(-1).to_numpy() for lists in (one, other))
    differs: npt.NDArray[np.bool_] = lengths != others
    same = pa.array(~differs)
    elements = _differs_mask(*(pc.list_flatten(lists.filter(same)) for lists in (one, other)))
    rows = np.repeat(np.flatnonzero(~differs), np.maximum(lengths[~differs], 0))
    differs[rows[elements]] = True
    return differs


def _still_listed(collection: Collection, listing: pa.Table, files: Sequence[RowFile]) -> list[RowFile]:
    """The files of an unfinished run whose images are all still listed with the same metadata; other files would bring
    back images that are gone. `find_reusable` finds the rows of these that are still valid.
    """
    rows, relabelled = _compare_metadata(LiveRows.of_files(collection.storage, files), listing)
    gone = pc.invert(pc.is_in(rows["image_id"], listing["image_id"]))
    wrong = np.cumsum([0, *pc.or_(gone, relabelled).to_numpy()])
    ends = np.cumsum([file.rows for file in files])
    return [file for file, end in zip(files, ends, strict=True) if wrong[end] == wrong[end - file.rows]]


def _count_moved(missing: pa.Table, reusable: ReusableRows, rows: pa.Table) -> int:
    """How many missing rows came back under a new id: for each content, at most as many as it has new ids."""
    ids = reusable.plan.todo["image_id"].take(reusable.todo)
    arrived = pc.value_counts(reusable.hashes.filter(pc.invert(pc.is_in(ids, rows["image_id"]))))
    gone = pc.value_counts(missing["content_hash"])
    at = pc.index_in(gone.field("values"), arrived.field("values"), skip_nulls=True)
    return _sum(pc.min_element_wise(gone.field("counts"), arrived.field("counts").take(at), skip_nulls=False))


def _replaced(live: LiveRows, source: str, listing: pa.Table) -> list[ReplacedImages]:
    found = []
    for name in live.sources:
        if name == source:
            continue
        theirs = live.of_source(name)
        images = theirs.read(["image_id", "uri"])
        listed = listing["uri"].take(pc.index_in(images["image_id"], listing["image_id"]))
        images = images.filter(pc.not_equal(images["uri"], listed))  # drops null, which is an id that is not listed
        if images.num_rows:
            found.append(ReplacedImages(source=name, rows=len(theirs), images=images))
    return found


def _relisted(listing: pa.Table, theirs: LiveRows, kept: pa.Table, *, own: bool) -> pa.Table:
    """The listing of a source that has rows of other models: its own with the rows that are kept, or its rows alone."""
    if own and not kept.num_rows:
        return listing
    rows = theirs.read([*LISTING.names, *REFUSAL.names, *FILE_FACTS.names, *(set(theirs.metadata) - {*EXIF_COLUMNS})])
    refused = pc.or_(pc.equal(rows["error_stage"], pa.scalar(REFUSED_STAGE)), is_filtered(rows))
    # Other rejects are tried again, as another model may accept them.
    reasons = {each.name: pc.if_else(refused, rows[each.name], pa.scalar(None, each.type)) for each in REFUSAL}
    rows = with_columns(rows, reasons)
    if not own:
        return rows.filter(pc.invert(pc.is_in(rows["image_id"], listing["image_id"])))
    return concat_listings([listing, rows.filter(pc.is_in(rows["image_id"], kept["image_id"]))])


def last_filter(snapshot: Snapshot, source: str) -> ImageFilter:
    """The filter of the source's last run, as recorded there: its key and `exif`, so it cannot judge images."""
    runs = (run for run in reversed(snapshot.committed) if canonical_address(run.source) == source)
    return next((ImageFilter(key=run.keep, exif=run.exif) for run in runs), EVERY_IMAGE)


def _counts(reusable: ReusableRows, before: pa.Table, live: LiveRows) -> Counts:
    """Count the images by why they are to do. `before` has the `STATE_COLUMNS` of the model's rows, `live` all rows."""
    plan, todo = reusable.plan, reusable.plan.todo
    if plan.files:  # images that an unfinished run has already written still count as new or changed
        done = pc.invert(pc.is_in(plan.listing["image_id"], todo["image_id"]))
        todo = plan.listing.filter(pc.invert(pc.and_(unchanged_mask(plan.listing, plan.live), done)))
    same_model = any_model = _sum(pc.is_in(todo["image_id"], before["image_id"]))
    if len(live) > before.num_rows:
        any_model = _sum(pc.is_in(todo["image_id"], live.read(["image_id"])["image_id"]))
    final = with_columns(before, {"retryable": pa.nulls(before.num_rows, pa.bool_())})
    retried = _sum(unchanged_mask(todo, final.filter(before["retryable"])))
    return Counts(
        listed=plan.listing.num_rows,
        unchanged=plan.listing.num_rows - todo.num_rows,
        new=todo.num_rows - any_model,
        changed=same_model - retried,
        retried=retried,
        other_model=any_model - same_model,
        resumed=todo.num_rows - plan.todo.num_rows,
        reused=len(reusable),
        refused=len(reusable.refused) - reusable.filtered,
        filtered=reusable.filtered,
        to_embed=plan.todo.num_rows - len(reusable) - len(reusable.refused),
    )


def _sum(values: Any) -> int:
    return int(pc.sum(values).as_py() or 0)
