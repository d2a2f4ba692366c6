"""What workers count of the embedding pipeline in Ray's own metrics, which their nodes export for Prometheus.

Work that Ray retries is counted again, since it was done.
"""

from functools import cache

from ray.util.metrics import Counter, Gauge


class WorkerMetrics:
    """This process's metrics. Ray prefixes the names with `ray_`, and adds `_total` to those of counters."""

    def __init__(self) -> None:
        self.rows = Counter("likeness_job_rows", "Images that a stage of embedding is done with.", tag_keys=("stage",))
        self.rejects = Counter("likeness_job_rejects", "Images that cannot be used.", tag_keys=("reason",))
        self.seconds = Counter("likeness_job_stage_seconds", "What the stages take.", tag_keys=("stage",))
        self.idle = Gauge(
            "likeness_job_actor_idle_share",
            "Share of the time in which an actor, and its GPU if it has one, embeds nothing, over its last block.",
        )

    def stage(self, name: str, rows: int, seconds: float) -> None:
        """Count rows that passed a stage, and its seconds. Ray refuses to count zero."""
        if rows:
            self.rows.inc(rows, {"stage": name})
        if seconds > 0:
            self.seconds.inc(seconds, {"stage": name})


worker_metrics = cache(WorkerMetrics)
