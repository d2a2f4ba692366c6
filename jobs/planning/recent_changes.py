"""Leaves files alone that may be half written."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from index.collection.collection import Snapshot
from jobs.sources.listing import refused_mask, with_columns

_CHANGES = ("uri", "size", "modified", "etag")
_PART = "#(bytes|row|t)="
"""In the URI of a part of a file."""


def leave_out_recent(listing: pa.Table, snapshot: Snapshot, settle_s: float) -> tuple[pa.Table, int, bool]:
    """The listing without the changes to files of the last `settle_s` seconds, the number of such files, and whether
    any of them is a tar, table or video, which may still lack some of its images.

    New files are left out; changed ones are listed as in their live rows. Times in the future come from another clock
    and are ignored.
    """
    now = datetime.now(UTC)
    since = pc.greater(listing["modified"], pa.scalar(now - timedelta(seconds=settle_s), listing["modified"].type))
    until = pc.less_equal(listing["modified"], pa.scalar(now, listing["modified"].type))
    recent: Any = pc.fill_null(pc.and_(since, until), pa.scalar(False))
    count = int(pc.sum(recent).as_py() or 0)
    if not count:
        return listing, 0, False
    changed = listing.filter(recent)
    has_parts = pc.any(pc.or_(refused_mask(changed), pc.match_substring_regex(changed["uri"], _PART))).as_py()
    sql = f"SELECT image_id, {', '.join(_CHANGES)} FROM live_rows SEMI JOIN changed USING (image_id)"
    rows = snapshot.live().catalog.table(sql, changed=changed.select(["image_id"]))
    at = pc.index_in(listing["image_id"], rows["image_id"])
    listing = with_columns(listing, {n: pc.if_else(recent, rows[n].take(at), listing[n]) for n in _CHANGES})
    return listing.filter(pc.or_(pc.invert(recent), pc.is_valid(at))), count, has_parts
