"""The end of a job: every listed image is accounted for once, and the manifests of its runs are published."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from index.collection import Collection
from index.collection.records import RowFile, RunManifest, RunStart
from index.collection.rows import FILTERED, is_filtered, newest_positions
from jobs.embedding.report import EmbedReport
from jobs.errors import JobError, TooManyRejectsError, UsageError
from jobs.planning.plan import Plan, fold
from jobs.planning.rejects import shown_reasons


@dataclass(frozen=True, kw_only=True)
class WrittenRun:
    """A run that is not yet published, with the row files that it has so far, oldest first."""

    plan: Plan
    run: RunStart
    files: list[RowFile]
    report: EmbedReport

    @classmethod
    def begin(cls, plan: Plan, collection: Collection) -> Self:
        """The run that a plan goes on with, or a new one. With nothing left to embed, all of its rows are on disk."""
        return cls(plan=plan, run=plan.start(collection), files=list(plan.files), report=EmbedReport.of(plan))


def commit(collection: Collection, written: Sequence[WrittenRun], max_reject_rate: float) -> list[RunManifest]:
    """Check that every listed image is accounted for once, and publish the runs if all are good; returns them.

    A run that only failed again on images that failed last time is not published; otherwise a host that is down would
    cause an identical index version every night, and older ones would be removed for it. Raises `JobError` or
    `TooManyRejectsError`; all runs then stay unfinished.
    """
    collection.check_lease()
    manifests = [_checked(collection, each, max_reject_rate) for each in written]
    published = []
    for each, manifest in zip(written, manifests, strict=True):
        if manifest is None:
            continue
        gone = each.plan.deletes
        deletes = collection.write_deletes(manifest.run_id, gone) if len(gone) else None
        published.append(manifest.model_copy(update={"deletes": deletes}))
        collection.commit_run(published[-1])
    return published


def _checked(collection: Collection, written: WrittenRun, max_reject_rate: float) -> RunManifest | None:
    """The manifest of a run that may be published, without its deletes as yet; None if it would change nothing."""
    plan, run, report = written.plan, written.run, written.report
    rows = fold(collection, written.files)
    missing = plan.todo.filter(pc.invert(pc.is_in(plan.todo["image_id"], value_set=rows["image_id"]))).num_rows
    if missing or report.done != plan.todo.num_rows:
        raise JobError(
            f"of {plan.todo.num_rows} images {report.embedded} came back embedded, {report.rejected} rejected and "
            f"{report.filtered_read} filtered, and {missing} are in no file. The run stays unfinished; run "
            "the same command again to continue. Please report this"
        )
    tried = pc.is_in(rows["image_id"], plan.todo["image_id"])
    report.retryable = rows.filter(pc.and_(rows["retryable"], tried)).num_rows
    both = pa.concat_tables([plan.live, rows])
    live = both.take(newest_positions([both["image_id"]])[0])
    report.count_rejects(plan.listing, live)
    wanted, rejected = report.listed - report.filtered_in_all, report.reject_reasons.total()
    if report.filtered_in_all and wanted == rejected:
        raise UsageError(
            f"--keep keeps none of the {report.listed} images of {plan.source}, so nothing was published: expected an "
            f"expression that holds for some of them, got {plan.images.key}. `likeness rejects --reason {FILTERED}` "
            "says what each was left out for"
        )
    if rejected > max_reject_rate * wanted:
        raise TooManyRejectsError(_too_many(report, max_reject_rate))
    if not len(plan.deletes) and _failed_again(rows, plan.live):
        return None
    left_out = int(pc.sum(is_filtered(rows)).as_py() or 0)
    return RunManifest(
        **dict(run),
        finished_at=datetime.now(UTC),
        files=written.files,
        counts={
            "listed": report.listed,
            "already_there": report.already_there,
            "embedded": rows["error_reason"].null_count,
            "rejected": rows.num_rows - rows["error_reason"].null_count - left_out,
            "filtered": left_out,
            "deleted": len(plan.deletes),
        },
    )


def _failed_again(rows: pa.Table, live: pa.Table) -> bool:
    """Whether all rows are retryable failures, and their live rows were too."""
    before = live.take(pc.index_in(rows["image_id"], live["image_id"]))
    uris: list[Any] = [pc.coalesce(each["uri"], pa.scalar("")) for each in (rows, before)]  # annotations have none
    same = pc.and_(pc.and_(rows["retryable"], before["retryable"]), pc.equal(*uris))
    return pc.all(same, skip_nulls=False).as_py() is True


def _too_many(report: EmbedReport, allowed: float) -> str:
    rejected, wanted = report.reject_reasons.total(), report.listed - report.filtered_in_all
    return (
        f"{rejected} of {wanted} images were rejected ({rejected / wanted:.1%}; mostly "
        f"{shown_reasons(report.reject_reasons, 3)}), more than the {allowed:.1%} allowed, so nothing was published. "
        "Mend the source, or raise --max-reject-rate, and run the same command again: it embeds nothing twice. "
        "`likeness rejects` lists them"
    )
