"""Records what is found at web addresses: by looking at known ones again, and by embedding their pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa

from embedder.fetch import Fetcher
from embedder.fetch.fetcher import FetchPolicy
from embedder.fetch.validators import Download, Validators
from index.collection.catalog.catalog import Catalog
from index.collection.catalog.sql import quoted
from index.collection.checks import CHECK_SCHEMA, Checks, write_checks
from index.collection.collection import Collection
from jobs.addresses.visit_addresses import Visit, failed_outcome, visit_addresses
from jobs.sources.listing import WEB

_CHECKS_PER_FILE = 2000
_AT_ONCE = 1 << 16  # addresses in memory
_ANY = f"SELECT 1 FROM live_rows WHERE regexp_matches(uri, '{WEB}') LIMIT 1"
# An earlier job that was stopped fetched the others, when the run began.
_FETCHED = f"""
SELECT row.uri, row.content_hash, row.error_stage = 'fetch' AS failed, row.error_reason, row.etag, row.modified,
       todo.image_id IS NOT NULL AS attempted, last
FROM live_rows AS row
LEFT JOIN (SELECT image_id FROM {{todo}}) AS todo USING (image_id)
LEFT JOIN (FROM {{checks}} WHERE source = {{source}}) AS last ON last.uri = row.uri
WHERE regexp_matches(row.uri, '{WEB}')
      AND CASE WHEN row.error_stage = 'fetch' THEN attempted
               ELSE row.content_hash IS NOT NULL
                    AND (attempted OR row.content_hash IS DISTINCT FROM last.content_hash) END
ORDER BY seq
"""


def look_again(
    last_checks: Iterable[Mapping[str, Any]], collection: Collection, source: str, now: datetime, per_host: int
) -> Counter[str]:
    """Visit the addresses of these checks and count the outcomes: unchanged, changed, gone, failed.

    What is found is recorded every now and then, so a job that is killed continues where it was.
    """
    fetcher = Fetcher(FetchPolicy(retries=0, per_host=per_host))  # the next job is the retry
    outcomes, rest = Counter[str](), iter(last_checks)

    def found(known: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        def download(uri: str) -> Download:
            return fetcher.download(uri, Validators(etag=known[uri]["etag"], modified=known[uri]["modified"]))

        with closing(visit_addresses(known, download, per_host)) as visits:
            for visit in visits:
                last = known[visit.uri]
                same = visit.outcome == "found" and visit.content_hash in (None, last["content_hash"])
                outcomes["unchanged" if same else visit.outcome.replace("found", "changed")] += 1
                yield _after(visit, last) | {"source": source, "checked": now}

    while known := {last["uri"]: last for last in islice(rest, _AT_ONCE)}:
        _write(collection, found(known), _CHECKS_PER_FILE)
    return outcomes


def record_fetches(
    collection: Collection, source: str, rows: Catalog, todo: str, now: datetime, began: datetime
) -> None:
    """Record the web addresses that a run fetched. `rows` has the rows of the run, which `began` then; this job tried
    those of the images `todo`, in SQL.
    """
    if not rows.table(_ANY).num_rows:
        return
    checks = Checks(collection)
    fetched = rows.rows(_FETCHED.format(todo=todo, checks=checks.sql, source=quoted(source)))
    _write(collection, (_of_row(row, now, began) | {"source": source} for row in fetched), _AT_ONCE)


def _of_row(row: Mapping[str, Any], now: datetime, began: datetime) -> dict[str, Any]:
    last = row["last"] | {"uri": row["uri"]}  # without an earlier check, all of it is null
    if row["failed"]:
        visit = Visit(uri=row["uri"], outcome=failed_outcome(row["error_reason"]))
        # Without the hash of earlier content: the row has none now, and finding that content again is a change.
        return _after(visit, last) | {"content_hash": None, "checked": now}
    validators = Validators(etag=row["etag"], modified=row["modified"])
    visit = Visit(uri=row["uri"], outcome="found", content_hash=row["content_hash"], validators=validators)
    return _after(visit, last) | {"checked": now if row["attempted"] else began}


def _after(visit: Visit, last: Mapping[str, Any]) -> dict[str, Any]:
    """The check of a visit, after the last one."""
    check = dict(last)
    if visit.outcome == "found":
        check |= {"content_hash": visit.content_hash or last["content_hash"], "gone": 0, "failed": 0}
        return check | {"etag": visit.validators.etag, "modified": visit.validators.modified}
    # A host that fails says nothing about its pictures, so `gone` stays.
    return check | {"gone": last["gone"] or 0, "failed": 0, visit.outcome: (last[visit.outcome] or 0) + 1}


def _write(collection: Collection, checks: Iterator[dict[str, Any]], rows: int) -> None:
    """Write checks as they come, `rows` to a file."""
    while part := list(islice(checks, rows)):
        write_checks(collection, pa.Table.from_pylist(part, CHECK_SCHEMA))
