"""Which web addresses are due for another look, and what the latest looks mean for the listing.

An address has its own moment in each `refresh` period, from a hash of its text. It is due when that has passed since it
was last checked, so every job checks its share. One that failed is due again after growing pauses, and one that is gone
(404 or 410) once a day, until it was gone `gone_after` times: it then counts as no longer listed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from index.collection.catalog.sql import quoted
from index.collection.catalog.workspace import StoredAnswer
from index.collection.checks import Checks
from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.rows import FILTERED
from jobs.addresses.record_checks import look_again
from jobs.sources.listing import WEB
from jobs.sources.stored_listing import Listing

NONE_POSTPONED: Final = "(SELECT CAST(NULL AS VARCHAR) AS image_id WHERE false)"

_HOUR_S = 3600
_GONE_PAUSE_S = 20 * _HOUR_S  # less than a day, so that nightly jobs need not begin to the second
_MAX_PAUSE_S = 7 * 24 * _HOUR_S
# The listed images with a web address, each with its row of the same address and its newest check, else nulls. The
# content of the row is `known` if it is what was last found; also without a row, which an earlier one would give.
# Looking again `may_change` what is known: not if the image is read anyway, or was left out unread.
_IMAGES = f"""
FROM (
    SELECT image.seq, image.uri, last.* EXCLUDE (source, uri), row.content_hash AS row_hash,
           row.image_id IS NOT NULL AS has_row, coalesce(row.retryable, false) AS is_failing,
           coalesce(row.error_stage = 'fetch', false) AS never_there,
           coalesce(row.error_reason = '{FILTERED}', false) AND row.content_hash IS NULL AS unread,
           coalesce(last.gone >= {{gone_after}}, false) AS is_gone
    FROM (FROM {{listing}} WHERE regexp_matches(uri, '{WEB}') AND error_reason IS NULL) AS image
    LEFT JOIN {{own}} AS row ON row.image_id = image.image_id AND row.uri = image.uri
    LEFT JOIN (FROM {{checks}} WHERE source = {{source}}) AS last ON last.uri = image.uri
)
SELECT *, {{due}} AS is_due,
       CASE WHEN has_row THEN coalesce(row_hash = content_hash, false) ELSE content_hash IS NOT NULL END AS known,
       (known OR (content_hash IS NULL AND (has_row OR is_gone))) AND NOT is_failing AND NOT unread AS may_change
"""
# One that was never checked has the content of its row.
_VISITS = """
SELECT uri, checked, coalesce(content_hash, row_hash) AS content_hash, gone, failed,
       CASE WHEN known AND NOT {all_due} THEN etag END AS etag,
       CASE WHEN known AND NOT {all_due} THEN modified END AS modified, is_due OR {all_due} AS is_due
FROM ({images}) WHERE may_change AND {visited}
QUALIFY row_number() OVER (PARTITION BY uri ORDER BY seq DESC) = 1
"""
_COUNTS = "SELECT count(*) FILTER (is_due) AS due, count(*) FILTER (NOT is_due) AS later FROM {visits}"
# An image that never was there stays a reject.
_CHECKED = """
SELECT seq, content_hash, is_gone AND NOT never_there AS gone, is_failing AND NOT is_due AS postponed FROM ({images})
"""
_LISTING = """
SELECT image.* REPLACE (checked.content_hash AS content_hash)
FROM {listing} AS image LEFT JOIN {checked} AS checked USING (seq) WHERE NOT coalesce(checked.gone, false)
"""


@dataclass(frozen=True, kw_only=True)
class CheckRules:
    """How a job looks at known addresses again, at the time `now`: each once in `refresh_s`; None: never. With
    `all_due` it reads all that have a row.
    """

    now: datetime
    refresh_s: int | None
    gone_after: int
    per_host: int
    all_due: bool = False

    @property
    def due(self) -> str:
        """Whether an address is due, in SQL over its check; null in `checked` stands for one that has none."""
        period = self.refresh_s or _MAX_PAUSE_S
        now, checked = f"CAST({self.now.timestamp()!r} AS DOUBLE)", "(epoch_us(checked) / 1e6)"
        moment = f"CAST('0x' || md5(uri)[:12] AS BIGINT) % {period}"
        # The next job tries again, then one after an hour, two hours, four hours, …
        pause = f"CASE WHEN failed > 1 THEN {_HOUR_S} * 2.0 ** least(failed - 2, 20) ELSE 0 END"
        return f"""
        CASE WHEN checked IS NULL OR {checked} > {now} THEN true  -- the clock was set back
             WHEN failed > 0 THEN {now} - {checked} >= least({pause}, {period})
             WHEN gone > 0 AND gone < {self.gone_after} THEN {now} - {checked} >= {min(period, _GONE_PAUSE_S)}
             ELSE floor(({now} + {moment}) / {period}) > floor(({checked} + {moment}) / {period}) END
        """


@dataclass(frozen=True, kw_only=True)
class AddressCounts:
    """Known web addresses of a listing. Those that were due are `unchanged`, `changed`, `gone` or `failed`, or their
    host did not answer; `later` counts those that are not due yet.
    """

    due: int = 0
    unchanged: int = 0
    changed: int = 0
    gone: int = 0
    failed: int = 0
    later: int = 0


@dataclass(frozen=True, kw_only=True)
class CheckedListing:
    """A listing without the addresses that are gone, and with the `content_hash` that was last found at the others.

    `postponed` are ids of rejects that are not tried again yet, in the queries of any catalog.
    """

    listing: Listing
    postponed: str = NONE_POSTPONED
    counts: AddressCounts = AddressCounts()


def check_listing(
    listing: Listing, own: LiveRows, collection: Collection, source: str, rules: CheckRules
) -> CheckedListing:
    """Look at the addresses that are due and record what is found; `own` are the live rows of the source.

    Without a lease (a dry run) nothing is asked.
    """

    def store(text: str) -> StoredAnswer:
        checks = Checks(collection)
        joined = {"listing": listing.view, "own": own.sql, "checks": checks.sql, "source": quoted(source)}
        images = _IMAGES.format(**joined, gone_after=rules.gone_after, due=rules.due)
        visited = rules.refresh_s is not None or rules.all_due
        return listing.catalog.store(text.format(images=images, all_due=rules.all_due, visited=visited))

    visits = store(_VISITS)
    [counts] = listing.catalog.table(_COUNTS.format(visits=visits.sql)).to_pylist()
    outcomes = Counter[str]()
    if collection.lease and counts["due"]:
        due = listing.catalog.rows(f"SELECT * EXCLUDE (is_due) FROM {visits.sql} WHERE is_due")
        outcomes = look_again(due, collection, source, rules.now, rules.per_host)
    checked = store(_CHECKED).sql
    return CheckedListing(
        listing=listing.changed(_LISTING.replace("{checked}", checked)),
        postponed=f"(SELECT image_id FROM {listing.view} SEMI JOIN (FROM {checked} WHERE postponed) USING (seq))",
        counts=AddressCounts(**counts, **outcomes),
    )
