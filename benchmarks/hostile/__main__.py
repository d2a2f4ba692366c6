"""What strangers' costly pictures do to a server: `python -m benchmarks.hostile [--quick]`.

Sixty small files that unpack to gigabytes, or take long (`benchmarks.hostile.pictures`), are uploaded at once, to
`likeness serve --local` and on Ray Serve, while a client goes on uploading usual pictures; then sixty more with headers
that are within all limits. How long does each wait for its answer, how long do the usual ones, and how much memory is
left taken?
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
from benchmarks.common.load import Asked, ask_once, crowd, form_of, milliseconds
from benchmarks.common.report import Report, run
from benchmarks.common.servers import Server, serving
from benchmarks.hostile.pictures import sixty
from jobs.values import DEMO_MODEL

_USUAL_S = 15.0
"""How long usual pictures are uploaded alone, and at least beside hostile ones."""


@dataclass(frozen=True, kw_only=True)
class Siege:
    """What came of sixty hostile pictures at once. `before`, `beside`: of usual ones; `mib`: memory meanwhile."""

    hostile: Sequence[Asked]
    before: Sequence[Asked]
    beside: Sequence[Asked]
    mib: Sequence[float]


def besiege(server: Server, hostile: Mapping[str, bytes], usual: Path, rest_s: float) -> Siege:
    """Usual pictures alone, then all hostile ones at once beside them, then a rest."""
    before = crowd(server.url, usual, clients=1, seconds=_USUAL_S)
    memory, over, started = [server.resident_mib()], threading.Event(), time.perf_counter()
    with ThreadPoolExecutor(len(hostile) + 1) as pool:
        asking = pool.submit(crowd, server.url, usual, clients=1, over=over)
        sent = [pool.submit(ask_once, server.url, name, form_of(name, data)) for name, data in hostile.items()]
        while not all(each.done() for each in sent) or time.perf_counter() - started < _USUAL_S:
            memory.append(server.resident_mib())
            time.sleep(0.5)
        over.set()
    time.sleep(rest_s)
    memory.append(server.resident_mib())
    return Siege(hostile=[each.result() for each in sent], before=before, beside=asking.result(), mib=memory)


def judge_siege(siege: Siege, report: Report) -> None:
    """What came of it, and what the sixty may cost others."""
    kinds = Counter(f"{each.status} {_reason(each)}".strip() for each in siege.hostile)
    slowest = max(each.seconds for each in siege.hostile)
    report.values("answers to hostile pictures", kinds)
    usual = {"before": siege.before, "beside": siege.beside}
    report.table(
        "usual pictures",
        [
            {
                "": name,
                "answers": len(asked),
                "refused": _refused(asked),
                "p50 ms": milliseconds(asked, 50),
                "p99 ms": milliseconds(asked, 99),
            }
            for name, asked in usual.items()
        ],
    )
    memory = {"before": siege.mib[0], "peak": max(siege.mib), "after": siege.mib[-1]}
    report.table("MiB, server and workers", [memory])
    report.at_most("slowest answer, s", slowest, 15)
    report.at_most("usual pictures that were refused", _refused(siege.beside), 0)
    share = milliseconds(siege.beside, 99) / milliseconds(siege.before, 99)
    report.at_most("p99 of usual pictures ÷ before", share, 3)
    report.at_most("MiB more at the end", memory["after"] - memory["before"], 1024)


def _reason(asked: Asked) -> str:
    """Why a picture was refused, as the problem document says."""
    return "" if asked.status == 200 else asked.body.decode().partition('"reason":"')[2].partition('"')[0]


def _refused(asked: Sequence[Asked]) -> int:
    return sum(each.status != 200 for each in asked)


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
    run("hostile", __doc__, main, "serve --local alone, and a rest of 10 s instead of 60")
