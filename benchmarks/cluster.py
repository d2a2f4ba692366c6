"""Whether more nodes embed as much more: `python -m benchmarks.cluster [--quick]`.

The real embedding job on Ray's multi-node test cluster, with 1, 2 and 4 nodes that are processes of this machine. A
stand-in for the model sleeps as long as a device would compute, so that this machine's cores are not what is measured,
but whether anything in the job is: listing, decoding, placement, the driver, the commit.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from ray.cluster_utils import Cluster
from rich.console import Console

from benchmarks.report import Bar, Report, print_table
from embedder.fake import FakeEmbedder
from index.collection import Collection
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.embedding.commit import commit
from jobs.embedding.model import model_record
from jobs.embedding.pipeline import write
from jobs.embedding.report import EmbedReport
from jobs.planning.changes import compare
from jobs.sources.listing import listing_table

SECONDS_PER_IMAGE = 0.02
"""Of the stand-in: 50 images/s on a node. Four nodes then leave most of two cores to Ray and to decoding."""

_BLOCK = 32
_FILES = 200
_NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "memory": 3 * 2**30}


class SleepingEmbedder(FakeEmbedder):
    """Vectors of the fake model, in the time of one that computes elsewhere."""

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 to `(n, dim)` float32, unit norm."""
        ends = time.monotonic() + SECONDS_PER_IMAGE * len(pixels)
        vectors = super().embed_images(pixels)
        time.sleep(max(0.0, ends - time.monotonic()))
        return vectors


class Marks:
    """Notes, by the actors' clock, how many images were on disk when, and of how many actors."""

    def __init__(self) -> None:
        self.noted: list[tuple[float, int, int]] = []

    def __call__(self, report: EmbedReport) -> None:
        self.noted.append((report.ended_at, report.embedded, len(report.actors)))

    def steady_rate(self, actors: int, rows: int) -> float:
        """Images per second between the first block of the last actor to start, and the last full round of blocks."""
        steady = [(at, done) for at, done, there in self.noted if there == actors and done <= rows - actors * _BLOCK]
        (began, first), (ended, last) = steady[0], steady[-1]
        return (last - first) / (ended - began)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one size of cluster. `start_seconds`: from joining the cluster until every actor has a block on disk."""

    nodes: int
    images_per_second: float
    start_seconds: float
    idle_share: float


def measure(address: str, nodes: int, listing: pa.Table, folder: Path) -> Outcome:
    """Embed a listing on the cluster at `address`, which has so many nodes with an actor each."""
    collection = Collection.create_or_open(str(folder))
    fake = FakeEmbedder()
    change = compare(
        listing, collection.snapshot(), "benchmark", model_record(fake.identity), delete=False, verify_hash=False
    )
    plan = change.known[0].plan
    marks, joined = Marks(), time.time()
    with ray_cluster(address, verbose=False):
        written = write(
            plan,
            collection,
            load=SleepingEmbedder,
            crop=fake.crop,
            block_size=_BLOCK,
            pool=Pool.fitting(None, None, resources={"device": 1}),
            progress=marks,
        )
    commit(collection, [written], 0.0)
    return Outcome(
        nodes=nodes,
        images_per_second=marks.steady_rate(nodes, listing.num_rows),
        start_seconds=next(at for at, _, there in marks.noted if there == nodes) - joined,
        idle_share=written.report.idle_share,
    )


def make_listing(folder: Path, count: int) -> pa.Table:
    """`count` images: small files that take next to nothing to decode, under ever new ids."""
    folder.mkdir()
    rng = np.random.default_rng(20261121)
    paths = [folder / f"{number:03}.png" for number in range(_FILES)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    uris = [str(paths[number % _FILES]) for number in range(count)]
    return listing_table({"image_id": [f"{number:06}" for number in range(count)], "uri": uris}, {})


def scaling(sizes: Sequence[int], seconds: float) -> list[Outcome]:
    """Each number of nodes, in rising order, with so many seconds of work for each node. The driver is on the cluster's
    head, which has no actor.
    """
    outcomes: list[Outcome] = []
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0, "include_dashboard": False})
    try:
        with tempfile.TemporaryDirectory() as name:
            for before, nodes in pairwise((0, *sizes)):
                for _ in range(nodes - before):
                    cluster.add_node(**_NODE, resources={"device": 1})
                count = _BLOCK * round(nodes * seconds / SECONDS_PER_IMAGE / _BLOCK)
                listing = make_listing(Path(name) / f"pictures-{nodes}", count)
                outcomes.append(measure(cluster.address, nodes, listing, Path(name) / f"collection-{nodes}"))
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
    return outcomes


def conclude(outcomes: Sequence[Outcome], console: Console) -> int:
    """Print the table, then the bars; returns the exit status."""
    one = outcomes[0].images_per_second
    print_table(
        f"images/s in steady state; a device does {1 / SECONDS_PER_IMAGE:.0f}",
        ("nodes", "images/s", "of linear", "actors idle", "start, s"),
        [
            (
                each.nodes,
                each.images_per_second,
                each.images_per_second / one / each.nodes,
                each.idle_share,
                each.start_seconds,
            )
            for each in outcomes
        ],
        console,
    )
    return Report(
        benchmark="cluster",
        figures={
            "device_images_per_s": 1 / SECONDS_PER_IMAGE,
            **{f"images_per_s_{each.nodes}": each.images_per_second for each in outcomes},
            **{f"actors_idle_share_{each.nodes}": each.idle_share for each in outcomes},
            **{f"start_s_{each.nodes}": each.start_seconds for each in outcomes},
        },
        bars=[
            Bar(name="1 node: images/s ÷ those of a device", value=one * SECONDS_PER_IMAGE, bar=0.9),
            *(
                Bar(
                    name=f"{each.nodes} nodes: images/s ÷ {each.nodes} × those of one",
                    value=each.images_per_second / one / each.nodes,
                    bar=0.9,
                )
                for each in outcomes[1:]
            ),
        ],
    ).conclude(console)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 s of work for each node, not 60")
    options = parser.parse_args()
    return conclude(scaling((1, 2, 4), 20.0 if options.quick else 60.0), Console())


if __name__ == "__main__":
    sys.exit(main())
