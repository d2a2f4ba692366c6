"""The end of a job: checks that every listed image is accounted for once, and publishes the manifests of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from index.collection import Collection
from index.collection.records import RowFile, RunManifest, RunStart
from index.collection.rows import FILTERED, is_filtered
from jobs.embedding.report import EmbedReport
from jobs.errors import JobError, TooManyRejectsError, UsageError
from jobs.planning.plan import Plan, newest_rows, read_state
from jobs.planning.record_checks import record_fetches
from jobs.planning.rejects import format_reasons


@dataclass(frozen=True, kw_only=True)
class WrittenRun:
    """An unpublished run, with the row files written so far, oldest first."""

    plan: Plan
    run: RunStart
    files: list[RowFile]
    report: EmbedReport

    @classmethod
    def begin(cls, plan: Plan, collection: Collection) -> Self:
        """Resume the plan's run or start a new one. If nothing is left to embed, all of its rows are on disk."""
        return cls(plan=plan, run=plan.start(collection), files=list(plan.files), report=EmbedReport.of(plan))


def commit(
    collection: Collection, written: Sequence[WrittenRun], max_reject_rate: float, now: datetime | None = None
) -> list[RunManifest]:
    """Check that every listed image is accounted for once, then publish the runs and return them.

    A run in which only the images of last time failed again is not published. Otherwise a host that is down would cause
    an identical index version every night, and older versions would be pruned to make room. Raises `JobError`,
    `TooManyRejectsError` or `UsageError`; all runs then stay unfinished. What was found at web addresses at the time
    `now` is recorded.
    """
    collection.check_lease()
    rows = [read_state(collection, each.files) for each in written]
    manifests = [_make_manifest(each, state, max_reject_rate) for each, state in zip(written, rows, strict=True)]
    for each, state in zip(written, rows, strict=True):
        attempted = pc.is_in(state["image_id"], each.plan.todo["image_id"])
        record_fetches(
            collection, each.plan.source, state, attempted, now=now or datetime.now(UTC), began=each.run.started_at
        )
    published = []
    for each, manifest in zip(written, manifests, strict=True):
        if manifest is None:
            continue
        gone = each.plan.deletes
        deletes = collection.write_deletes(manifest.run_id, gone) if len(gone) else None
        published.append(manifest.model_copy(update={"deletes": deletes}))
        collection.commit_run(published[-1])
    return published


def _make_manifest(written: WrittenRun, rows: pa.Table, max_reject_rate: float) -> RunManifest | None:
    """The manifest of a run that passes the checks, still without deletes; None if the run would change nothing. `rows`
    has the `STATE_COLUMNS` of the run's rows.
    """
    plan, run, report = written.plan, written.run, written.report
    missing = plan.todo.filter(pc.invert(pc.is_in(plan.todo["image_id"], value_set=rows["image_id"]))).num_rows
    if missing or report.done != plan.todo.num_rows:
        raise JobError(
            f"of {plan.todo.num_rows} images, {report.embedded} were embedded, {report.rejected} rejected and "
            f"{report.filtered_read} filtered, and {missing} are in no row file. The run stays unfinished: run the "
            "same command again to continue, and please report this as a bug"
        )
    attempted = pc.is_in(rows["image_id"], plan.todo["image_id"])
    report.retryable = rows.filter(pc.and_(rows["retryable"], attempted)).num_rows
    live = newest_rows([plan.live, rows])
    report.count_rejects(plan.listing, live)
    rejected = report.reject_reasons.total()
    if report.filtered_in_all and report.unfiltered == rejected:
        raise UsageError(
            f"--keep keeps none of the {report.listed} images of {plan.source}, so nothing was published: expected an "
            f"expression that matches some of them, got {plan.image_filter.key}. "
            f"`likeness rejects --reason {FILTERED}` shows why each was left out"
        )
    if rejected > max_reject_rate * report.unfiltered:
        raise TooManyRejectsError(_too_many_message(report, max_reject_rate))
    if not len(plan.deletes) and _failed_again(rows, plan.live):
        return None
    filtered = int(pc.sum(is_filtered(rows)).as_py() or 0)
    return RunManifest(
        **dict(run),
        finished_at=datetime.now(UTC),
        files=written.files,
        counts={
            "listed": report.listed,
            "already_there": report.already_there,
            "embedded": rows["error_reason"].null_count,
            "rejected": rows.num_rows - rows["error_reason"].null_count - filtered,
            "filtered": filtered,
            "deleted": len(plan.deletes),
        },
    )


def _failed_again(rows: pa.Table, live: pa.Table) -> bool:
    """Whether all rows are retryable failures, as their live rows already were."""
    before = live.take(pc.index_in(rows["image_id"], live["image_id"]))
    uris: list[Any] = [pc.coalesce(each["uri"], pa.scalar("")) for each in (rows, before)]  # annotations have none
    failed_again = pc.and_(pc.and_(rows["retryable"], before["retryable"]), pc.equal(*uris))
    return pc.all(failed_again, skip_nulls=False).as_py() is True


def _too_many_message(report: EmbedReport, allowed: float) -> str:
    rejected, count = report.reject_reasons.total(), report.unfiltered
    return (
        f"{rejected} of {count} images were rejected ({rejected / count:.1%}; mostly "
        f"{format_reasons(report.reject_reasons, 3)}), more than the {allowed:.1%} allowed, so nothing was published. "
        "Fix the source or raise --max-reject-rate, and run the same command again: it embeds nothing twice. "
        "`likeness rejects` lists the rejects"
    )
