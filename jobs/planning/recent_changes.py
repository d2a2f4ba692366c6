"""Leaves files alone that may be half written."""

from datetime import UTC, datetime, timedelta

from index.collection.collection import Snapshot
from jobs.sources.stored_listing import Listing

_RECENT = """
SELECT count(*) AS files,
       coalesce(bool_or(error_reason IS NOT NULL OR regexp_matches(uri, '#(bytes|row|t)=')), false) AS have_parts
FROM {listing} WHERE {recent}
"""
_KNOWN = """
SELECT image.seq, row.uri, row.size, row.modified, row.etag, row.image_id IS NOT NULL AS known
FROM (SELECT seq, image_id FROM {listing} WHERE {recent}) AS image
LEFT JOIN {rows}.live_rows AS row USING (image_id)
"""
_COLUMNS = ", ".join(
    f"CASE WHEN recent.known THEN recent.{name} ELSE image.{name} END AS {name}"
    for name in ("uri", "size", "modified", "etag")
)
_SETTLED = f"""
SELECT image.* REPLACE ({_COLUMNS})
FROM {{listing}} AS image LEFT JOIN {{recent}} AS recent USING (seq) WHERE coalesce(recent.known, true)
"""


def leave_out_recent(listing: Listing, snapshot: Snapshot, settle_s: float) -> tuple[Listing, int, bool]:
    """The listing without the changes to files of the last `settle_s` seconds, the number of such files, and whether
    any of them is a tar, table or video, which may still lack some of its images.

    New files are left out; changed ones are listed as in their live rows. Times in the future come from another clock
    and are ignored.
    """
    now = datetime.now(UTC)
    since, until = (f"TIMESTAMPTZ '{time.isoformat()}'" for time in (now - timedelta(seconds=settle_s), now))
    recent = f"modified > {since} AND modified <= {until}"
    [found] = listing.catalog.table(_RECENT.format(listing=listing.view, recent=recent)).to_pylist()
    if not found["files"]:
        return listing, 0, False
    rows = snapshot.live.catalog
    known = listing.catalog.store(_KNOWN.format(listing=listing.view, rows=rows.name, recent=recent))
    return listing.changed(_SETTLED.replace("{recent}", known.sql)), found["files"], found["have_parts"]
