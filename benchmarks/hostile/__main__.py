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
from pathlib import Path
from typing import Any

from benchmarks.common.collections import draw_pictures, make_collection
from benchmarks.common.load import TimedSearch, closed_loop, latencies, search_form, search_once
from benchmarks.common.report import Report, run
from benchmarks.common.servers import Server, serving
from benchmarks.hostile.pictures import sixty
from embedder.models.checkpoint import DEMO_MODEL

_USUAL_S = 15.0
"""How long usual pictures are uploaded alone, and at least together with hostile ones."""


def besiege(server: Server, hostile: Mapping[str, bytes], usual: Path, rest_s: float, report: Report) -> None:
    """Upload usual pictures alone, then all hostile ones at the same time in addition, then rest. Adds the tables, and
    the bars for what hostile pictures may cost others.
    """
    before = closed_loop(server.url, usual, clients=1, seconds=_USUAL_S)
    memory, stop, started = [server.resident_mib()], threading.Event(), time.perf_counter()
    with ThreadPoolExecutor(len(hostile) + 1) as pool:
        loop = pool.submit(closed_loop, server.url, usual, clients=1, stop=stop)
        sent = [pool.submit(search_once, server.url, name, search_form(name, data)) for name, data in hostile.items()]
        while not all(each.done() for each in sent) or time.perf_counter() - started < _USUAL_S:
            memory.append(server.resident_mib())
            time.sleep(0.5)
        stop.set()
    time.sleep(rest_s)
    memory.append(server.resident_mib())
    answers, during = [each.result() for each in sent], loop.result()
    report.values("answers to hostile pictures", Counter(f"{each.status} {_reason(each)}".strip() for each in answers))
    usual_pictures = {
        name: {"answers": len(searches), "refused": _count_refused(searches), **latencies(searches)}
        for name, searches in (("before", before), ("during", during))
    }
    report.table("usual pictures", usual_pictures)
    report.table("MiB, server and workers", [{"before": memory[0], "peak": max(memory), "after": memory[-1]}])
    slower = usual_pictures["during"]["p99 ms"] / usual_pictures["before"]["p99 ms"]
    report.at_most("slowest answer, s", max(each.seconds for each in answers), 15)
    report.at_most("usual pictures that were refused", _count_refused(during), 0)
    report.at_most("p99 of usual pictures ÷ before", slower, 3)
    report.at_most("MiB at the end − before", memory[-1] - memory[0], 1024)


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
                about = report.about(f"{title}, {kind}")
                besiege(server, pictures, usual, 10.0 if options.quick else 60.0, about)


if __name__ == "__main__":
    run("hostile", __doc__, main, "only serve --local, and a rest of 10 s instead of 60")
