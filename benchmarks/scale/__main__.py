"""Unit costs of each kind of work, for planning: `python -m benchmarks.scale [--quick]`.

Measures decoding, the models, rows, segments of an index and requests to an object store, and prints the table of costs
in `docs/scale.md`, without listing and comparing: `benchmarks.catalog` and `benchmarks.runs` measure those.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common.process import CORES, in_new_process
from benchmarks.common.report import Report, format_figure, run
from benchmarks.embed.rates import forward_rate
from benchmarks.models.random_models import save_clip
from benchmarks.scale import Costs
from benchmarks.scale.images import decoding, row_bytes
from benchmarks.scale.index import indexes, scan
from benchmarks.scale.requests import requests
from embedder.models.checkpoint import DEMO_MODEL
from embedder.openmp import OPENMP_ENVIRONMENT


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured: seconds for each rate, rows of the segments, smallest first.

    `latency_ms` is so short that the smallest segment is not searched exactly.
    """

    seconds: float = 5.0
    rows: tuple[int, int] = (100_000, 1_000_000)
    latency_ms: float = 5.0


QUICK = Plan(seconds=0.7, rows=(20_000, 60_000), latency_ms=0.5)


def measure(plan: Plan, folder: Path) -> Iterator[Costs]:
    """Yields costs as they are measured."""
    yield in_new_process(decoding, folder, plan.seconds)
    large = in_new_process(save_clip, folder / "vit-b-32")
    for name, model, side, batch in (("ViT-B/32", large, 224, 32), ("the demo model", DEMO_MODEL, 64, 64)):
        rate = in_new_process(partial(forward_rate, model, batch=batch, seconds=plan.seconds, device="cpu"))
        yield {(f"embed a crop of {side} × {side} with {name}", "core ms"): {"": 1e3 * CORES / rate}}
    yield row_bytes(folder / "rows")
    yield in_new_process(requests, folder)
    yield indexes(folder, plan.rows, plan.latency_ms)
    yield in_new_process(scan, plan.rows[0])


def main(report: Report, folder: Path, options: Any) -> None:
    for name, value in {**OPENMP_ENVIRONMENT, "RAY_USAGE_STATS_ENABLED": "0"}.items():
        os.environ.setdefault(name, value)
    table = []
    for costs in measure(QUICK if options.quick else Plan(), folder):
        for (what, unit), variants in costs.items():
            report.console.log(what)
            joined = ", ".join(f"{format_figure(value)} {name}".strip() for name, value in variants.items())
            table.append({"what": what, "unit": unit, "costs": joined or "none"})
    report.table("costs", table)


if __name__ == "__main__":
    run("scale", __doc__, main, "few rows, within 2 minutes; the figures are no use for planning")
