"""One run of a job from a file: re-embed, remove old versions, record the outcome, and send notifications."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

from rich.console import Console

from index.collection import Collection
from index.errors import CollectionError
from index.versions.prune import prune
from jobs.embedding.update_report import ReembedReport, Stopwatch
from jobs.schedule.history import HistoryEntry, last_success, outcome_of, save
from jobs.schedule.metrics_file import write_metrics
from jobs.schedule.notify import notify
from jobs.schedule.spec import JobSpec
from jobs.update import reembed

logger = logging.getLogger(__name__)


def run_job(spec: JobSpec, console: Console, *, verbose: bool = False, clock: Stopwatch | None = None) -> ReembedReport:
    """Bring the collection up to date as its job says. Raises like `jobs.update.reembed`, after the notification."""
    run, clock = HistoryEntry.begin(spec.source, spec.collection), clock or Stopwatch()
    remember(spec, run)
    try:
        report = _retain(spec, reembed(replace(spec.settings(), verbose=verbose), console, clock))
    except BaseException as error:
        counts = asdict(clock.counts) if clock.counts else {}
        finish(spec, run.end(*outcome_of(error), counts=counts, seconds=clock.seconds))
        raise
    counts = asdict(report.counts) | {
        "embedded": report.embedded,
        "rejected": report.rejected,
        "failed": report.failed,
    }
    done = run.end(
        "succeeded",
        report.note,
        counts=counts,
        seconds=report.seconds,
        index=report.index_after,
        recall=report.recall,
    )
    finish(spec, done)
    return report


def finish(spec: JobSpec, run: HistoryEntry) -> None:
    """Record a finished run and its metrics, and send its notification. Failures of this are logged."""
    remember(spec, run)
    if spec.metrics_file:
        try:
            write_metrics(spec.metrics_file, run, run if run.outcome == "succeeded" else _last_success(spec, run))
        except OSError as error:
            logger.warning("the metrics of run %s could not be written: %s", run.id, error)
    notify(spec.notify, run)


def _retain(spec: JobSpec, report: ReembedReport) -> ReembedReport:
    """Remove old versions. Errors are only noted: the rest is done, and the next run removes them."""
    try:
        prune(Collection.open(spec.collection), spec.retention.keep)
    except (CollectionError, OSError) as error:
        note = f"old index versions stay for now: {error}"
        return replace(report, note=f"{report.note}; {note}" if report.note else note)
    return report


def remember(spec: JobSpec, run: HistoryEntry) -> None:
    """Record a run. A failure is logged."""
    try:
        save(Collection.open(spec.collection).storage, run)
    except (CollectionError, OSError) as error:
        # The first run makes the collection, so there is none yet when it begins.
        if run.ended_at:
            logger.warning("run %s is not in the history: %s", run.id, error)


def _last_success(spec: JobSpec, run: HistoryEntry) -> HistoryEntry | None:
    try:
        return last_success(Collection.open(spec.collection).storage, run.source)
    except (CollectionError, OSError):  # it cannot be reached, or the first run failed before it made one
        return None
