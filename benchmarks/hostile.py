"""What strangers' costly pictures do to a server and to a job: `python -m benchmarks.hostile [--quick]`.

Sixty small files that unpack to gigabytes, or take long (`benchmarks.hostile_pictures`), are uploaded at once, to
`likeness serve --local` and on Ray Serve, while a client goes on uploading usual pictures; then sixty more with headers
that are within all limits. How long does each wait for its answer, how long do the usual ones, and how much memory is
left taken? A job embeds a folder of the first sixty beside usual ones.
"""

import argparse
import http.client
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from urllib3.filepost import encode_multipart_formdata

from benchmarks.hostile_pictures import sixty
from benchmarks.report import Bar, Figure, Goal, Report, print_table
from benchmarks.serve import make_collection
from benchmarks.serve_report import LOCAL, SERVE
from benchmarks.serve_servers import Server, serving
from index.collection import Collection
from jobs.cli.tables import list_rejects
from jobs.demo.gallery import plan_exhibit
from jobs.values import DEMO_MODEL

_USUAL_S = 15.0
"""How long usual pictures are uploaded alone, and at least beside hostile ones."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Seconds until an answer came, its status, and the reason if it is a refusal."""

    seconds: float
    status: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Siege:
    """What came of sixty hostile pictures at once. `before`, `beside`: of usual ones; memory in MiB."""

    hostile: Sequence[Answered]
    before: Sequence[Answered]
    beside: Sequence[Answered]
    memory_before: float
    memory_peak: float
    memory_after: float


def upload(port: int, data: bytes) -> Answered:
    """Search by a picture."""
    body, media_type = encode_multipart_formdata([("image", ("image", data))])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    started = time.perf_counter()
    try:
        connection.request("POST", "/search", body, {"Content-Type": media_type})
        response = connection.getresponse()
        answer = response.read().decode()
    finally:
        connection.close()
    reason = answer.partition('"reason":"')[2].partition('"')[0] if response.status != 200 else ""
    return Answered(seconds=time.perf_counter() - started, status=response.status, reason=reason)


def keep_asking(port: int, pictures: Sequence[bytes], over: threading.Event) -> list[Answered]:
    """One client that asks for one usual picture after the other, until `over`."""
    answers: list[Answered] = []
    while not over.is_set():
        answers.append(upload(port, pictures[len(answers) % len(pictures)]))
    return answers


def besiege(server: Server, hostile: Sequence[bytes], usual: Sequence[bytes], rest_s: float) -> Siege:
    """Usual pictures alone, then all hostile ones at once beside them, then a rest."""
    over = threading.Event()
    with ThreadPoolExecutor(len(hostile) + 1) as pool:
        asking = pool.submit(keep_asking, server.port, usual, over)
        time.sleep(_USUAL_S)
        over.set()
        before = asking.result()
        memory = [server.resident_mib()]
        over.clear()
        started = time.perf_counter()
        asking = pool.submit(keep_asking, server.port, usual, over)
        sent = [pool.submit(upload, server.port, data) for data in hostile]
        while not all(each.done() for each in sent) or time.perf_counter() - started < _USUAL_S:
            memory.append(server.resident_mib())
            time.sleep(0.5)
        over.set()
        beside = asking.result()
    time.sleep(rest_s)
    return Siege(
        hostile=[each.result() for each in sent],
        before=before,
        beside=beside,
        memory_before=memory[0],
        memory_peak=max(memory),
        memory_after=server.resident_mib(),
    )


def reject_reasons(pictures: Mapping[str, bytes], usual: Sequence[bytes], folder: Path) -> tuple[Counter[str], float]:
    """Embed a folder with the pictures by a job; reasons of the rejects, "none" for hostile ones that are none."""
    source, collection = folder / "pictures", folder / "job"
    source.mkdir()
    for name, data in [*pictures.items(), *((f"usual-{number}.png", data) for number, data in enumerate(usual))]:
        (source / name).write_bytes(data)
    started = time.perf_counter()
    command = ["embed", str(source), str(collection), "--model", str(DEMO_MODEL), "--max-reject-rate", "1"]
    subprocess.run([sys.executable, "-m", "jobs", *command], check=True, capture_output=True)
    seconds = time.perf_counter() - started
    found = {row["image_id"]: row["error_reason"] for row in list_rejects(Collection.open(str(collection)))}
    return Counter(str(found.get(name, "none")) for name in pictures), seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="serve --local alone, and a rest of 10 s instead of 60")
    quick = parser.parse_args().quick
    console = Console()
    usual = [plan_exhibit(number).data() for number in range(64)]
    sets = {"plain": sixty(disguised=False), "disguised": sixty(disguised=True)}
    figures: dict[str, Figure] = {}
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as name:
        folder, model = Path(name), str(DEMO_MODEL)
        location = make_collection(folder / "collection", model, 1_000)
        for server_name in (LOCAL,) if quick else (LOCAL, SERVE):
            with serving(location, model, folder, names=[server_name], max_searches=None) as servers:
                for kind, pictures in sets.items():
                    siege = besiege(servers[server_name], list(pictures.values()), usual, 10.0 if quick else 60.0)
                    title = f"{server_name}, {kind}"
                    figures[title] = print_siege(title, siege, console)
                    bars += bars_of(title, siege)
        reasons, seconds = reject_reasons(sets["plain"], usual[:8], folder)
    print_table(f"a job, {seconds:.0f} s", ("reason", "pictures"), sorted(reasons.items()), console)
    figures["job"] = {"seconds": seconds, "reasons": dict(reasons)}
    bars.append(Bar(name="job: hostile pictures that are no rejects", value=reasons["none"], bar=0, goal=Goal.AT_MOST))
    return Report(benchmark="hostile", figures=figures, bars=bars).conclude(console)


def print_siege(title: str, siege: Siege, console: Console) -> Figure:
    """Prints what came of it; returns the same as figures."""
    kinds = Counter(f"{each.status} {each.reason}".strip() for each in siege.hostile)
    print_table(title, ("answers to hostile pictures", "count"), sorted(kinds.items()), console)
    usual = {
        name: {
            "answers": len(answers),
            "refused": sum(each.status != 200 for each in answers),
            "p50_ms": 1e3 * _late(answers, 50),
            "p99_ms": 1e3 * _late(answers, 99),
        }
        for name, answers in (("before", siege.before), ("beside", siege.beside))
    }
    rows = [(name, *values.values()) for name, values in usual.items()]
    print_table("usual pictures", ("", *usual["before"]), rows, console)
    memory = (siege.memory_before, siege.memory_peak, siege.memory_after)
    print_table("MiB, server and workers", ("before", "peak", "after"), [memory], console)
    return {
        "answers": dict(kinds),
        "slowest_s": max(each.seconds for each in siege.hostile),
        "usual": usual,
        "mib": dict(zip(("before", "peak", "after"), memory, strict=True)),
    }


def bars_of(title: str, siege: Siege) -> list[Bar]:
    """What the sixty may cost others."""
    values = {
        "slowest answer, s": (max(each.seconds for each in siege.hostile), 15),
        "usual pictures that were refused": (sum(each.status != 200 for each in siege.beside), 0),
        "p99 of usual pictures ÷ before": (_late(siege.beside, 99) / _late(siege.before, 99), 3),
        "MiB more at the end": (siege.memory_after - siege.memory_before, 1024),
    }
    return [
        Bar(name=f"{title}: {name}", value=float(value), bar=bar, goal=Goal.AT_MOST)
        for name, (value, bar) in values.items()
    ]


def _late(answers: Sequence[Answered], percent: float) -> float:
    return float(np.percentile([each.seconds for each in answers], percent))


if __name__ == "__main__":
    sys.exit(main())
