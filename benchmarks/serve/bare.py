"""What the service is compared with: the same steps without it, in a loop and behind a bare endpoint.

`python -m benchmarks.serve.bare COLLECTION MODEL PORT` serves the endpoint with uvicorn.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import FastAPI, File

from benchmarks.common.clustered import Vectors
from benchmarks.common.process import CORES
from benchmarks.serve.speed import Round
from embedder.images.decode import decode_image
from embedder.models.clip import ClipEmbedder
from index.collection import Collection
from index.segments.hits import Hits
from index.versions.opening import open_segments

_K = 10


class Bare:
    """Decodes, embeds on all cores, and searches the live index version, without cache, ids and metadata."""

    def __init__(self, location: str, model: str) -> None:
        collection = Collection.open(location)
        version = collection.current()
        if version is None:
            raise ValueError(f"{location} has no index: build one first")
        self._embedder = ClipEmbedder.load(model, threads=CORES)
        self._decoders = ThreadPoolExecutor(CORES)
        with tempfile.TemporaryDirectory() as cache:
            self._segments = open_segments(collection, collection.read_version(version), Path(cache))

    def search(self, pictures: Sequence[bytes]) -> Hits:
        """The 10 nearest."""
        return self._segments.search(self.embed(pictures), _K)

    def embed(self, pictures: Sequence[bytes]) -> Vectors:
        """`(n, dim)`, unit norm."""
        crops = list(self._decoders.map(self._decode, pictures)) if len(pictures) > 1 else [self._decode(pictures[0])]
        return self._embedder.embed_images(np.stack(crops))

    def loop(self, pictures: Sequence[bytes], seconds: float, size: int = 1) -> Round:
        """Queries one by one, or so many at a time."""
        cpu, deadline = time.process_time(), time.perf_counter() + seconds
        taken, queries = list[float](), cycle(pictures)
        while (started := time.perf_counter()) < deadline:
            self.search(list(islice(queries, size)))
            taken.append(time.perf_counter() - started)
        done, cpu_s = size * len(taken), time.process_time() - cpu
        latencies = taken if size == 1 else []
        return Round(latencies=latencies, queries_per_second=done / sum(taken), cpu_ms=cpu_s / done * 1e3)

    def _decode(self, picture: bytes) -> Any:
        return decode_image(picture, self._embedder.crop).pixels


def bare_app(bare: Bare) -> FastAPI:
    """An app with a bare search endpoint."""
    app = FastAPI()

    @app.post("/search")
    def search(image: Annotated[bytes, File()]) -> dict[str, Any]:
        hits = bare.search([image])
        return {"positions": hits.positions[0].tolist(), "scores": hits.scores[0].tolist()}

    @app.get("/readyz")
    def ready() -> None:
        """The app is ready as soon as it serves."""

    return app


if __name__ == "__main__":
    uvicorn.run(bare_app(Bare(*sys.argv[1:3])), port=int(sys.argv[3]), log_level="warning", access_log=False)
