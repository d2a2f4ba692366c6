"""Metrics of a job's last run, in a file for node_exporter: a job has ended before anybody could scrape it."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from jobs.schedule.history import JobRun, Outcome


def write_metrics(path: str, run: JobRun, last_success: JobRun | None) -> None:
    """Write the metrics of a finished run, atomically. OSError when the file cannot be written.

    `last_success` is this run or an earlier one of the same source. Where none is known, what the file said of it
    stays: how long a job has failed must show while its collection cannot be reached, too.
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
    known = last_success and last_success.ended_at
    succeeded = known.timestamp() if known else _said_before(path, run)
    outcomes = {name: float(name == run.outcome) for name in typing.get_args(Outcome) if name != "running"}
    gauge("last_end_timestamp_seconds", "When the last run ended.", ended.timestamp())
    gauge("last_success_timestamp_seconds", "When a run succeeded.", succeeded)
    gauge("last_duration_seconds", "What the last run took.", (ended - run.started_at).total_seconds())
    gauge("last_outcome", "1 for what became of the last run.", outcomes, "outcome")
    gauge("last_images", "Images of the last run by what was found and done.", dict(run.counts), "change")
    gauge("last_stage_seconds", "What the stages of the last run took.", run.seconds, "stage")
    gauge("recall", "Recall@10 of the live index.", run.recall)
    write_to_textfile(path, registry)


def _said_before(path: str, run: JobRun) -> float | None:
    labels = {"collection": run.collection, "source": run.source}
    try:
        families = list(text_string_to_metric_families(Path(path).read_text()))
    except (FileNotFoundError, ValueError):  # the first run's, or no metrics
        return None
    samples = [sample for family in families for sample in family.samples if sample.labels == labels]
    return next((each.value for each in samples if each.name == "likeness_job_last_success_timestamp_seconds"), None)
