"""Collections to serve, and queries to search them with."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.common.clustered import Clustered, add_rows
from embedder.models.clip import ClipEmbedder
from index.builder.build_index import build_index
from index.collection import Collection
from jobs.demo.gallery import SEED, plan_exhibit
from jobs.embedding.model_source import model_record


def make_collection(folder: Path, model: str, rows: int) -> Collection:
    """A collection with an index of `rows` clustered vectors, recorded as those of `model`."""
    collection = Collection.create_or_open(str(folder))
    add_version(collection, model, rows)
    return collection


def add_version(collection: Collection, model: str, rows: int, *, seed: int = 0) -> str:
    """Replace all rows by those of `seed`, and build an index version; returns its name."""
    add_rows(collection, Clustered(seed), range(rows), model=model_record(ClipEmbedder.load(model).identity))
    return build_index(collection, rebuild=True).version


def draw_pictures(folder: Path, count: int, *, seed: int = SEED) -> Path:
    """Write `count` pictures of the demo's gallery into one new folder; returns it."""
    folder.mkdir(parents=True)
    for number in range(count):
        exhibit = plan_exhibit(number, seed=seed)
        (folder / exhibit.image_id.replace("/", "-")).write_bytes(exhibit.data())
    return folder


def write_ids(folder: Path, count: int) -> Path:
    """Write `count` searches by the id of a row of such a collection, one JSON file each; returns the folder."""
    folder.mkdir(parents=True)
    for row in range(count):
        (folder / f"{row}.json").write_text(json.dumps({"id": str(row)}))
    return folder
