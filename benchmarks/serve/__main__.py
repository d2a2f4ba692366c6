"""What the search service adds to the work itself: `python -m benchmarks.serve [--quick]`.

Pictures are asked for by upload, from a second process, by 1, 8 and 32 clients that ask again as soon as they are
answered. In turn, so that the machine's moods strike all alike:

- a bare loop: decoding, forward pass and faiss in one process, one query at a time and 32 at a time;
- a bare FastAPI endpoint that does the same for each request, under uvicorn;
- the service in one process, as `likeness serve --local` runs it;
- the service on Ray Serve, as `likeness serve` runs it.

All search the same index with the same model: the demo's, and one of ViT-B/32's size with random weights. No picture is
asked for twice at once, the service's cache of embeddings is off, and it lets all clients in at once, as the bare
endpoint does. The CPU time of a query is that of the server and of all that it started.

At the end index and model of a server change under load (`benchmarks.serve.swaps`).
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from benchmarks.common.collections import draw_pictures, make_collection
from benchmarks.common.models import save_clip
from benchmarks.common.report import Report
from benchmarks.common.servers import Server, free_port, running, serving
from benchmarks.serve.bare import Bare
from benchmarks.serve.speed import (
    ALONE,
    BATCHES,
    ENDPOINT,
    LOCAL,
    SERVE,
    Case,
    Load,
    Loads,
    judge,
    rate_of,
    steady,
    timed_crowd,
)
from benchmarks.serve.swaps import measure_swaps
from jobs.values import DEMO_MODEL

_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. Each round asks every contestant, for `seconds` and until there are `turns` answers for
    each client, after as many first ones as there are clients."""

    rows: list[int]
    clients: list[int]
    rounds: int
    seconds: float
    turns: int
    swaps_of: dict[str, list[str]]
    pictures: int = 256


QUICK = Plan(rows=[10_000], clients=[1, 32], rounds=1, seconds=2.0, turns=1, swaps_of={LOCAL: ["--local"]})
FULL = Plan(
    rows=[10_000, 100_000],
    clients=[1, 8, 32],
    rounds=3,
    seconds=3.0,
    turns=2,
    swaps_of={LOCAL: ["--local"], SERVE: []},
)


@dataclass(frozen=True, kw_only=True)
class Race:
    """The contestants of one case. Every method is one turn of one of them."""

    bare: Bare
    servers: dict[str, Server]
    asker: Executor
    folder: Path
    pictures: list[bytes]
    plan: Plan

    def loop(self) -> Load:
        """Queries one by one in this process."""
        cpu = time.process_time()
        latencies = self.bare.latencies(self.pictures, self.plan.seconds)
        cpu_ms = (time.process_time() - cpu) / len(latencies) * 1e3
        return Load(latencies=latencies, queries_per_second=len(latencies) / sum(latencies), cpu_ms=cpu_ms)

    def batches(self) -> Load:
        """Queries 32 at a time in this process."""
        cpu, started = time.process_time(), time.perf_counter()
        done = self.bare.batches(self.pictures, self.plan.seconds, _BATCH)
        seconds, cpu_ms = time.perf_counter() - started, (time.process_time() - cpu) / done * 1e3
        return Load(latencies=[], queries_per_second=done / seconds, cpu_ms=cpu_ms)

    def server(self, name: str, clients: int) -> Load:
        """Queries of so many clients. The first answers, one for each, do not count: not all were asking yet."""
        server, plan = self.servers[name], self.plan
        answers = (1 + plan.turns) * clients
        cpu = server.cpu_seconds()
        asked, share = self.asker.submit(timed_crowd, server.url, self.folder, clients, plan.seconds, answers).result()
        counted = steady(asked, plan.seconds, answers)
        return Load(
            latencies=[each.seconds for each in counted[clients:]],
            queries_per_second=rate_of([each.ended for each in counted], clients),
            cpu_ms=(server.cpu_seconds() - cpu) / len(asked) * 1e3,
            asking=share,
        )


@contextmanager
def contestants(location: str, model: str, logs: Path) -> Iterator[dict[str, Server]]:
    """The servers that are compared, while the block lasts."""
    options = ("--model", model)
    # By default a small machine has fewer searches at once and refuses the others.
    settings = {"embedding_cache_bytes": 0, "max_searches": 64}
    port = free_port()
    with (
        running(["benchmarks.serve.bare", location, model, str(port)], port, logs / "bare.log") as bare,
        serving(location, logs / "local.log", *options, "--local", **settings) as local,
        serving(location, logs / "serve.log", *options, **settings) as serve,
    ):
        yield {ENDPOINT: bare, LOCAL: local, SERVE: serve}


def measure(case: Case, model: str, plan: Plan, pictures: Path, folder: Path) -> Loads:
    """What came of every contestant with every number of clients, round by round."""
    location = make_collection(folder / "collection", model, case.rows).location
    loads: Loads = defaultdict(list)
    with (
        contestants(location, model, folder) as servers,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as asker,
    ):
        data = [path.read_bytes() for path in sorted(pictures.iterdir())]
        bare = Bare(location, model)
        race = Race(bare=bare, servers=servers, asker=asker, folder=pictures, pictures=data, plan=plan)
        warm = replace(race, plan=replace(plan, seconds=1.0, turns=1))
        for name in servers:
            warm.server(name, _BATCH)
        warm.batches()
        warm.loop()
        for _ in range(plan.rounds):
            loads[ALONE, 1].append(race.loop())
            loads[BATCHES, _BATCH].append(race.batches())
            for clients in plan.clients:
                for name in servers:
                    loads[name, clients].append(race.server(name, clients))
    return loads


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything; ends within 4 minutes")
    plan = QUICK if parser.parse_args().quick else FULL
    report = Report("serve")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        pictures = draw_pictures(home / "pictures", plan.pictures)
        models = {"demo": str(DEMO_MODEL), "ViT-B/32": str(save_clip(home / "vit-b-32"))}
        for case in [Case(model=model, rows=rows) for model in models for rows in plan.rows]:
            with tempfile.TemporaryDirectory() as folder:
                judge(case, measure(case, models[case.model], plan, pictures, Path(folder)), report)
        measure_swaps(plan.swaps_of, pictures, home, report)
    return report.conclude()


if __name__ == "__main__":
    sys.exit(main())
