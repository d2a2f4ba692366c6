"""What the search service adds to the work itself: `python -m benchmarks.serve [--quick] [--collections 10]`.

Pictures are asked for by upload, from a second process, by 1, 8 and 32 clients that ask again as soon as they are
answered. In turn, so that the machine's moods strike all alike:

- a bare loop: decoding, forward pass and faiss in one process, one query at a time and 32 at a time;
- a bare FastAPI endpoint that does the same for each request, under uvicorn;
- the service in one process, as `likeness serve --local` runs it;
- the service on Ray Serve, as `likeness serve` runs it.

The service is also asked by id, which needs neither picture nor model: what remains is the cost of serving.

Of several collections the service has copies, and it is asked for each in turn.

All search the same index with the same model: the demo's, and one of ViT-B/32's size with random weights. No picture is
asked for twice at once, the service's cache of embeddings is off, and it lets all clients in at once, as the bare
endpoint does. The CPU time of a query is that of the server and of all that it started.

At the end index and model of a server change under load (`benchmarks.serve.swaps`).
"""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common.collections import draw_pictures, make_collection, write_ids
from benchmarks.common.models import save_clip
from benchmarks.common.report import Report, run
from benchmarks.common.servers import Server, free_port, running, serving
from benchmarks.serve.bare import Bare
from benchmarks.serve.speed import (
    ALONE,
    BATCHES,
    BY_ID,
    ENDPOINT,
    LOCAL,
    SERVE,
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
    each client, after as many first ones as there are clients. `swapping`: servers and the options that start them."""

    rows: list[int]
    clients: list[int]
    rounds: int
    seconds: float
    turns: int
    swapping: dict[str, list[str]]
    pictures: int = 256
    collections: int = 1


LOCALLY = {LOCAL: ["--local"]}
FULL = Plan(rows=[10_000, 100_000], clients=[1, 8, 32], rounds=3, seconds=3.0, turns=2, swapping={**LOCALLY, SERVE: []})
QUICK = Plan(rows=[10_000], clients=[1, 32], rounds=1, seconds=2.0, turns=1, swapping=LOCALLY)


@contextmanager
def contestants(locations: Sequence[str], model: str, logs: Path) -> Iterator[dict[str, Server]]:
    """The servers that are compared, while the block lasts."""
    location, *others = locations
    options = (*others, "--model", model)
    # By default a small machine has fewer searches at once and refuses the others.
    settings = {"embedding_cache_bytes": 0, "max_searches": 64}
    port = free_port()
    with (
        running(["benchmarks.serve.bare", location, model, str(port)], port, logs / "bare.log") as bare,
        serving(location, logs / "local.log", *options, "--local", **settings) as local,
        serving(location, logs / "serve.log", *options, **settings) as serve,
    ):
        yield {ENDPOINT: bare, LOCAL: local, SERVE: serve}


def ask(
    asker: Executor, server: Server, paths: Sequence[str], pictures: Path, clients: int, seconds: float, turns: int
) -> Load:
    """Queries of so many clients. The first answers, one for each, do not count: not all were asking yet."""
    cpu, answers = server.cpu_seconds(), (1 + turns) * clients
    asked, share = asker.submit(timed_crowd, server.url, paths, pictures, clients, seconds, answers).result()
    counted = steady(asked, seconds, answers)
    return Load(
        latencies=[each.seconds for each in counted[clients:]],
        queries_per_second=rate_of([each.ended for each in counted], clients),
        cpu_ms=(server.cpu_seconds() - cpu) / len(asked) * 1e3,
        asking=share,
    )


def measure(model: str, rows: int, plan: Plan, pictures: Path, folder: Path) -> Loads:
    """What came of every contestant with every number of clients, round by round; of the service by id too."""
    ids = write_ids(folder / "ids", plan.pictures)
    location = make_collection(folder / "0", model, rows).location
    copies = [shutil.copytree(location, folder / str(number)) for number in range(1, plan.collections)]
    ours = [f"/collections/{number}/search" for number in range(plan.collections)]
    paths = {ENDPOINT: ["/search"], LOCAL: ours, SERVE: ours}
    data = [path.read_bytes() for path in sorted(pictures.iterdir())]
    loads: Loads = defaultdict(list)
    with (
        contestants([location, *map(str, copies)], model, folder) as servers,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as asker,
    ):
        bare = Bare(location, model)
        for name, server in servers.items():
            ask(asker, server, paths[name], pictures, _BATCH, 1.0, 1)
        bare.batches(data, 1.0, _BATCH)
        bare.loop(data, 1.0)
        for _ in range(plan.rounds):
            loads[ALONE, 1].append(bare.loop(data, plan.seconds))
            loads[BATCHES, _BATCH].append(bare.batches(data, plan.seconds, _BATCH))
            for clients, (name, server) in product(plan.clients, servers.items()):
                for kind, queries in (("", pictures), (BY_ID, ids))[: 1 if name == ENDPOINT else 2]:
                    load = ask(asker, server, paths[name], queries, clients, plan.seconds, plan.turns)
                    loads[name + kind, clients].append(load)
    return loads


def main(report: Report, folder: Path, options: Any) -> None:
    plan = replace(QUICK if options.quick else FULL, collections=options.collections)
    pictures = draw_pictures(folder / "pictures", plan.pictures)
    models = {"demo": str(DEMO_MODEL), "ViT-B/32": str(save_clip(folder / "vit-b-32"))}
    for model, rows in product(models, plan.rows):
        with tempfile.TemporaryDirectory() as served:
            judge(model, rows, measure(models[model], rows, plan, pictures, Path(served)), report)
    measure_swaps(plan.swapping, pictures, folder, report)


COLLECTIONS = {"type": int, "default": 1, "help": "how many the service has"}
if __name__ == "__main__":
    run("serve", __doc__, main, "less of everything; ends within 4 minutes", {"--collections": COLLECTIONS})
