"""Images with the same address, as in lists of products: one is read and embedded, the others get copies of its row."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.live_rows import LiveRows
from index.collection.records import RowFile
from index.collection.rows import EMBEDDING, STATE_COLUMNS, TILES, is_filtered
from index.storage.storage import Storage
from jobs.planning.image_filter import ImageFilter, leave_out
from jobs.planning.known_rows import BLOCK, Positions, copied_rows
from jobs.sources.listing import FILE_FACTS, Column, with_columns, with_outcome


def first_of_each_address(todo: pa.Table, image_filter: ImageFilter) -> tuple[pa.Table, pa.Table]:
    """The images to read, and the others, which share an address with one of these."""
    if image_filter.measures:  # rows do not store the measures, so each image has to be judged on its own
        return todo, todo.slice(0, 0)
    uris = todo["uri"].combine_chunks()
    first = pc.equal(pc.index_in(uris, value_set=uris), pa.array(np.arange(len(uris)), pa.int32()))
    read = pc.or_(first, pc.is_null(uris))
    return todo.filter(read), todo.filter(pc.invert(read))


@dataclass(frozen=True, kw_only=True)
class Copies:
    """The `listed` images get the outcomes of rows `at` of `pool`, unless the filter leaves them out for `reasons`.

    `waiting` are the images without such a row, or with one that the filter left out while it keeps them.
    """

    listed: pa.Table
    at: Positions
    reasons: Column
    pool: LiveRows
    exif: Sequence[str]
    waiting: pa.Table

    @classmethod
    def find(cls, todo: pa.Table, storage: Storage, files: Sequence[RowFile], image_filter: ImageFilter) -> Copies:
        """Look for the addresses in the row files that have just been written."""
        pool = LiveRows.of_files(storage, files)
        state = pool.read(STATE_COLUMNS)
        at = pc.index_in(todo["uri"], state["uri"], skip_nulls=True)
        facts = state.select(["size", *FILE_FACTS.names, "error_reason"]).take(at)
        reasons, _ = image_filter.judge(with_outcome(todo, facts, FILE_FACTS.names))
        known = pc.and_(pc.is_valid(at), pc.or_(pc.is_valid(reasons), pc.invert(is_filtered(facts))))
        order = pc.sort_indices(at.filter(known))
        listed, at = todo.filter(known).take(order), at.filter(known).take(order)
        found = {name: pc.coalesce(listed[name], state[name].take(at)) for name in ("modified", "etag")}
        return cls(
            listed=with_columns(listed, found),
            at=at.to_numpy().astype(np.int64),
            reasons=reasons.filter(known.combine_chunks()).take(order),
            pool=pool,
            exif=image_filter.exif_columns(pool.metadata),
            waiting=todo.filter(pc.invert(known)),
        )

    def blocks(self) -> Iterator[pa.Table]:
        """The rows to write."""
        for start in range(0, len(self.at), BLOCK):
            listed, reasons = self.listed.slice(start, BLOCK), self.reasons.slice(start, BLOCK)
            rows = copied_rows(listed, self.pool, self.at[start : start + BLOCK], self.exif)
            out = pc.is_valid(reasons)
            for name in {EMBEDDING, TILES}.intersection(rows.column_names):
                kept = pc.if_else(out, pa.scalar(None, rows[name].type), rows[name])
                rows = with_columns(rows, {name: kept})
            yield leave_out(rows, reasons) if pc.any(out).as_py() else rows
