"""One run of a job from a file: re-embed, remove old versions, write down what became of it, and tell whoever asked."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace

from rich.console import Console

from index.collection import Collection
from index.errors import CollectionError, LeaseError
from index.prune import prune
from jobs.history import JobRun, Outcome, last_runs, save
from jobs.job_metrics import write_metrics
from jobs.notify import notify
from jobs.reembed import reembed
from jobs.reembed_report import ReembedReport
from jobs.spec import JobSpec

logger = logging.getLogger(__name__)


def run_job(spec: JobSpec, console: Console, *, verbose: bool = False) -> ReembedReport:
    """Bring the collection up to date as its job says. Raises what `jobs.reembed.reembed` raises, once it is told."""
    run = JobRun.begin(spec.source, spec.collection)
    _remember(spec, run)
    try:
        report = reembed(replace(spec.settings(), verbose=verbose), console)
        _retain(spec)
    except BaseException as error:
        finish(spec, run.end(_outcome(error), str(error) or type(error).__name__))
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


def finish(spec: JobSpec, run: JobRun) -> None:
    """Write down a run that is over, its metrics too, and tell of it. What fails of that is logged."""
    _remember(spec, run)
    if spec.metrics_file:
        try:
            write_metrics(spec.metrics_file, run, _earlier(spec, run))
        except (CollectionError, OSError) as error:
            logger.warning("the metrics of run %s could not be written: %s", run.id, error)
    notify(spec.notify, run)


def _retain(spec: JobSpec) -> None:
    try:
        prune(Collection.open(spec.collection), spec.retention.keep)
    except LeaseError as error:  # the next run removes as much
        logger.warning("old index versions stay for now: %s", error)


def _remember(spec: JobSpec, run: JobRun) -> None:
    try:
        save(Collection.open(spec.collection).storage, run)
    except (CollectionError, OSError) as error:
        # The first run makes the collection, so there is none yet when it begins.
        if run.ended_at:
            logger.warning("run %s is not in the history: %s", run.id, error)


def _earlier(spec: JobSpec, run: JobRun) -> list[JobRun]:
    try:
        return [each for each in last_runs(Collection.open(spec.collection), 100) if each.id != run.id]
    except (CollectionError, OSError):
        return []


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, LeaseError):
        return "busy"
    return "failed" if isinstance(error, Exception) else "stopped"
