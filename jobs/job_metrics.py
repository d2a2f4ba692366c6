"""Metrics of a job's last run, in a file for node_exporter: a job has ended before anybody could scrape it."""

from __future__ import annotations

import typing
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from jobs.history import JobRun, Outcome


def write_metrics(path: str, run: JobRun, last_success: JobRun | None) -> None:
    """Write the metrics of a finished run, atomically. OSError when the file cannot be written.

    `last_success` is this run, an earlier one of the same source, or none yet.
    """
    registry = CollectorRegistry()

    def gauge(name: str, text: str, values: Mapping[str, float] | float | None, label: str | None = None) -> None:
        # Without the source two jobs of one collection would export the same series, which node_exporter refuses.
        labels = ["collection", "source", *([label] if label else [])]
        made = Gauge(f"likeness_job_{name}", text, labels, registry=registry)
        if isinstance(values, Mapping):
            for key, value in values.items():
                made.labels(run.collection, run.source, key).set(value)
        elif values is not None:
            made.labels(run.collection, run.source).set(values)

    ended = run.ended_at or run.started_at
    succeeded = last_success.ended_at.timestamp() if last_success and last_success.ended_at else None
    outcomes = {name: float(name == run.outcome) for name in typing.get_args(Outcome) if name != "running"}
    gauge("last_end_timestamp_seconds", "When the last run ended.", ended.timestamp())
    gauge("last_success_timestamp_seconds", "When a run succeeded.", succeeded)
    gauge("last_duration_seconds", "What the last run took.", (ended - run.started_at).total_seconds())
    gauge("last_outcome", "1 for what became of the last run.", outcomes, "outcome")
    gauge("last_images", "Images of the last run by what was found and done.", dict(run.counts), "change")
    gauge("last_stage_seconds", "What the stages of the last run took.", run.seconds, "stage")
    gauge("recall", "Recall@10 of the live index.", run.recall)
    write_to_textfile(path, registry)
