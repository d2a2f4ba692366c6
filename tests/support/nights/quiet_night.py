"""A job whose collection is up to date, so that running it needs neither a model nor Ray."""

from pathlib import Path

import pyarrow as pa

from index.builder.build_index import build_index
from index.collection import Collection
from jobs.sources.list_images import list_images
from tests.support.collections.hand_made import DIM, MODEL, unit_vectors
from tests.support.collections.small_collection import PLAIN
from tests.support.listings import write_files


def make_job(folder: Path) -> Path:
    """Make `pictures/`, `collection/` with index 000001, and `job.yaml`; returns the path of the latter."""
    source = write_files(folder / "pictures", PLAIN)
    listing = list_images(str(source)).read()
    collection = Collection.create_or_open(str(folder / "collection"))
    vectors = pa.array(list(unit_vectors(len(listing))), pa.list_(pa.float32(), DIM))
    collection.add_run(str(source), MODEL, [listing.append_column("embedding", vectors)])
    build_index(collection)
    path = folder / "job.yaml"
    path.write_text("source: pictures\ncollection: collection\n")
    return path
