"""A small embedding job for `test_faults.py` to kill: `python -m …fault_driver SOURCE COLLECTION LOG`.

Its slow fake model logs each picture.
"""

import hashlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from ray import cloudpickle

from jobs.cluster.session import ray_cluster
from jobs.embedding.placement import Place
from tests.support import fake_embedder
from tests.support.fake_embedder import FakeEmbedder
from tests.support.nights.fake_job import embed

cloudpickle.register_pickle_by_value(fake_embedder)  # type: ignore[no-untyped-call]  # workers find no tests

BLOCK: Final = 32
SECONDS_PER_PICTURE: Final = 0.03


class LoggingEmbedder(FakeEmbedder):
    """Logs each picture before embedding it."""

    def __init__(self, log: str) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        # A small block is padded with copies of its pictures.
        for name in dict.fromkeys(hashlib.sha256(crop.tobytes()).hexdigest() for crop in pixels):
            os.write(self._log, f"{name}\n".encode())
            time.sleep(SECONDS_PER_PICTURE)
        return super().embed_images(pixels)


if __name__ == "__main__":
    source, location, log = (Path(argument).absolute() for argument in sys.argv[1:4])
    load = partial(LoggingEmbedder, str(log))
    if sys.argv[4] == "local":
        embed(source, location, load=load, block_size=BLOCK, where=Place())
    else:
        with ray_cluster(None, verbose=False):
            embed(source, location, load=load, block_size=BLOCK)
