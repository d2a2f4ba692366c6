"""Rows that can be written without the model, because its vector of the same content is in the collection, or because
the listing itself refuses them.

A file that was moved, copied or touched has a known content hash. A row that another model's runs hide, or of a run
that was never finished, is taken as it is when nothing says that its image has changed.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedder.images.exif import EXIF_COLUMNS
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
from jobs.planning.plan import Plan, content_hashes, retry_fetch_failures, unchanged_mask, write_block, written_files
from jobs.sources.listing import KNOWN, refused_mask, with_outcome, without_refusal

Positions = npt.NDArray[np.int64]

_BLOCK = 4096  # rows of a file: 8 MB of vectors of 512 dimensions


@dataclass(frozen=True, kw_only=True)
class ReusableRows:
    """The rows of `plan.todo` at `todo` have the outcome of the rows of `pool` at `rows`; `hashes` are theirs. Those at
    `refused` are rejects as they are; `filtered` of these are images that are left out.
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
    def unknown(self) -> pa.Table:
        """What is left of `plan.todo` for the model."""
        todo = without_refusal(self.plan.todo)
        if not len(self.todo) and not len(self.refused):
            return todo
        mask = np.ones(todo.num_rows, bool)
        mask[self.todo] = mask[self.refused] = False
        return todo.filter(pa.array(mask))


def find_known(plan: Plan, snapshot: Snapshot, *, by_content: bool, verify_hash: bool) -> ReusableRows:
    """Look for what is to do among all that the model has ever embedded in this collection.

    `by_content` reads the bytes of images whose size is that of a known one; `verify_hash` believes only bytes.
    """
    none, refused = np.empty(0, np.int64), _positions(refused_mask(plan.todo))
    left_out = _positions(refused_mask(plan.todo, FILTERED))
    # A quiet night opens none of the files that runs have left unfinished.
    pool = _pool(plan, snapshot) if plan.todo.num_rows else LiveRows.of_files(snapshot.collection.storage, [])
    state = pool.read(STATE_COLUMNS)
    unchanged = (none, none) if verify_hash else _unchanged(plan.todo, state)
    moved = (none, none)
    if by_content or verify_hash:
        moved = _same_content(plan.todo, state, skip=np.concatenate([unchanged[0], refused]))
    todo, rows = (np.concatenate(pair) for pair in zip(unchanged, moved, strict=True))
    usable = ~np.isin(todo, left_out) & _has_outcome(plan, todo, state.take(rows))
    todo, rows = todo[usable], rows[usable]
    return ReusableRows(
        plan=plan,
        pool=pool,
        todo=todo,
        rows=rows,
        hashes=state["content_hash"].take(rows),
        refused=np.setdiff1d(refused, todo),
        filtered=len(left_out),
    )


def write_known(known: ReusableRows, collection: Collection) -> Plan:
    """Write the known rows into the plan's run; returns the plan of what is left."""
    plan, files = known.plan, list(known.plan.files)
    for table in _known_rows(known):
        run = plan.start(collection)
        plan = replace(plan, run=run)
        collection.check_lease()
        files.append(write_block(collection, run.run_id, plan.attempt, table))
    return replace(plan, files=files, todo=known.unknown, refused=len(known.refused), filtered=known.filtered)


def _known_rows(known: ReusableRows) -> Iterator[pa.Table]:
    """The rows that need no model, a block at a time."""
    plan = known.plan
    order = np.argsort(known.rows, kind="stable")  # rows of one file together
    for start in range(0, len(order), _BLOCK):
        here = order[start : start + _BLOCK]
        exif = [name for name in EXIF_COLUMNS if plan.images.exif and name in known.pool.metadata]
        yield _rows(without_refusal(plan.todo).take(known.todo[here]), known.pool, known.rows[here], exif)
    for start in range(0, len(known.refused), _BLOCK):
        refused = plan.todo.take(known.refused[start : start + _BLOCK])
        yield refused.append_column(EMBEDDING, pa.array([None] * refused.num_rows, embedding_type(plan.model.dim)))


def _pool(plan: Plan, snapshot: Snapshot) -> LiveRows:
    """Every row that the model's runs have written, finished or not, oldest first; the plan's own files apart. Of runs
    with other filters only what tells whether an image is left out now.
    """
    collection, can_reuse = snapshot.collection, plan.images.can_reuse
    committed = [run for run in snapshot.committed if run.model.agrees_with(plan.model) and can_reuse(run)]
    files = [file for run in committed for file in run.files]
    for start in snapshot.unfinished:
        if start.model.agrees_with(plan.model) and can_reuse(start):
            files += written_files(collection, start)
    taken = {file.path for file in plan.files}
    others = sorted((file for file in files if file.path not in taken), key=lambda file: file.path)
    return LiveRows.of_files(collection.storage, others)


def _unchanged(todo: pa.Table, state: pa.Table) -> tuple[Positions, Positions]:
    """Positions of what the newest row of the same id covers, and of these rows."""
    last = newest_positions([state["image_id"]])[0]
    # Some are of runs that were never finished.
    rows = retry_fetch_failures(state.drop_columns("content_hash").take(last))
    found = _positions(unchanged_mask(todo, rows))
    at = last[pc.index_in(todo["image_id"].take(found), rows["image_id"]).to_numpy().astype(np.int64)]
    left_out = np.isin(at, _positions(is_filtered(state)))
    if not left_out.any():
        return found, at
    # What was left out after it had been embedded has the vector of its content.
    embedded = _embedded(state)
    again = pc.index_in(state["content_hash"].take(at), state["content_hash"].take(embedded), skip_nulls=True)
    usable = ~left_out | pc.is_valid(again).to_numpy()
    at = np.where(left_out, embedded[again.fill_null(0).to_numpy()], at) if len(embedded) else at
    return found[usable], at[usable]


def _has_outcome(plan: Plan, todo: Positions, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """A mask: these rows tell that the images at `todo` are not left out, or why they cannot be used."""
    if plan.images.expression is None:
        return np.ones(len(todo), bool)
    why, judged = plan.images.judge(with_outcome(plan.todo.take(todo), rows, KNOWN.names))
    judged |= bool(plan.images.measures)  # by the job that wrote the row: the pool has no others then
    return np.asarray(pc.and_(pc.is_null(why), pc.or_(pc.is_valid(rows["error_reason"]), pa.array(judged))), bool)


def _same_content(todo: pa.Table, state: pa.Table, *, skip: Positions) -> tuple[Positions, Positions]:
    """Positions of what has the bytes of an embedded row, and of these rows."""
    embedded = _embedded(state)
    known = state.select(["size", "content_hash"]).take(embedded)
    likely = np.setdiff1d(_positions(pc.is_in(todo["size"], known["size"], skip_nulls=True)), skip)
    hashes = content_hashes(todo["uri"].take(likely).to_pylist())
    at = pc.index_in(hashes, known["content_hash"], skip_nulls=True)
    hits = _positions(pc.is_valid(at))
    return likely[hits], embedded[at.take(hits).to_numpy().astype(np.int64)]


def _embedded(state: pa.Table) -> Positions:
    return _positions(pc.and_(pc.is_null(state["error_reason"]), pc.is_valid(state["content_hash"])))


def _positions(mask: Any) -> Positions:
    """Where a mask is true; null is not."""
    array = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
    found: Positions = np.flatnonzero(array.fill_null(False).to_numpy(zero_copy_only=False))
    return found


def _rows(listed: pa.Table, pool: LiveRows, at: Positions, exif: Sequence[str]) -> pa.Table:
    """Rows of listed images with the outcome of other rows."""
    positions, again = np.unique(at, return_inverse=True)
    known = pool.take(positions)
    tiles = [TILES] if TILES in known.schema.names else []  # none where all are rejects
    columns = [*OUTCOME_COLUMNS, *tiles, *REJECT_COLUMNS, *exif]
    return with_outcome(listed, known.read([*columns, "size"]).take(again), columns)
