"""Metrics of the last job, in a file for node_exporter: the job itself ends before it could be scraped."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from jobs.schedule.history import HistoryEntry, Outcome


def write_metrics(path: str, entry: HistoryEntry, last_success: HistoryEntry | None) -> None:
    """Write the metrics of a finished job, atomically. OSError if the file cannot be written.

    `last_success` is that of the same source. If it is None, the file's earlier value stays, so that it shows how long
    a job has been failing even while its collection cannot be reached.
    """
    registry = CollectorRegistry()

    def gauge(name: str, text: str, values: Mapping[str, float] | float | None, label: str | None = None) -> None:
        # Without the source two jobs of one collection would export the same series, which node_exporter refuses.
        labels = ["collection", "source", *([label] if label else [])]
        made = Gauge(f"likeness_job_{name}", text, labels, registry=registry)
        if isinstance(values, Mapping):
            for key, value in values.items():
                made.labels(entry.collection, entry.source, key).set(value)
        elif values is not None:
            made.labels(entry.collection, entry.source).set(values)

    ended = entry.ended_at or entry.started_at
    last_ended = last_success and last_success.ended_at
    succeeded = last_ended.timestamp() if last_ended else _read_last_success(path, entry)
    outcomes = {name: float(name == entry.outcome) for name in typing.get_args(Outcome) if name != "running"}
    gauge("last_end_timestamp_seconds", "When the last run ended.", ended.timestamp())
    gauge("last_success_timestamp_seconds", "When a run last succeeded.", succeeded)
    gauge("last_duration_seconds", "Duration of the last run.", (ended - entry.started_at).total_seconds())
    gauge("last_outcome", "1 for the outcome of the last run.", outcomes, "outcome")
    gauge("last_images", "Images of the last run by what was found and done.", dict(entry.counts), "change")
    gauge("last_stage_seconds", "Duration of the stages of the last run.", entry.seconds, "stage")
    gauge("recall", "Recall@10 of the live index.", entry.recall)
    write_to_textfile(path, registry)


def _read_last_success(path: str, entry: HistoryEntry) -> float | None:
    labels = {"collection": entry.collection, "source": entry.source}
    try:
        families = list(text_string_to_metric_families(Path(path).read_text()))
    except (FileNotFoundError, ValueError):  # this is the first run, or the file holds no metrics
        return None
    samples = [sample for family in families for sample in family.samples if sample.labels == labels]
    return next((each.value for each in samples if each.name == "likeness_job_last_success_timestamp_seconds"), None)
