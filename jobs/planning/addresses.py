"""Which web addresses are due for another look, and what the latest looks mean for the listing.

An address has its own moment in each `refresh` period, from a hash of its text. It is due when that has passed since it
was last checked, so every job checks its share. One that failed is due again after growing pauses, and one that is gone
(404 or 410) once a day, until it was gone `gone_after` times: it then counts as no longer listed.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.checks import read_checks
from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.rows import FILTERED, TEXT
from jobs.planning.plan import NO_IDS
from jobs.planning.record_checks import WEB, look_again
from jobs.sources.listing import Column, with_columns
from jobs.sources.stored_listing import Listing

Mask = npt.NDArray[np.bool_]

_HOUR_S = 3600
_GONE_PAUSE_S = 20 * _HOUR_S  # less than a day, so that nightly jobs need not begin to the second
_MAX_PAUSE_S = 7 * 24 * _HOUR_S
_WEB = f"""
SELECT seq, image_id, uri FROM {{listing}} WHERE regexp_matches(uri, '{WEB}') AND error_reason IS NULL ORDER BY seq
"""
_CHECKED = """
SELECT image.* REPLACE (found.content_hash AS content_hash)
FROM {listing} AS image LEFT JOIN {found} AS found USING (seq) WHERE NOT coalesce(found.gone, false)
"""
_ROW_COLUMNS = ("image_id", "uri", "content_hash", "error_stage", "error_reason", "retryable")


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

    def due(self, checks: pa.Table) -> Mask:
        """Which addresses are due; null in `checked` stands for one that was never checked."""
        checked = _numbers(checks["checked"].cast(pa.int64())) / 1e6
        gone, failed = _numbers(checks["gone"]), _numbers(checks["failed"])
        since, period = self.now.timestamp() - checked, self.refresh_s or _MAX_PAUSE_S
        digests = (hashlib.md5(str(uri).encode(), usedforsecurity=False).digest() for uri in checks["uri"].to_pylist())
        moment = np.array([int.from_bytes(digest[:6]) % period for digest in digests], np.int64)
        passed = (self.now.timestamp() + moment) // period > (checked + moment) // period
        due = np.where((gone > 0) & (gone < self.gone_after), since >= min(period, _GONE_PAUSE_S), passed)
        # The next job tries again, then one after an hour, two hours, four hours, …
        pause = np.where(failed > 1, _HOUR_S * 2.0 ** np.minimum(failed - 2, 20), 0)
        due = np.where(failed > 0, since >= np.minimum(pause, period), due) | (since < 0)  # the clock was set back
        return np.asarray(due | checks["checked"].is_null().to_numpy())


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

    `postponed` are ids of rejects that are not tried again yet.
    """

    listing: Listing
    postponed: Column = field(default_factory=lambda: NO_IDS)
    counts: AddressCounts = AddressCounts()


def check_listing(
    listing: Listing, own: LiveRows, collection: Collection, source: str, rules: CheckRules
) -> CheckedListing:
    """Look at the addresses that are due and record what is found; `own` are the live rows of the source.

    Without a lease (a dry run) nothing is asked.
    """
    web = listing.catalog.table(_WEB.format(listing=listing.view))
    images = _Images.of(web.select(["image_id", "uri"]), own.read(_ROW_COLUMNS), read_checks(collection, source))
    visited = images.may_change(rules.gone_after) & (rules.refresh_s is not None or rules.all_due)
    due = visited & (rules.due(images.checks) | rules.all_due)
    later = pc.unique(images.listed["uri"].filter(pa.array(visited & ~due)))
    checks = images.checks_to_make(due, conditional=not rules.all_due)
    outcomes = dict[str, int]()
    if collection.lease and checks:
        outcomes = look_again(checks, collection, source, rules.now, rules.per_host)
        images = _Images.of(images.listed, images.rows, read_checks(collection, source))
    failed = np.flatnonzero(images.failed)
    postponed = failed[~rules.due(images.checks.take(failed))]
    gone = pa.array(images.gone(rules.gone_after))
    found = pa.table({"seq": web["seq"], "content_hash": images.checks["content_hash"], "gone": gone})
    return CheckedListing(
        listing=listing.changed(_CHECKED, found=found),
        postponed=images.listed["image_id"].take(postponed),
        counts=AddressCounts(due=len(checks), later=len(later), **outcomes),
    )


@dataclass(frozen=True, kw_only=True)
class _Images:
    """The listed images with a web address, each with its row of the same address and its newest check, else nulls."""

    listed: pa.Table
    rows: pa.Table
    own: pa.Table
    checks: pa.Table

    @classmethod
    def of(cls, listed: pa.Table, rows: pa.Table, checks: pa.Table) -> _Images:
        at = pc.index_in(listed["image_id"], rows["image_id"])
        same = pc.equal(rows["uri"].take(at), listed["uri"]).fill_null(False)
        own = rows.take(pc.if_else(same, at, pa.scalar(None, pa.int32())))
        found = checks.take(pc.index_in(listed["uri"], checks["uri"]))
        return cls(listed=listed, rows=rows, own=own, checks=with_columns(found, {"uri": listed["uri"]}))

    @property
    def failed(self) -> Mask:
        """Whether a row is a reject that is tried again."""
        return _mask(self.own["retryable"])

    @property
    def _has_row(self) -> Mask:
        return _mask(pc.is_valid(self.own["image_id"]))

    @property
    def _known(self) -> Mask:
        """Whether the row has the content that was last found; also without a row, which an earlier one would give."""
        same = _mask(pc.equal(self.own["content_hash"], self.checks["content_hash"]))
        return same | (~self._has_row & _mask(pc.is_valid(self.checks["content_hash"])))

    def may_change(self, gone_after: int) -> Mask:
        """Whether looking again may change what is known: not if the image is read anyway, or left out unread."""
        pending = ~self._known & _mask(pc.is_valid(self.checks["content_hash"]))
        unread = _mask(pc.equal(self.own["error_reason"], pa.scalar(FILTERED, TEXT)))
        unread &= _mask(pc.is_null(self.own["content_hash"]))
        new = ~self._has_row & ~self._known & ~self._is_gone(gone_after)
        return ~new & ~self.failed & ~pending & ~unread

    def gone(self, gone_after: int) -> Mask:
        """Whether an image counts as no longer listed. One that never was there stays a reject."""
        never = _mask(pc.equal(self.own["error_stage"], pa.scalar("fetch", TEXT)))
        return self._is_gone(gone_after) & ~never

    def checks_to_make(self, due: Mask, *, conditional: bool) -> dict[str, dict[str, Any]]:
        """The newest checks of the addresses that are due, with the validators to ask with if `conditional`: those of
        the content that the rows have. One that was never checked has the content of its row.
        """
        usable, checks = pa.array(self._known & conditional), self.checks
        asked = {n: pc.if_else(usable, checks[n], pa.scalar(None, checks[n].type)) for n in ("etag", "modified")}
        asked["content_hash"] = pc.coalesce(checks["content_hash"], self.own["content_hash"])
        return {check["uri"]: check for check in with_columns(checks, asked).filter(pa.array(due)).to_pylist()}

    def _is_gone(self, gone_after: int) -> Mask:
        return _mask(pc.greater_equal(self.checks["gone"], pa.scalar(gone_after, pa.int32())))


def _numbers(values: Any) -> npt.NDArray[np.int64]:
    """Numbers, 0 for nulls."""
    return np.asarray(values.fill_null(0), np.int64)


def _mask(values: Any) -> Mask:
    """A mask without nulls, which count as false."""
    return np.asarray(values.fill_null(False), bool)
