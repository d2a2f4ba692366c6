"""The workers' metrics of the embedding pipeline, which Ray's nodes export for Prometheus.

Work that Ray retries is counted again, because it was done again.
"""

from functools import cache

from ray.util.metrics import Counter, Gauge


class WorkerMetrics:
    """This process's metrics. Ray prefixes their names with `ray_` and adds `_total` to counters."""

    def __init__(self) -> None:
        self.rows = Counter("likeness_job_rows", "Images that a stage of embedding has finished.", tag_keys=("stage",))
        self.rejects = Counter("likeness_job_rejects", "Images that cannot be used.", tag_keys=("reason",))
        self.seconds = Counter("likeness_job_stage_seconds", "Seconds spent in each stage.", tag_keys=("stage",))
        self.idle = Gauge(
            "likeness_job_actor_idle_share",
            "Share of time, over its last block, in which an actor and its GPU (if any) embedded nothing.",
        )

    def stage(self, name: str, rows: int, seconds: float) -> None:
        """Count the rows and seconds of a stage. Ray refuses to count zero."""
        if rows:
            self.rows.inc(rows, {"stage": name})
        if seconds > 0:
            self.seconds.inc(seconds, {"stage": name})


worker_metrics = cache(WorkerMetrics)
