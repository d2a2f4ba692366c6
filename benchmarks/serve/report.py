"""What a run of `benchmarks.serve` says: its tables, figures and bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median

import numpy as np
from rich.console import Console

from benchmarks.common.load import Load
from benchmarks.common.report import Bar, Figure, Goal, print_table

ALONE = "bare loop"
BATCHES = "loop, 32 at once"
ENDPOINT = "bare FastAPI"
LOCAL = "serve --local"
SERVE = "serve"

Loads = dict[tuple[str, int], list[Load]]
"""By contestant and number of clients, what came of each round."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The name of a model and the rows of its index."""

    model: str
    rows: int

    def __str__(self) -> str:
        return f"{self.model}, {self.rows:,} rows"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """All rounds together: milliseconds of an answer, NaN where none was timed; the median of the rates; see `Load`."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    queries_per_second: float
    cpu_ms: float
    asking: float

    @classmethod
    def of(cls, rounds: list[Load]) -> Speed:
        milliseconds = np.concatenate([each.latencies for each in rounds]) * 1e3
        p50, p95, p99 = np.percentile(milliseconds, (50, 95, 99)) if len(milliseconds) else (np.nan,) * 3
        return cls(
            p50_ms=float(p50),
            p95_ms=float(p95),
            p99_ms=float(p99),
            queries_per_second=median(each.queries_per_second for each in rounds),
            cpu_ms=mean(each.cpu_ms for each in rounds),
            asking=mean(each.asking for each in rounds),
        )


def print_case(case: Case, loads: Loads, console: Console) -> None:
    """A line for each contestant and number of clients."""
    rows = []
    for (name, clients), rounds in sorted(loads.items(), key=lambda item: item[0][1]):
        speed = Speed.of(rounds)
        latencies = [speed.p50_ms, speed.p95_ms, speed.p99_ms] if rounds[0].latencies else ["", "", ""]
        rows.append([clients, name, *latencies, speed.queries_per_second, speed.cpu_ms, f"{speed.asking:.0%}"])
    columns = ("clients", "", "p50 ms", "p95 ms", "p99 ms", "queries/s", "CPU ms", "asking")
    print_table(str(case), columns, rows, console)


def figures_of(outcomes: Mapping[Case, Loads]) -> dict[str, Figure]:
    """`{"demo, 10,000 rows": {"likeness serve": {"32": {"p50_ms": …}}}}`."""
    figures: dict[str, Figure] = {}
    for case, loads in outcomes.items():
        speeds: dict[str, dict[str, Figure]] = {}
        for (name, clients), rounds in loads.items():
            speeds.setdefault(name, {})[str(clients)] = vars(Speed.of(rounds))
        figures[str(case)] = speeds
    return figures


def bars_of(outcomes: Mapping[Case, Loads]) -> list[Bar]:
    """What Ray Serve may cost: time where a query is alone, throughput where many are asked."""
    bars = []
    for case, loads in outcomes.items():
        speeds = {each: Speed.of(rounds) for each, rounds in loads.items()}
        alone = speeds[SERVE, 1].p50_ms - speeds[ALONE, 1].p50_ms
        bars.append(Bar(name=f"{case}: p50 ms − the loop's", value=alone, bar=15, goal=Goal.AT_MOST))
        rate = speeds[SERVE, 32].queries_per_second
        if case.model == "demo":
            share = rate / speeds[ENDPOINT, 32].queries_per_second
            bars.append(Bar(name=f"{case}: queries/s ÷ bare FastAPI's, 32 clients", value=share, bar=0.7))
        else:
            share = rate / speeds[BATCHES, 32].queries_per_second
            bars.append(Bar(name=f"{case}: queries/s ÷ the loop's, 32 at once", value=share, bar=0.9))
    return bars
