"""Writes the rows that need no model, because the collection has its vector of the same content, or because the listing
itself refuses them.

A file that was moved, copied or touched has a known content hash. Rows that are hidden by another model's runs, or
belong to an unfinished run, are copied if nothing indicates that the image has changed.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.collection import Collection, Snapshot
from index.collection.live_rows import LiveRows
from index.collection.rows import (
    EMBEDDING,
    FILTERED,
    OUTCOME_COLUMNS,
    REJECT_COLUMNS,
    STATE_COLUMNS,
    TILES,
    embedding_type,
    is_filtered,
    newest_positions,
)
from jobs.planning.plan import Plan, content_hashes, retry_fetch_failures, unchanged_mask, write_block
from jobs.sources.listing import FILE_FACTS, refused_mask, with_columns, with_outcome, without_refusal

Positions = npt.NDArray[np.int64]

BLOCK = 4096  # rows per file: 8 MB of vectors of 512 dimensions


@dataclass(frozen=True, kw_only=True)
class ReusableRows:
    """Rows `todo` of `plan.todo` get the outcome of rows `rows` of `pool`, which have these `hashes`. Rows `refused` of
    `plan.todo` are rejects by the listing; `filtered` of these are left out by the filter.
    """

    plan: Plan
    pool: LiveRows
    todo: Positions
    rows: Positions
    hashes: pa.ChunkedArray[Any]
    refused: Positions
    filtered: int

    def __len__(self) -> int:
        return len(self.todo)

    @property
    def to_embed(self) -> pa.Table:
        """The part of `plan.todo` that needs the model."""
        todo = without_refusal(self.plan.todo)
        if not len(self.todo) and not len(self.refused):
            return todo
        mask = np.ones(todo.num_rows, bool)
        mask[self.todo] = mask[self.refused] = False
        return todo.filter(pa.array(mask))


def find_reusable(plan: Plan, snapshot: Snapshot, *, by_content: bool, verify_hash: bool) -> ReusableRows:
    """Look up what is left to do among all rows that the model has written to this collection.

    `by_content` reads the bytes of images that have the size of a known one; with `verify_hash` only bytes count.
    """
    none, refused = np.empty(0, np.int64), _positions(refused_mask(plan.todo))
    # With nothing to do, the files of unfinished runs are not opened.
    pool = _pool(plan, snapshot) if plan.todo.num_rows else LiveRows.of_files(snapshot.collection.storage, [])
    state = pool.read(STATE_COLUMNS)
    unchanged = (none, none) if verify_hash else _unchanged(plan.todo, state)
    moved = (none, none)
    if by_content or verify_hash:
        moved = _same_content(plan.todo, state, skip=np.concatenate([unchanged[0], refused]))
    todo, rows = (np.concatenate(pair) for pair in zip(unchanged, moved, strict=True))
    usable = ~np.isin(todo, refused) & _has_outcome(plan, todo, state.take(rows))
    todo, rows = todo[usable], rows[usable]
    return ReusableRows(
        plan=plan,
        pool=pool,
        todo=todo,
        rows=rows,
        hashes=state["content_hash"].take(rows),
        refused=refused,
        filtered=len(_positions(refused_mask(plan.todo, FILTERED))),
    )


def write_reusable(reusable: ReusableRows, collection: Collection) -> Plan:
    """Write the rows that need no model into the plan's run; returns the plan of what is left."""
    plan, files = reusable.plan, list(reusable.plan.files)
    for table in _tables(reusable):
        run = plan.start(collection)
        plan = replace(plan, run=run)
        collection.check_lease()
        files.append(write_block(collection, run.run_id, plan.attempt, table))
    return replace(plan, files=files, todo=reusable.to_embed, refused=len(reusable.refused), filtered=reusable.filtered)


def _tables(reusable: ReusableRows) -> Iterator[pa.Table]:
    """The rows that need no model, in blocks."""
    plan = reusable.plan
    order = np.argsort(reusable.rows, kind="stable")  # rows of one file together
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        exif = plan.image_filter.exif_columns(reusable.pool.metadata)
        listed = without_refusal(plan.todo).take(reusable.todo[block])
        yield copied_rows(listed, reusable.pool, reusable.rows[block], exif)
    for start in range(0, len(reusable.refused), BLOCK):
        refused = plan.todo.take(reusable.refused[start : start + BLOCK])
        yield refused.append_column(EMBEDDING, pa.array([None] * refused.num_rows, embedding_type(plan.model.dim)))


def _pool(plan: Plan, snapshot: Snapshot) -> LiveRows:
    """All rows that the model's runs have written, finished or not, oldest first, without the plan's own files and
    without runs whose rows the plan's filter cannot judge.
    """
    collection, can_reuse = snapshot.collection, plan.image_filter.can_reuse
    committed = [run for run in snapshot.committed if run.model.agrees_with(plan.model) and can_reuse(run)]
    files = [file for run in committed for file in run.files]
    for start in snapshot.unfinished:
        if start.model.agrees_with(plan.model) and can_reuse(start):
            files += collection.written_files(start)
    own = {file.path for file in plan.files}
    others = sorted((file for file in files if file.path not in own), key=lambda file: file.path)
    return LiveRows.of_files(collection.storage, others)


def _unchanged(todo: pa.Table, state: pa.Table) -> tuple[Positions, Positions]:
    """Positions in `todo` that a row covers, and the positions of these rows: the newest row of the same id, and for a
    new id an embedded row of the same address, as lists have several ids for one picture, or other ids than before.
    """
    todo = todo.select([name for name in STATE_COLUMNS if name in todo.column_names])  # captions may have any length
    covered = _covered(todo, state)
    is_new = pc.and_(pc.invert(pc.is_in(todo["image_id"], state["image_id"])), pc.is_in(todo["uri"], state["uri"]))
    new, known = _positions(pc.and_(is_new, pc.is_valid(todo["uri"]))), _positions(pc.is_valid(state["uri"]))
    by_address = (
        with_columns(each.take(at), {"image_id": each["uri"].take(at)}) for each, at in ((todo, new), (state, known))
    )
    found, rows = _covered(*by_address)
    embedded = np.isin(known[rows], _embedded_positions(state))
    return (
        np.concatenate([covered[0], new[found[embedded]]]),
        np.concatenate([covered[1], known[rows[embedded]]]),
    )


def _covered(todo: pa.Table, state: pa.Table) -> tuple[Positions, Positions]:
    """Positions in `todo` that the newest row of the same id covers, and the positions of these rows."""
    last = newest_positions([state["image_id"]])[0]
    # Some rows are of unfinished runs.
    rows = retry_fetch_failures(state.take(last))
    found = _positions(unchanged_mask(todo, rows))
    at = last[pc.index_in(todo["image_id"].take(found), rows["image_id"]).to_numpy().astype(np.int64)]
    left_out = np.isin(at, _positions(is_filtered(state)))
    if not left_out.any():
        return found, at
    # An image that was embedded before it was left out has the vector of the same content.
    embedded = _embedded_positions(state)
    again = pc.index_in(state["content_hash"].take(at), state["content_hash"].take(embedded), skip_nulls=True)
    usable = ~left_out | pc.is_valid(again).to_numpy()
    at = np.where(left_out, embedded[again.fill_null(0).to_numpy()], at) if len(embedded) else at
    return found[usable], at[usable]


def _has_outcome(plan: Plan, todo: Positions, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """A mask: by these rows, the images at `todo` are rejects, or the filter is known to keep them."""
    if plan.image_filter.expression is None:
        return np.ones(len(todo), bool)
    reasons, judged = plan.image_filter.judge(with_outcome(plan.todo.take(todo), rows, FILE_FACTS.names))
    judged |= bool(plan.image_filter.measures)  # the pool then has only rows whose job applied the same expression
    return np.asarray(pc.and_(pc.is_null(reasons), pc.or_(pc.is_valid(rows["error_reason"]), pa.array(judged))), bool)


def _same_content(todo: pa.Table, state: pa.Table, *, skip: Positions) -> tuple[Positions, Positions]:
    """Positions in `todo` with the same bytes as an embedded row, and the positions of these rows."""
    embedded = _embedded_positions(state)
    known = state.select(["size", "content_hash"]).take(embedded)
    likely = np.setdiff1d(_positions(pc.is_in(todo["size"], known["size"], skip_nulls=True)), skip)
    hashes = content_hashes(todo["uri"].take(likely).to_pylist())
    at = pc.index_in(hashes, known["content_hash"], skip_nulls=True)
    hits = _positions(pc.is_valid(at))
    return likely[hits], embedded[at.take(hits).to_numpy().astype(np.int64)]


def _embedded_positions(state: pa.Table) -> Positions:
    return _positions(pc.and_(pc.is_null(state["error_reason"]), pc.is_valid(state["content_hash"])))


def _positions(mask: Any) -> Positions:
    """Where a mask is true; null counts as false."""
    array = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
    found: Positions = np.flatnonzero(array.fill_null(False).to_numpy(zero_copy_only=False))
    return found


def copied_rows(listed: pa.Table, pool: LiveRows, at: Positions, exif: Sequence[str]) -> pa.Table:
    """Rows of listed images with the outcome of the rows of `pool` at `at`."""
    positions, again = np.unique(at, return_inverse=True)
    known = pool.take(positions)
    tiles = [TILES] if TILES in known.schema.names else []  # none where all are rejects
    columns = [*OUTCOME_COLUMNS, *tiles, *REJECT_COLUMNS, *exif]
    return with_outcome(listed, known.read([*columns, "size"]).take(again), columns)
