"""How fast contestants answer, and what Ray Serve may cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np

from benchmarks.common.load import Asked, crowd
from benchmarks.common.report import Report

ALONE = "bare loop"
BATCHES = "loop, 32 at once"
ENDPOINT = "bare FastAPI"
LOCAL = "serve --local"
SERVE = "serve"
BY_ID = ", by id"


@dataclass(frozen=True, kw_only=True)
class Load:
    """What came of one round: seconds of each answer, answers per second.

    `cpu_ms` is the CPU time that a query cost the server; `asking` is the share of one core that the clients took.
    """

    latencies: list[float]
    queries_per_second: float
    cpu_ms: float
    asking: float = 0.0


Loads = dict[tuple[str, int], list[Load]]
"""By contestant and number of clients, what came of each round."""


def speed_of(rounds: Sequence[Load]) -> dict[str, float]:
    """All rounds together: milliseconds of an answer, NaN where none was timed; the median of the rates; see `Load`."""
    milliseconds = np.concatenate([each.latencies for each in rounds]) * 1e3
    levels = (50, 95, 99)
    percentiles = np.percentile(milliseconds, levels) if len(milliseconds) else [np.nan] * 3
    return {
        **{f"p{level} ms": float(value) for level, value in zip(levels, percentiles, strict=True)},
        "queries/s": median(each.queries_per_second for each in rounds),
        "CPU ms": mean(each.cpu_ms for each in rounds),
        "asking": mean(each.asking for each in rounds),
    }


def timed_crowd(
    url: str, paths: Sequence[str], pictures: Path, clients: int, seconds: float, answers: int
) -> tuple[list[Asked], float]:
    """What a crowd asked, as it was answered, and the share of a core that it took.

    RuntimeError for an answer that is no success.
    """
    started, cpu = time.perf_counter(), time.process_time()
    asked = crowd(url, pictures, clients=clients, seconds=seconds, answers=answers, paths=paths)
    share = (time.process_time() - cpu) / (time.perf_counter() - started)
    for each in asked:
        if each.status != 200:
            raise RuntimeError(f"expected an answer to {each.picture}, got {each.status}: {each.body[:500]!r}")
    return asked, share


def steady(asked: Sequence[Asked], seconds: float, answers: int) -> Sequence[Asked]:
    """Without the last ones of such a crowd: when they were answered, not all clients were asking any more."""
    deadline = min(each.at for each in asked) + seconds
    ended = (number for number, each in enumerate(asked, 1) if number >= answers and each.ended >= deadline)
    return asked[: next(ended, len(asked))]


def rate_of(ends: Sequence[float], clients: int) -> float:
    """Answers per second in steady state, of the times at which they ended, in order.

    Answers of a batch end together. So whole turns are counted, in which every client is answered once, from the end of
    the first turn to the end of the last.
    """
    turns = len(ends) // clients
    return (turns - 1) * clients / (ends[turns * clients - 1] - ends[clients - 1])


def judge(model: str, rows: int, loads: Loads, report: Report) -> None:
    """A line for each contestant and number of clients; and what Ray Serve may cost: time where a query is alone,
    throughput where many are asked. Beside `--local`, by pictures and by id, it may cost CPU too.
    """
    case = f"{model}, {rows:,} rows"
    speeds = {each: speed_of(rounds) for each, rounds in sorted(loads.items(), key=lambda item: item[0][1])}
    report.table(case, [{"clients": clients, "": name, **speed} for (name, clients), speed in speeds.items()])
    alone = speeds[SERVE, 1]["p50 ms"] - speeds[ALONE, 1]["p50 ms"]
    report.at_most(f"{case}: p50 ms − the loop's", alone, 15)
    rate = speeds[SERVE, 32]["queries/s"]
    if model == "demo":
        share = rate / speeds[ENDPOINT, 32]["queries/s"]
        report.at_least(f"{case}: queries/s ÷ bare FastAPI's, 32 clients", share, 0.7)
    else:
        share = rate / speeds[BATCHES, 32]["queries/s"]
        report.at_least(f"{case}: queries/s ÷ the loop's, 32 at once", share, 0.9)
    for kind in ("", BY_ID):
        local, serve = ({clients: speeds[name + kind, clients] for clients in (1, 32)} for name in (LOCAL, SERVE))
        late = serve[1]["p50 ms"] - local[1]["p50 ms"]
        report.at_most(f"{case}{kind}: p50 ms − --local's, 1 client", late, 5)
        report.at_least(
            f"{case}{kind}: queries/s ÷ --local's, 32 clients", serve[32]["queries/s"] / local[32]["queries/s"], 0.9
        )
        for clients in (1, 32):
            cost = serve[clients]["CPU ms"] / local[clients]["CPU ms"]
            report.at_most(f"{case}{kind}: CPU a query ÷ --local's, clients: {clients}", cost, 1.25)
