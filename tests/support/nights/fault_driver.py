"""A small embedding job in a process of its own, for `test_faults.py` to kill.

`python fault_driver.py SOURCE COLLECTION LOG`: embeds with a slow fake model that logs each picture it is given.
"""

import hashlib
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedder.fake import FakeEmbedder
from index.collection import Collection
from jobs.cluster.pool import Pool
from jobs.cluster.session import ray_cluster
from jobs.embedding.commit import commit
from jobs.embedding.model import model_record
from jobs.embedding.on_ray import blocks_on_ray
from jobs.embedding.pipeline import write
from jobs.planning.changes import compare
from jobs.sources.list_images import list_images

BLOCK = 32
SECONDS_PER_PICTURE = 0.03


class LoggingEmbedder(FakeEmbedder):
    """Writes a line for each picture that it embeds, before it embeds it."""

    def __init__(self, log: str) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        for crop in pixels:
            os.write(self._log, f"{hashlib.sha256(crop.tobytes()).hexdigest()}\n".encode())
            time.sleep(SECONDS_PER_PICTURE)
        return super().embed_images(pixels)


def main(source: str, location: str, log: str) -> None:
    collection = Collection.create_or_open(location)
    fake = FakeEmbedder()
    change = compare(
        list_images(source), collection.snapshot(), source, model_record(fake.identity), delete=False, verify_hash=False
    )
    plan = change.known[0].plan
    with ray_cluster(None, verbose=False):
        load = partial(LoggingEmbedder, log)
        written = write(
            plan, collection, load=load, crop=fake.crop, blocks=partial(blocks_on_ray, Pool()), block_size=BLOCK
        )
        commit(collection, [written], 0.5)


if __name__ == "__main__":
    main(*(str(Path(argument).absolute()) for argument in sys.argv[1:4]))
