"""A collection of many rows, for tests under load."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from embedder.images.decode import decode_image
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.rows import row_schema
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_run, unit_vectors

_FILLERS = 20_000


def add_many(collection: Collection, pictures: Path, embedder: Embedder) -> None:
    """Add a run with the pictures' vectors by this model and many random ones."""
    paths = sorted(pictures.iterdir())
    crops = np.stack([decode_image(path.read_bytes(), embedder.crop).pixels for path in paths])
    dim = embedder.identity.dim
    vectors = np.concatenate([embedder.embed_images(crops), unit_vectors(_FILLERS, dim=dim)])
    ids = [*(path.name for path in paths), *(f"filler-{each:06d}" for each in range(_FILLERS))]
    rows = [
        {"image_id": image_id, "uri": f"memory:{image_id}", "embedding": vector}
        for image_id, vector in zip(ids, vectors, strict=True)
    ]
    table = pa.Table.from_pylist(rows, schema=row_schema(dim))
    add_run(collection, table, model=model_record(embedder.identity))
