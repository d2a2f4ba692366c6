"""How a server copes with hostile pictures: `python -m benchmarks.hostile [--quick]`.

Sixty small files that unpack to gigabytes or take long to decode (`benchmarks.hostile.pictures`) are uploaded at the
same time, to `likeness serve --local` and to Ray Serve, while a client keeps uploading usual pictures. Sixty more
follow, with headers within all limits. How long do the answers to both take, and how much memory stays in use?
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.collections import draw_pictures, make_collection
from benchmarks.common.load import TimedSearch, closed_loop, latency_ms, search_form, search_once
from benchmarks.common.report import Report, run
from benchmarks.common.servers import Server, serving
from benchmarks.hostile.pictures import sixty
from jobs.values import DEMO_MODEL

_USUAL_S = 15.0
"""How long usual pictures are uploaded alone, and at least together with hostile ones."""


@dataclass(frozen=True, kw_only=True)
class Siege:
    """Searches by hostile pictures, by usual ones `before` and `during` these, and samples of memory in MiB."""

    hostile: Sequence[TimedSearch]
    before: Sequence[TimedSearch]
    during: Sequence[TimedSearch]
    mib: Sequence[float]


def besiege(server: Server, hostile: Mapping[str, bytes], usual: Path, rest_s: float) -> Siege:
    """Upload usual pictures alone, then all hostile ones at the same time in addition, then rest."""
    before = closed_loop(server.url, usual, clients=1, seconds=_USUAL_S)
    memory, stop, started = [server.resident_mib()], threading.Event(), time.perf_counter()
    with ThreadPoolExecutor(len(hostile) + 1) as pool:
        during = pool.submit(closed_loop, server.url, usual, clients=1, stop=stop)
        sent = [pool.submit(search_once, server.url, name, search_form(name, data)) for name, data in hostile.items()]
        while not all(each.done() for each in sent) or time.perf_counter() - started < _USUAL_S:
            memory.append(server.resident_mib())
            time.sleep(0.5)
        stop.set()
    time.sleep(rest_s)
    memory.append(server.resident_mib())
    return Siege(hostile=[each.result() for each in sent], before=before, during=during.result(), mib=memory)


def judge_siege(siege: Siege, report: Report) -> None:
    """Add the tables, and the bars for what hostile pictures may cost others."""
    kinds = Counter(f"{each.status} {_reason(each)}".strip() for each in siege.hostile)
    slowest = max(each.seconds for each in siege.hostile)
    report.values("answers to hostile pictures", kinds)
    usual = {"before": siege.before, "during": siege.during}
    report.table(
        "usual pictures",
        [
            {
                "": name,
                "answers": len(searches),
                "refused": _count_refused(searches),
                "p50 ms": latency_ms(searches, 50),
                "p99 ms": latency_ms(searches, 99),
            }
            for name, searches in usual.items()
        ],
    )
    memory = {"before": siege.mib[0], "peak": max(siege.mib), "after": siege.mib[-1]}
    report.table("MiB, server and workers", [memory])
    report.at_most("slowest answer, s", slowest, 15)
    report.at_most("usual pictures that were refused", _count_refused(siege.during), 0)
    share = latency_ms(siege.during, 99) / latency_ms(siege.before, 99)
    report.at_most("p99 of usual pictures ÷ before", share, 3)
    report.at_most("MiB at the end − before", memory["after"] - memory["before"], 1024)


def _reason(search: TimedSearch) -> str:
    """The reason in the problem document, if the picture was refused."""
    return "" if search.status == 200 else search.body.decode().partition('"reason":"')[2].partition('"')[0]


def _count_refused(searches: Sequence[TimedSearch]) -> int:
    return sum(search.status != 200 for search in searches)


def main(report: Report, folder: Path, options: Any) -> None:
    servers = {"serve --local": ["--local"], **({} if options.quick else {"serve": []})}
    sets = {"plain": sixty(disguised=False), "disguised": sixty(disguised=True)}
    usual = draw_pictures(folder / "usual", 64)
    location = make_collection(folder / "collection", str(DEMO_MODEL), 1_000).location
    for title, arguments in servers.items():
        with serving(location, folder / f"{title}.log", *arguments, embedding_cache_bytes=0) as server:
            for kind, pictures in sets.items():
                siege = besiege(server, pictures, usual, 10.0 if options.quick else 60.0)
                judge_siege(siege, report.about(f"{title}, {kind}"))


if __name__ == "__main__":
    run("hostile", __doc__, main, "only serve --local, and a rest of 10 s instead of 60")
