"""Make a small demo collection without Ray, in seconds: `python -m jobs.demo.collection [FOLDER]`.

It has the first pictures of the gallery of `likeness demo`, which uses the same folder and adds the others.
"""

import sys
from pathlib import Path

from rich.console import Console

from index.collection import Collection
from jobs.demo.gallery import make_gallery
from jobs.spec import JobSpec, Resources
from jobs.update import Update

COUNT = 600


def make_demo_collection(folder: Path, *, count: int = COUNT) -> Collection:
    """Draw `count` pictures into `folder`/pictures, and make `folder`/collection with an index, unless it has one."""
    collection = Collection.open_or_empty(str(folder / "collection"))
    if collection.current() is None:
        make_gallery(folder / "pictures", count=count)
        collection = embed_here(folder / "pictures", folder / "collection")
    return collection


def embed_here(pictures: Path, collection: Path, model: str = "demo", *, tiles: str | None = None) -> Collection:
    """Do what `likeness reembed` does, without Ray or output, however many pictures are gone or broken."""
    job = JobSpec(
        source=str(pictures),
        collection=str(collection),
        model=model,
        tiles=tiles,
        resources=Resources(on="local", device="cpu"),
        max_missing=1,
        max_reject_rate=1,
    )
    Update(spec=job, console=Console(quiet=True)).run()
    return Collection.open(str(collection))


if __name__ == "__main__":
    print(make_demo_collection(Path(*sys.argv[1:] or ["demo-data"])).location)
