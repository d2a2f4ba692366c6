"""Make a small demo collection without Ray, in seconds: `python -m jobs.demo.collection [FOLDER]`.

It has the first pictures of the gallery that `likeness demo` draws, and lies where that looks, which adds the others.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from embedder.protocol import Embedder
from index.build.build_index import build_index
from index.collection import Collection
from index.storage import Storage
from jobs.demo.gallery import make_gallery
from jobs.embedding.model import ModelSource, model_record
from jobs.embedding.stages import SECONDS, DecodeSettings, embed_rows, fetch_and_decode
from jobs.sources.list_images import list_images
from jobs.values import DEMO_MODEL

COUNT = 600


def make_demo_collection(folder: Path, *, count: int = COUNT) -> Collection:
    """`folder`/collection with an index, of `count` pictures drawn into `folder`/pictures; as it is if it is there."""
    collection = Collection.create_or_open(str(folder / "collection"))
    if collection.current() is None:
        if not collection.runs():
            make_gallery(folder / "pictures", count=count)
            embedder = ModelSource(model=str(DEMO_MODEL), device="cpu")()
            embed_here(list_images(str(folder / "pictures")), folder / "pictures", collection, embedder)
        build_index(collection)
    return collection


def embed_here(
    listing: pa.Table, pictures: Path, collection: Collection, embedder: Embedder, deletes: Sequence[str] = ()
) -> None:
    """One run of the images of a listing of `pictures`, as `likeness embed` would write it; `deletes` are ids."""
    decoded = fetch_and_decode(listing, settings=DecodeSettings(crop=embedder.crop, draft=True))
    rows = embed_rows(decoded.drop_columns(list(SECONDS)), embedder)
    embedded = rows["error_reason"].null_count
    counts = {"listed": len(rows), "already_there": 0, "embedded": embedded, "rejected": len(rows) - embedded}
    source = Storage.open(str(pictures)).location.rstrip("/")
    collection.add_run(source, model_record(embedder.identity), [rows], deletes=deletes, counts=counts)


if __name__ == "__main__":
    print(make_demo_collection(Path(*sys.argv[1:] or ["demo-data"])).location)
