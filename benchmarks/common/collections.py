"""Collections to serve, and pictures to search them with."""

from __future__ import annotations

import json
from pathlib import Path

from embedder.models.clip import ClipEmbedder
from index.build.build_index import build_index
from index.collection import Collection
from jobs.demo.clustered import Clustered, add_rows
from jobs.demo.gallery import SEED, plan_exhibit
from jobs.embedding.model_source import model_record


def make_collection(folder: Path, model: str, rows: int) -> Collection:
    """An index of so many clustered vectors that say they are `model`'s."""
    collection = Collection.create_or_open(str(folder))
    add_version(collection, model, rows)
    return collection


def add_version(collection: Collection, model: str, rows: int, *, seed: int = 0) -> str:
    """Replace all rows, by others for each `seed`, and build an index of them; returns its name."""
    add_rows(collection, Clustered(seed), range(rows), model=model_record(ClipEmbedder.load(model).identity))
    return build_index(collection, rebuild=True).version


def draw_pictures(folder: Path, count: int, *, seed: int = SEED) -> Path:
    """So many files of the demo's gallery, in one folder."""
    folder.mkdir(parents=True)
    for number in range(count):
        exhibit = plan_exhibit(number, seed=seed)
        (folder / exhibit.image_id.replace("/", "-")).write_bytes(exhibit.data())
    return folder


def write_ids(folder: Path, count: int) -> Path:
    """So many searches by the id of a row of such a collection, one in each file."""
    folder.mkdir(parents=True)
    for row in range(count):
        (folder / f"{row}.json").write_text(json.dumps({"id": str(row)}))
    return folder
