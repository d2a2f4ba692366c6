"""What the search service adds to the work itself: `python -m benchmarks.serve [--quick]`.

1, 8 and 32 clients in a second process upload pictures, each as soon as its last search is answered. The contestants
take turns, so that changes of the machine's speed affect all alike:

- a bare loop: decoding, forward pass and faiss in one process, one query at a time and 32 at a time;
- a bare FastAPI endpoint that does the same for each request, under uvicorn;
- the service in one process: `likeness serve --local`;
- the service on Ray Serve: `likeness serve`.

The service is also searched by id, which needs neither picture nor model: what remains is the cost of serving.

All search the same index with the same model: the demo's, and one of ViT-B/32's size with random weights. No picture is
searched for twice at the same time, the service's cache of embeddings is off, and it admits all clients at once, as the
bare endpoint does. The CPU time of a query includes all processes that the server has started.

At the end, index and model of a server change under load (`benchmarks.serve.swaps`).
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common.collections import draw_pictures, make_collection, write_ids
from benchmarks.common.report import Report, run
from benchmarks.common.servers import Server, free_port, running, serving
from benchmarks.models.random_models import save_clip
from benchmarks.serve.bare import Bare
from benchmarks.serve.speed import (
    ALONE,
    BATCHES,
    BY_ID,
    ENDPOINT,
    LOCAL,
    SERVE,
    Round,
    Rounds,
    judge,
    rate_of,
    steady,
    successful_searches,
)
from benchmarks.serve.swaps import measure_swaps
from embedder.models.checkpoint import DEMO_MODEL

_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. A round searches each contestant for `seconds`, and until each client has on average
    `turns` answers after its first one. `swapping`: servers to swap under load, with their options.
    """

    rows: list[int]
    clients: list[int]
    rounds: int
    seconds: float
    turns: int
    swapping: dict[str, list[str]]
    pictures: int = 256


LOCALLY = {LOCAL: ["--local"]}
FULL = Plan(rows=[10_000, 100_000], clients=[1, 8, 32], rounds=3, seconds=3.0, turns=2, swapping={**LOCALLY, SERVE: []})
QUICK = Plan(rows=[10_000], clients=[1, 32], rounds=1, seconds=2.0, turns=1, swapping=LOCALLY)


@contextmanager
def contestants(location: str, model: str, logs: Path) -> Iterator[dict[str, Server]]:
    """Run the servers to compare during the block."""
    options = ("--model", model)
    # By default a small machine admits fewer searches at once, and refuses the rest.
    settings = {"embedding_cache_bytes": 0, "max_searches": 64}
    port = free_port()
    bare_command = [sys.executable, "-m", "benchmarks.serve.bare", location, model, str(port)]
    with (
        running(bare_command, port, logs / "bare.log") as bare,
        serving(location, logs / "local.log", *options, "--local", **settings) as local,
        serving(location, logs / "serve.log", *options, **settings) as serve,
    ):
        yield {ENDPOINT: bare, LOCAL: local, SERVE: serve}


def time_server(pool: Executor, server: Server, pictures: Path, clients: int, seconds: float, turns: int) -> Round:
    """Searches of so many clients. The first answer to each is skipped, because not all clients were searching yet."""
    cpu, answers = server.cpu_seconds(), (1 + turns) * clients
    searches = pool.submit(successful_searches, server.url, pictures, clients, seconds, answers).result()
    counted = steady(searches, seconds, answers)
    return Round(
        latencies=[search.seconds for search in counted[clients:]],
        queries_per_second=rate_of([search.ended for search in counted], clients),
        cpu_ms=(server.cpu_seconds() - cpu) / len(searches) * 1e3,
    )


def measure(model: str, rows: int, plan: Plan, pictures: Path, folder: Path) -> Rounds:
    """The rounds of every contestant with every number of clients; the service is searched by id, too."""
    ids = write_ids(folder / "ids", plan.pictures)
    location = make_collection(folder / "collection", model, rows).location
    data = [path.read_bytes() for path in sorted(pictures.iterdir())]
    rounds: Rounds = defaultdict(list)
    with (
        contestants(location, model, folder) as servers,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        bare = Bare(location, model)
        for server in servers.values():
            time_server(pool, server, pictures, _BATCH, 1.0, 1)
        bare.loop(data, 1.0, _BATCH)
        bare.loop(data, 1.0)
        for _ in range(plan.rounds):
            rounds[ALONE, 1].append(bare.loop(data, plan.seconds))
            rounds[BATCHES, _BATCH].append(bare.loop(data, plan.seconds, _BATCH))
            for clients, (name, server) in product(plan.clients, servers.items()):
                for kind, queries in (("", pictures), (BY_ID, ids))[: 1 if name == ENDPOINT else 2]:
                    result = time_server(pool, server, queries, clients, plan.seconds, plan.turns)
                    rounds[name + kind, clients].append(result)
    return rounds


def main(report: Report, folder: Path, options: Any) -> None:
    plan = QUICK if options.quick else FULL
    pictures = draw_pictures(folder / "pictures", plan.pictures)
    models = {"demo": str(DEMO_MODEL), "ViT-B/32": str(save_clip(folder / "vit-b-32"))}
    for model, rows in product(models, plan.rows):
        with tempfile.TemporaryDirectory() as served:
            judge(model, rows, measure(models[model], rows, plan, pictures, Path(served)), report)
    measure_swaps(plan.swapping, pictures, folder, report)


if __name__ == "__main__":
    run("serve", __doc__, main, "less of everything; ends within 4 minutes")
