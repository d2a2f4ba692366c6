"""The stages of the embedding pipeline with counts in Ray's own metrics: each worker counts its work, and its node
exports that for Prometheus. Work that Ray retries is counted again, since it was done.
"""

import time
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from ray.util.metrics import Counter, Gauge

from embedder.errors import folded
from jobs.embedding.decode import DecodeSettings, EmbedBlock, fetch_and_decode


class _Metrics:
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


_metrics = cache(_Metrics)


def counted_fetch_and_decode(table: pa.Table, *, settings: DecodeSettings) -> pa.Table:
    """`fetch_and_decode`, counted."""
    done = fetch_and_decode(table, settings=settings)
    metrics = _metrics()
    stages = [str(stage) for stage in done["error_stage"].drop_null().to_pylist()]
    metrics.stage("fetch", done.num_rows - stages.count("fetch"), pc.sum(done["fetch_seconds"]).as_py() or 0)
    metrics.stage("decode", done.num_rows - len(stages), pc.sum(done["decode_seconds"]).as_py() or 0)
    for reason in done["error_reason"].drop_null().to_pylist():
        metrics.rejects.inc(1, {"reason": folded(str(reason))})
    return done


class CountedEmbedBlock(EmbedBlock):
    """`EmbedBlock`, counted. Its constructor's arguments are the same."""

    _ended: float | None = None

    def __call__(self, table: pa.Table) -> pa.Table:
        began = self._ended or time.perf_counter()
        summary = super().__call__(table)
        self._ended = time.perf_counter()
        (block,) = summary.to_pylist()
        metrics = _metrics()
        metrics.stage("embed", block["embedded"], block["model_seconds"])
        metrics.stage("write", block["rows"], block["write_seconds"])
        metrics.idle.set(max(0.0, 1 - block["model_seconds"] / (self._ended - began)))
        return summary
