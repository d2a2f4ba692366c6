"""How fast contestants answer, and the bars for the cost of Ray Serve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np

from benchmarks.common.load import TimedSearch, closed_loop
from benchmarks.common.report import Report

ALONE = "bare loop"
BATCHES = "loop, 32 at once"
ENDPOINT = "bare FastAPI"
LOCAL = "serve --local"
SERVE = "serve"
BY_ID = ", by id"


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a contestant: seconds of each answer, answers per second, CPU time of a query at the server."""

    latencies: list[float]
    queries_per_second: float
    cpu_ms: float


Rounds = dict[tuple[str, int], list[Round]]
"""By contestant and number of clients."""


def speed_of(rounds: Sequence[Round]) -> dict[str, float]:
    """All rounds together: latency, NaN if none was timed; median of the rates; mean of the CPU times."""
    milliseconds = np.concatenate([each.latencies for each in rounds]) * 1e3
    return {
        "p50 ms": float(np.median(milliseconds)) if len(milliseconds) else math.nan,
        "queries/s": median(each.queries_per_second for each in rounds),
        "CPU ms": mean(each.cpu_ms for each in rounds),
    }


def successful_searches(url: str, pictures: Path, clients: int, seconds: float, answers: int) -> list[TimedSearch]:
    """The searches of a `closed_loop`. Raises RuntimeError if one did not succeed."""
    searches = closed_loop(url, pictures, clients=clients, seconds=seconds, answers=answers)
    for search in searches:
        if search.status != 200:
            raise RuntimeError(f"expected an answer to {search.picture}, got {search.status}: {search.body[:500]!r}")
    return searches


def steady(searches: Sequence[TimedSearch], seconds: float, answers: int) -> Sequence[TimedSearch]:
    """The searches of a `closed_loop` that were answered while all clients were still searching."""
    deadline = min(search.at for search in searches) + seconds
    ended = (number for number, each in enumerate(searches, 1) if number >= answers and each.ended >= deadline)
    return searches[: next(ended, len(searches))]


def rate_of(ends: Sequence[float], clients: int) -> float:
    """Answers per second in steady state, from the sorted times of the answers.

    Answers of a batch arrive together. Therefore only complete turns count, in which every client gets one answer, from
    the end of the first turn to the end of the last.
    """
    turns = len(ends) // clients
    return (turns - 1) * clients / (ends[turns * clients - 1] - ends[clients - 1])


def judge(model: str, rows: int, rounds: Rounds, report: Report) -> None:
    """Add a table, and the bars for what Ray Serve may cost: latency with one client, throughput with many, and CPU
    time compared with `--local`.
    """
    case = f"{model}, {rows:,} rows"
    speeds = {each: speed_of(some) for each, some in sorted(rounds.items(), key=lambda item: item[0][1])}
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
