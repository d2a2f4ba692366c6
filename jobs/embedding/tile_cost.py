"""What tiles add to a job, said before it begins."""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from embedder.protocol import Embedder
from index.collection.records import ModelRecord

_WORTH_TIMING = 2_000
"""Tiles: of fewer, timing the model would take a good part of what they take."""
_CROPS = 32


def tile_cost(pictures: int, model: ModelRecord, load: Callable[[], Embedder] | None) -> str:
    """How many vectors, bytes and seconds the tiles of so many pictures take; `load` None: on machines unknown."""
    tiles = pictures * len(model.boxes)
    # Each vector is in a row file, and once more in the index.
    megabytes = 2 * tiles * model.dim * 4 / 1e6
    cost = (
        f"tiles {model.tiles}: {tiles:,} vectors beside those of {pictures:,} whole pictures, "
        f"{megabytes:,.1f} MB more on disk"
    )
    if load is None or tiles < _WORTH_TIMING:
        return cost
    return f"{cost}, about {tiles * _seconds_per_crop(load()):,.0f} s more"


def _seconds_per_crop(embedder: Embedder) -> float:
    crops = np.zeros((_CROPS, embedder.crop.side, embedder.crop.side, 3), np.uint8)
    seconds = []
    for _ in range(2):  # the first one warms up
        began = perf_counter()
        embedder.embed_images(crops)
        seconds.append(perf_counter() - began)
    return min(seconds) / _CROPS
