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
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from benchmarks.common.load import Load, ask, rate_of
from benchmarks.common.models import save_clip
from benchmarks.common.report import Report
from benchmarks.common.servers import Server, serving
from benchmarks.serve.bare import Bare
from benchmarks.serve.report import ALONE, BATCHES, Case, Loads, bars_of, figures_of, print_case
from embedder.models.clip import ClipEmbedder
from index.build.build_index import build_index
from index.collection import Collection
from jobs.demo.clustered import Clustered, add_rows
from jobs.demo.gallery import plan_exhibit
from jobs.embedding.model import model_record
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
    pictures: int = 256


FULL = Plan(rows=[10_000, 100_000], clients=[1, 8, 32], rounds=3, seconds=3.0, turns=2)
QUICK = Plan(rows=[10_000], clients=[1, 32], rounds=1, seconds=2.0, turns=1)


def make_collection(folder: Path, model: str, rows: int) -> str:
    """An index of so many clustered vectors that say they are `model`'s; returns its location."""
    collection = Collection.create_or_open(str(folder))
    add_rows(collection, Clustered(), range(rows), model=model_record(ClipEmbedder.load(model).identity))
    build_index(collection)
    return collection.location


@dataclass(frozen=True, kw_only=True)
class Race:
    """The contestants of one case. Every method is one turn of one of them."""

    bare: Bare
    servers: dict[str, Server]
    asker: Executor
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
        cpu = server.cpu_seconds()
        answers = self.asker.submit(
            ask, server.port, self.pictures, clients=clients, seconds=plan.seconds, turns=1 + plan.turns
        ).result()
        return Load(
            latencies=answers.latencies[clients:],
            queries_per_second=rate_of(answers.ends, clients),
            cpu_ms=(server.cpu_seconds() - cpu) / answers.asked * 1e3,
            asking=answers.cpu_seconds / answers.seconds,
        )


def measure(case: Case, model: str, plan: Plan, pictures: list[bytes], folder: Path) -> Loads:
    """What came of every contestant with every number of clients, round by round."""
    location = make_collection(folder / "collection", model, case.rows)
    loads: Loads = defaultdict(list)
    with (
        serving(location, model, folder) as servers,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as asker,
    ):
        race = Race(bare=Bare(location, model), servers=servers, asker=asker, pictures=pictures, plan=plan)
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
    parser.add_argument("--quick", action="store_true", help="10,000 rows, 1 and 32 clients; ends within 2 minutes")
    plan = QUICK if parser.parse_args().quick else FULL
    console = Console()
    pictures = [plan_exhibit(number).data() for number in range(plan.pictures)]
    outcomes: dict[Case, Loads] = {}
    with tempfile.TemporaryDirectory() as name:
        models = {"demo": str(DEMO_MODEL), "ViT-B/32": str(save_clip(Path(name) / "vit-b-32"))}
        for case in [Case(model=model, rows=rows) for model in models for rows in plan.rows]:
            with tempfile.TemporaryDirectory() as folder:
                outcomes[case] = measure(case, models[case.model], plan, pictures, Path(folder))
            print_case(case, outcomes[case], console)
    return Report(benchmark="serve", figures=figures_of(outcomes), bars=bars_of(outcomes)).conclude(console)


if __name__ == "__main__":
    sys.exit(main())
