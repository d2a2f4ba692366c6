"""Whether embedding scales with the nodes: `python -m benchmarks.cluster [--quick]`.

Runs the real embedding job on Ray's multi-node test cluster, with 1, 2 and 4 nodes that are processes of this machine.
A model sleeps for as long as a device would compute, so the limit is not this machine's cores but whatever in the
job does not scale: listing, decoding, placement, the driver.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ray.cluster_utils import Cluster

from benchmarks.common.embedding import Progress, embed
from benchmarks.common.report import Report, run
from benchmarks.common.small_pictures import draw, path_of
from embedder.errors import UnsupportedInputError
from embedder.identity import ModelIdentity
from embedder.images import CropSpec
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.embedding.placement import Place
from jobs.sources.listing import listing_table

SECONDS_PER_IMAGE = 0.02
"""Of the fake model: 50 images/s per node. Four nodes then leave most of two cores to Ray and to decoding."""

_BLOCK = 32
_FILES = 200
_NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "memory": 3 * 2**30}


class SleepingEmbedder:
    """Gives all pictures the same vector, as slowly as a model on a device."""

    crop = CropSpec(side=32, shortest_edge=32)
    identity = ModelIdentity(model_id="sleeping", revision=None, fingerprint="0" * 64, dim=16)

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 to `(n, dim)` float32, unit norm."""
        time.sleep(SECONDS_PER_IMAGE * len(pixels))
        return np.full((len(pixels), self.identity.dim), 0.25, np.float32)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Raises UnsupportedInputError."""
        raise UnsupportedInputError("it knows no words")


def steady_rate(progress: Progress, actors: int, rows: int) -> float:
    """Images per second from the first block of the last actor that starts to the last full round of blocks."""
    steady = [
        (at, done) for at, done, started in progress.records if started == actors and done <= rows - actors * _BLOCK
    ]
    (began, first), (ended, last) = steady[0], steady[-1]
    return (last - first) / (ended - began)


def measure(address: str, nodes: int, listing: pa.Table, folder: Path) -> float:
    """Images per second of the job on the cluster at `address`, with an actor on each of its nodes."""
    with ray_cluster(address, verbose=False):
        where = Place(pool=Pool(resources={"device": 1}).for_cluster(None, None))
        progress = embed(listing, folder, SleepingEmbedder(), SleepingEmbedder, block=_BLOCK, where=where)
    return steady_rate(progress, nodes, listing.num_rows)


def make_listing(folder: Path, count: int) -> pa.Table:
    """`count` images, each with its own id, of a few small files that are decoded in almost no time."""
    draw(folder, range(_FILES), seed=0)
    uris = [str(path_of(folder, number % _FILES)) for number in range(count)]
    return listing_table({"image_id": [f"{number:06}" for number in range(count)], "uri": uris}, {})


def scaling(sizes: Sequence[int], folder: Path, seconds: float) -> dict[int, float]:
    """Images per second by number of nodes, in ascending order, each node with `seconds` of work. The driver runs on
    the cluster's head, which has no actor.
    """
    rates: dict[int, float] = {}
    cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0, "include_dashboard": False})
    try:
        for before, nodes in pairwise((0, *sizes)):
            for _ in range(nodes - before):
                cluster.add_node(**_NODE, resources={"device": 1})
            count = _BLOCK * round(nodes * seconds / SECONDS_PER_IMAGE / _BLOCK)
            listing = make_listing(folder / f"pictures-{nodes}", count)
            rates[nodes] = measure(cluster.address, nodes, listing, folder / f"collection-{nodes}")
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
    return rates


def judge(rates: Mapping[int, float], report: Report) -> None:
    """Add the table and the bars: one node is as fast as its device, and the rate grows with the nodes."""
    one = rates[1]
    shares = {nodes: rate / one / nodes for nodes, rate in rates.items()}
    report.table(
        f"images/s in steady state; a device does {1 / SECONDS_PER_IMAGE:.0f}",
        [{"nodes": nodes, "images/s": rate, "of linear": shares[nodes]} for nodes, rate in rates.items()],
    )
    report.at_least("1 node: images/s ÷ those of a device", one * SECONDS_PER_IMAGE, 0.9)
    for nodes, share in shares.items():
        if nodes > 1:
            report.at_least(f"{nodes} nodes: images/s ÷ {nodes} × those of one", share, 0.9)


def main(report: Report, folder: Path, options: Any) -> None:
    judge(scaling((1, 2, 4), folder, 20.0 if options.quick else 60.0), report)


if __name__ == "__main__":
    run("cluster", __doc__, main, "20 s of work for each node, not 60")
