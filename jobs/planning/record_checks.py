"""Records what is found at web addresses: by looking at known ones again, and by embedding their pictures."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embedder.fetch import Fetcher
from embedder.fetch.fetcher import FetchPolicy
from embedder.fetch.validators import Download, Validators
from index.collection.checks import CHECK_SCHEMA, read_checks, write_checks
from index.collection.collection import Collection
from jobs.planning.visit_addresses import Visit, failed_outcome, visit_addresses

_CHECKS_PER_FILE = 2000
WEB = "(?i)^https?://"


def look_again(
    last_checks: Mapping[str, Mapping[str, Any]], collection: Collection, source: str, now: datetime, per_host: int
) -> Counter[str]:
    """Visit the addresses of these checks and count the outcomes: unchanged, changed, gone, failed.

    What is found is recorded every now and then, so a job that is killed continues where it was.
    """
    fetcher = Fetcher(FetchPolicy(retries=0, per_host=per_host))  # the next job is the retry
    outcomes, checks = Counter[str](), list[dict[str, Any]]()

    def download(uri: str) -> Download:
        last = last_checks[uri]
        return fetcher.download(uri, Validators(etag=last["etag"], modified=last["modified"]))

    with closing(visit_addresses(last_checks, download, per_host)) as visits:
        for visit in visits:
            last = last_checks[visit.uri]
            same = visit.outcome == "found" and visit.content_hash in (None, last["content_hash"])
            outcomes["unchanged" if same else visit.outcome.replace("found", "changed")] += 1
            checks.append(_after(visit, last) | {"source": source, "checked": now})
            if len(checks) == _CHECKS_PER_FILE:
                _write(collection, checks)
                checks = []
    _write(collection, checks)
    return outcomes


def record_fetches(collection: Collection, source: str, rows: pa.Table, now: datetime, began: datetime) -> None:
    """Record the web addresses that a run fetched. `rows` has the `STATE_COLUMNS` of its rows, and whether this job
    `attempted` them; those of an earlier job that was stopped were fetched when the run `began`.
    """
    known = read_checks(collection, source)
    last_checks = {check["uri"]: check for check in known.filter(pc.is_in(known["uri"], rows["uri"])).to_pylist()}
    checks = []
    for row in rows.to_pylist():
        last = last_checks.get(row["uri"], dict.fromkeys(CHECK_SCHEMA.names) | {"uri": row["uri"]})
        content_hash, failed = row["content_hash"], row["error_stage"] == "fetch"
        if failed and row["attempted"]:
            failure = Visit(uri=row["uri"], outcome=failed_outcome(row["error_reason"]))
            # Without the hash of earlier content: the row has none now, and finding that content again is a change.
            check = _after(failure, last) | {"content_hash": None}
        elif content_hash and (row["attempted"] or content_hash != last["content_hash"]):
            validators = Validators(etag=row["etag"], modified=row["modified"])
            found = Visit(uri=row["uri"], outcome="found", content_hash=content_hash, validators=validators)
            check = _after(found, last)
        else:
            continue
        checks.append(check | {"source": source, "checked": now if row["attempted"] else began})
    _write(collection, checks)


def _after(visit: Visit, last: Mapping[str, Any]) -> dict[str, Any]:
    """The check of a visit, after the last one."""
    check = dict(last)
    if visit.outcome == "found":
        check |= {"content_hash": visit.content_hash or last["content_hash"], "gone": 0, "failed": 0}
        return check | {"etag": visit.validators.etag, "modified": visit.validators.modified}
    # A host that fails says nothing about its pictures, so `gone` stays.
    return check | {"gone": last["gone"] or 0, "failed": 0, visit.outcome: (last[visit.outcome] or 0) + 1}


def _write(collection: Collection, checks: list[dict[str, Any]]) -> None:
    if checks:
        write_checks(collection, pa.Table.from_pylist(checks, CHECK_SCHEMA))
