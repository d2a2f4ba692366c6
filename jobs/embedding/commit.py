"""The end of a job: checks that every listed image is accounted for once, and publishes the manifests of its runs."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa

from index.collection import Collection
from index.collection.catalog.catalog import FILE_BITS, Catalog, RunRows, split_seq
from index.collection.merged.merge import merge_runs
from index.collection.records.run_manifest import RowFile, RunCounts, RunManifest, RunStart
from index.collection.rows import FILTERED, numbers_of
from jobs.addresses.record_checks import record_fetches
from jobs.embedding.report import BlockSummary, EmbedReport
from jobs.errors import JobError, UsageError
from jobs.limits import require_few_rejects
from jobs.planning.plan import Plan
from jobs.planning.rejects import count_reasons


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

    def add(self, block: BlockSummary) -> None:
        """Count a block that is on disk."""
        self.files.append(block.file)
        self.report.add(block)

    def catalog(self, collection: Collection) -> Catalog:
        """A catalog of its rows alone."""
        return Catalog(collection.storage, [RunRows(run=self.run, files=self.files)])


def commit(
    collection: Collection, written: Sequence[WrittenRun], max_reject_rate: float, now: datetime | None = None
) -> list[RunManifest]:
    """Check that every listed image is accounted for once, then publish the runs and return them.

    A run in which only the images of last time failed again is not published. Otherwise a host that is down would cause
    an identical index version every night, and older versions would be pruned to make room. Raises `JobError`,
    `TooManyRejectsError` or `UsageError`; all runs then stay unfinished. What was found at web addresses at the time
    `now` is recorded. At the end small runs are merged.
    """
    collection.check_lease()
    catalogs = [(each, each.catalog(collection)) for each in written]
    try:
        checked = [(each, rows, _checked_counts(each, rows, max_reject_rate)) for each, rows in catalogs]
    except JobError:
        for each, rows in catalogs:
            _remove_replaced(collection, each, rows)
        raise
    now = now or datetime.now(UTC)
    for each, rows in catalogs:
        plan, began = each.plan, each.run.started_at
        record_fetches(collection, plan.source, rows, plan.todo.view, now=now, began=began)
    published = []
    for each, rows, counts in checked:
        if counts is not None:
            published.append(_publish(collection, each, rows, counts))
        else:
            _remove_replaced(collection, each, rows)
    if published:
        merge_runs(collection)
    return published


_COUNTS = f"""
SELECT count(*) FILTER (new.error_reason IS NULL) AS embedded,
       count(*) FILTER (new.error_reason = '{FILTERED}') AS filtered,
       count(*) FILTER (new.error_reason <> '{FILTERED}') AS rejected,
       count(*) FILTER (new.retryable AND todo.image_id IS NOT NULL) AS retryable,
       count(todo.image_id) AS attempted,
       bool_and(coalesce(new.retryable AND before.retryable
                         AND coalesce(new.uri, '') = coalesce(before.uri, ''), false)) IS NOT false AS failed_again
FROM {{rows}} AS new
LEFT JOIN {{todo}} AS todo USING (image_id)
LEFT JOIN {{before}} AS before USING (image_id)
"""
_NO_REJECTS = "(SELECT image_id, uri, error_reason, retryable FROM live_rows WHERE false)"
_NEW_AND_OLD = """
(SELECT error_reason FROM {rows}
 UNION ALL
 SELECT error_reason FROM {before} ANTI JOIN {rows} USING (image_id))
"""


def _publish(collection: Collection, written: WrittenRun, rows: Catalog, counts: RunCounts) -> RunManifest:
    facts, deletes = rows.store_facts(), _deleted_ids(written.plan)
    return collection.commit_run(written.run, written.files, facts=facts, deletes=deletes, counts=counts)


_OF_EACH_FILE = f"SELECT min(seq) AS seq FROM live_rows GROUP BY seq >> {FILE_BITS}"


def _remove_replaced(collection: Collection, written: WrittenRun, rows: Catalog) -> None:
    """Remove the files of earlier tries at an unpublished run whose images this one has all tried again. Else each
    round of a watch would leave a file, and each would read them all.
    """
    needed = set(split_seq(numbers_of(rows.table(_OF_EACH_FILE)["seq"]))[1].tolist())
    for number, file in enumerate(written.files[: len(written.plan.files)]):
        if number not in needed:
            collection.storage.delete(file.path)
            written.files.remove(file)


def _deleted_ids(plan: Plan) -> Iterator[pa.Array[Any]]:
    if plan.deletes and plan.deleted:
        # In no order: DuckDB would need the memory to sort them.
        for part in plan.deletes.workspace.query(f"SELECT image_id FROM {plan.deletes.sql}"):
            yield part["image_id"].combine_chunks()


def _checked_counts(written: WrittenRun, rows: Catalog, max_reject_rate: float) -> RunCounts | None:
    """What the manifest of a run that passes the checks counts; None if it would change nothing. `rows` has its rows
    alone.
    """
    plan, report = written.plan, written.report
    before = plan.rejects.sql if plan.rejects else _NO_REJECTS
    new = f"(FROM live_rows SEMI JOIN {plan.images} USING (image_id))" if plan.images else "live_rows"
    [counts] = rows.table(_COUNTS.format(rows=new, todo=plan.todo.view, before=before)).to_pylist()
    missing = plan.todo.num_rows - counts["attempted"]
    if missing or report.done != plan.todo.num_rows:
        raise JobError(
            f"of {plan.todo.num_rows} images, {report.embedded} were embedded, {report.rejected} rejected and "
            f"{report.filtered_read} filtered, and {missing} are in no row file. The run stays unfinished: run the "
            "same command again to continue, and please report this as a bug"
        )
    report.retryable = counts["retryable"]
    report.set_reasons(count_reasons(rows, _NEW_AND_OLD.format(rows=new, before=before)))
    if report.filtered_in_all and report.unfiltered == report.reject_reasons.total():
        raise UsageError(
            f"--keep keeps none of the {report.listed} images of {plan.source}, so nothing was published: expected "
            f"an expression that matches some of them, got {plan.image_filter.settings.keep}. "
            f"`likeness rejects COLLECTION --reason {FILTERED}` shows why each was left out"
        )
    again = "run the same command again: it embeds nothing twice"
    require_few_rejects(report.reject_reasons, report.unfiltered, max_reject_rate, again)
    if counts["failed_again"] and not (plan.deleted or plan.moved):
        return None
    return RunCounts(
        listed=report.listed,
        already_there=report.already_there,
        deleted=plan.deleted,
        embedded=counts["embedded"],
        filtered=counts["filtered"],
        rejected=counts["rejected"],
    )
