"""A job from a file, from its beginning to its notification: re-embed, remove old versions, record the outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from embedder.errors import EmbedderError
from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from index.errors import CollectionError, LeaseError, NotACollectionError, OvertakenError
from index.versions.prune import prune
from jobs.embedding.report import Report
from jobs.errors import JobError, RolledBackColumnsError
from jobs.schedule.history import HistoryEntry, last_success, outcome_of, save
from jobs.schedule.metrics_file import write_metrics
from jobs.schedule.notify import notify
from jobs.spec import JobSpec
from jobs.update import Update

WAIT_S = 600.0
"""Seconds that a job waits for another one that is writing, such as a watch: the next night is a day away."""

logger = logging.getLogger(__name__)


def run_job(update: Update) -> None:
    """Bring the collection up to date as its job says. Raises like `Update.run`, after the notification. If annotations
    or saved searches had to be left out, the problems of the report, the job has failed, but done the rest.
    """
    spec, report = update.spec, update.report
    entry = HistoryEntry.begin(spec.source, spec.collection)
    record(spec, entry)
    try:
        replace(update, wait_s=WAIT_S).run(partial(annotate, update))
        prune_versions(spec, report)
    except BaseException as error:
        finish(spec, entry.end(*outcome_of(error), report))
        raise
    message = "; ".join(filter(None, [report.failure, report.note]))
    finish(spec, entry.end(report.outcome, message or None, report))


def finish(spec: JobSpec, entry: HistoryEntry) -> None:
    """Record a finished job and its metrics, and send its notification. Failures of this are logged."""
    record(spec, entry)
    if spec.metrics_file:
        try:
            write_metrics(spec.metrics_file, entry, _last_success(spec, entry))
        except OSError as error:
            logger.warning("the metrics of job %s could not be written: %s", entry.id, error)
    notify(spec.notify, entry)


def record(spec: JobSpec, entry: HistoryEntry) -> None:
    """Write a job to the history. A failure is logged."""
    try:
        save(Collection.open(spec.collection).storage, entry)
    except NotACollectionError:
        pass  # the first job creates it, or fails with what is wrong
    except (CollectionError, OSError) as error:
        if entry.ended_at:  # once for a job
            logger.warning("job %s is not in the history: %s", entry.id, error)


def annotate(update: Update, collection: Collection, made: dict[str, ModelRecord] | None = None) -> None:
    """Bring the job's annotations up to date, once its images are, run its saved searches, and publish both at once.
    What cannot work is a problem of the report, and does not keep the rest from its work. `made` is as in `Annotate`.
    """
    spec, report = update.spec, update.report
    if not (spec.annotations or spec.searches) or not collection.runs():
        return
    from jobs.annotation.annotate import Annotate  # late: most jobs have none
    from jobs.annotation.predictors.searches import unlisted_stale
    from jobs.annotation.publish import publish
    from jobs.schedule.saved_searches import run_searches

    job = Annotate(
        collection=collection,
        console=update.console,
        resources=spec.resources,
        load=update.embedder,
        max_reject_rate=spec.max_reject_rate,
        made={} if made is None else made,
    )
    stale = dict.fromkeys((each.name for each in spec.annotations), "")
    for each in spec.annotations:
        with report.timed("annotate"), _left_out(f"the annotation {each.name}", report):
            done = job.write_columns(each)
            del stale[each.name]
            if done.embedded or done.rejected:
                report.annotated[each.name] = done
    if spec.searches:
        with report.timed("search"), _left_out("the saved searches", report):
            stale |= unlisted_stale(spec, collection, job.live[0])
            run_searches(job, spec.searches, update.embedder, report, stale)
    if not report.searches:  # which publish before they deliver
        publish(collection, update.console, said=report.notes)
    report.index_after = collection.current()


@contextmanager
def _left_out(part: str, report: Report) -> Iterator[None]:
    """Turns what is wrong with a part of the job into a problem of the report, but a rollback into a note."""
    try:
        yield
    except (LeaseError, OvertakenError):  # with the whole job
        raise
    except RolledBackColumnsError as error:
        report.notes.append(f"{part}: {error}")
    except (JobError, CollectionError, EmbedderError, OSError) as error:
        report.problems.append(f"{part}: {error}")


def prune_versions(spec: JobSpec, report: Report) -> None:
    """Remove old index versions. Errors are only noted: the job itself is done, and the next one tries again."""
    try:
        prune(Collection.open(spec.collection), spec.retention.keep)
    except (CollectionError, OSError) as error:
        report.notes.append(f"old index versions stay for now: {error}")


def _last_success(spec: JobSpec, entry: HistoryEntry) -> HistoryEntry | None:
    if entry.outcome == "succeeded":
        return entry
    try:
        return last_success(Collection.open(spec.collection).storage, entry.source)
    except (CollectionError, OSError):  # it cannot be reached, or the first job failed before it created one
        return None
