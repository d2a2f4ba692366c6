"""Which images of a listing a job's filter leaves out, as far as it is known without reading them."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.live_rows import LiveRows
from index.collection.rows import FILTERED, TEXT
from jobs.planning.image_filter import ImageFilter, leave_out, with_facts
from jobs.planning.plan import unchanged_mask
from jobs.sources.listing import KNOWN, Column, refused_mask


def find_left_out(images: ImageFilter, listing: pa.Table, state: pa.Table, same: LiveRows) -> tuple[pa.Table, Column]:
    """The listing, in which images that are left out are refused; and the ids of live rows that have another outcome
    now, or one that cannot be told from them.

    `state` has the `STATE` of live rows, `same` are those of runs with the same expression.
    """
    if images.key is None:
        ids = state["image_id"].filter(is_filtered(state))
        return listing, ids.filter(pc.is_in(ids, listing["image_id"])) if len(ids) else ids
    unchanged = unchanged_mask(listing, state)
    at = pc.if_else(unchanged, pc.index_in(listing["image_id"], state["image_id"]), pa.scalar(None, pa.int32()))
    rows = state.select(["size", *KNOWN.names, "error_reason"]).take(at)
    why, judged = images.judge(with_facts(listing, rows))
    why = pc.if_else(refused_mask(listing), pa.scalar(None, TEXT), why)
    out, before = pc.is_valid(why), is_filtered(rows)
    failed = pc.and_not(pc.is_valid(rows["error_reason"]), before)
    made = pc.is_in(listing["image_id"], same.read(["image_id"])["image_id"])
    good = pc.or_(pc.or_(made, failed), pc.and_not(pa.array(judged), before))
    stale = listing["image_id"].filter(pc.and_not(unchanged, pc.if_else(out, before, good)))
    if not pc.any(out).as_py():
        return listing, stale
    rows = rows.take(pc.if_else(out, pa.array(np.arange(rows.num_rows)), pa.scalar(None, pa.int64())))
    return leave_out(with_facts(listing, rows), why), stale


def is_filtered(rows: pa.Table) -> Column:
    """A mask: rows of images that were left out."""
    mask: Any = pc.equal(rows["error_reason"], pa.scalar(FILTERED, TEXT))
    filled: Column = mask.fill_null(False)
    return filled
