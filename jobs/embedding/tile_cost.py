"""Estimates what tiles add to a job, before it begins."""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from embedder.protocol import Embedder
from index.collection.records import ModelRecord

_MIN_TILES_TO_TIME = 2_000
"""With fewer tiles, timing the model would take about as long as embedding them."""
_TIMED_CROPS = 32


def tile_cost(pictures: int, model: ModelRecord, load: Callable[[], Embedder] | None) -> str:
    """A message with the vectors, bytes and seconds that tiles take; without seconds if `load` is None."""
    tiles = pictures * len(model.boxes)
    # Each vector is stored in a row file and again in the index.
    megabytes = 2 * tiles * model.dim * 4 / 1e6
    cost = (
        f"tiles {model.tiles}: {tiles:,} vectors in addition to those of {pictures:,} whole pictures, "
        f"{megabytes:,.1f} MB more on disk"
    )
    if load is None or tiles < _MIN_TILES_TO_TIME:
        return cost
    return f"{cost}, about {tiles * _seconds_per_crop(load()):,.0f} s more"


def _seconds_per_crop(embedder: Embedder) -> float:
    crops = np.zeros((_TIMED_CROPS, embedder.crop.side, embedder.crop.side, 3), np.uint8)
    seconds = []
    for _ in range(2):  # the first one warms up
        began = perf_counter()
        embedder.embed_images(crops)
        seconds.append(perf_counter() - began)
    return min(seconds) / _TIMED_CROPS
