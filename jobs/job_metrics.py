"""Metrics of a job's last run, in a file for node_exporter: a job has ended before anybody could scrape it."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from jobs.history import JobRun, Outcome


def write_metrics(path: str, run: JobRun, earlier: Sequence[JobRun]) -> None:
    """Write the metrics of a run that is over, whole or not at all. OSError where the file cannot be written.

    `earlier` are the runs before, oldest first: the last success is among them when this one is none.
    """
    registry = CollectorRegistry()

    def gauge(name: str, text: str, values: Mapping[str, float] | float | None, label: str | None = None) -> None:
        made = Gauge(f"likeness_job_{name}", text, ["collection", *([label] if label else [])], registry=registry)
        if isinstance(values, Mapping):
            for key, value in values.items():
                made.labels(run.collection, key).set(value)
        elif values is not None:
            made.labels(run.collection).set(values)

    ended = run.ended_at or run.started_at
    successes = [each.ended_at for each in [*earlier, run] if each.outcome == "succeeded" and each.ended_at]
    outcomes = {name: float(name == run.outcome) for name in typing.get_args(Outcome) if name != "running"}
    gauge("last_end_timestamp_seconds", "When the last run ended.", ended.timestamp())
    gauge("last_success_timestamp_seconds", "When a run succeeded.", successes[-1].timestamp() if successes else None)
    gauge("last_duration_seconds", "What the last run took.", (ended - run.started_at).total_seconds())
    gauge("last_outcome", "1 for what became of the last run.", outcomes, "outcome")
    gauge("last_images", "Images of the last run by what was found and done.", dict(run.counts), "change")
    gauge("last_stage_seconds", "What the stages of the last run took.", run.seconds, "stage")
    gauge("recall", "Recall@10 of the live index.", run.recall)
    write_to_textfile(path, registry)
