"""A collection of many rows, for tests under load."""

from pathlib import Path

import numpy as np

from embedder.images.decode import decode_image
from embedder.protocol import Embedder
from index.collection import Collection
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_run, rows, unit_vectors

_FILLERS = 20_000


def add_many(collection: Collection, pictures: Path, embedder: Embedder) -> None:
    """Add a run with the pictures' vectors by this model and many random ones."""
    paths = sorted(pictures.iterdir())
    crops = np.stack([decode_image(path.read_bytes(), embedder.crop).pixels for path in paths])
    fillers = unit_vectors(_FILLERS, dim=embedder.identity.dim)
    vectors = np.concatenate([embedder.embed_images(crops), fillers])
    ids = [*(path.name for path in paths), *(f"filler-{each:06d}" for each in range(_FILLERS))]
    add_run(collection, rows(ids, vectors), model=model_record(embedder.identity))
