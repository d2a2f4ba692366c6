"""A collection whose versions can be told apart in every match, of two real models: for tests under load."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.common.collections import draw_pictures
from benchmarks.common.load import Asked
from benchmarks.common.models import save_small_clip
from embedder.images.decode import decode_image
from embedder.models.clip import ClipEmbedder
from embedder.protocol import Embedder
from index.build.build_index import build_index
from index.collection import Collection
from index.collection.rows import row_schema
from index.versions.promotion import promote
from jobs.embedding.model import model_record
from jobs.values import DEMO_MODEL
from tests.support.collections.hand_made import add_run, unit_vectors

_FILLERS = 20_000


@dataclass(frozen=True, kw_only=True)
class Edition:
    """A version: its number is in each match's metadata, and its size is like no other's."""

    version: str
    number: int
    ntotal: int
    model: str


@dataclass(frozen=True, kw_only=True)
class Editions:
    """The collection, and its versions by name: some of the demo model, then one of another. `pictures` is a folder."""

    collection: Collection
    pictures: Path
    by_version: dict[str, Edition]

    @property
    def names(self) -> list[str]:
        return list(self.by_version)


def make_editions(folder: Path, *, demo: int) -> Editions:
    """`demo` versions of the demo model's vectors, the first of them live, and one of a model with random weights."""
    pictures = draw_pictures(folder / "pictures", 60)
    collection = Collection.create_or_open(str(folder / "collection"))
    ours = ClipEmbedder.load(str(DEMO_MODEL), device="cpu")
    other = ClipEmbedder.load(str(save_small_clip(folder / "other-model", seed=2)), device="cpu")
    by_version = {}
    for number, embedder in enumerate([ours] * demo + [other], start=1):
        add_edition(collection, pictures, embedder, number)
        manifest = build_index(collection, rebuild=True)
        by_version[manifest.version] = Edition(
            version=manifest.version, number=number, ntotal=manifest.ntotal, model=embedder.identity.fingerprint
        )
    promote(collection, next(iter(by_version)))
    return Editions(collection=collection, pictures=pictures, by_version=by_version)


def check_of_one_version(asked: Iterable[Asked], editions: Editions) -> set[str]:
    """That each answer is whole, and of one version with its own model; the versions that were seen.

    The vectors of a picture are its own under the very model that made the index alone: a score of 1 says that query
    and index are of one model.
    """
    seen = set()
    for each in asked:
        index, matches = each.answer["index"], each.answer["matches"]
        edition = editions.by_version[index["version"]]
        assert (each.answer["model"]["fingerprint"], index["ntotal"]) == (edition.model, edition.ntotal), each
        assert [match["metadata"]["edition"] for match in matches] == [edition.number] * 10, each
        assert matches[0]["image_id"] == each.picture, each
        assert abs(matches[0]["score"] - 1) < 1e-5, each
        seen.add(edition.version)
    return seen


def add_edition(collection: Collection, pictures: Path, embedder: Embedder, number: int) -> None:
    """A run that replaces every row: the pictures' vectors by this model, and many others."""
    paths = sorted(pictures.iterdir())
    crops = np.stack([decode_image(path.read_bytes(), embedder.crop).pixels for path in paths])
    fillers = _FILLERS + number
    dim = embedder.identity.dim
    vectors = np.concatenate([embedder.embed_images(crops), unit_vectors(fillers, dim=dim)])
    ids = [*(path.name for path in paths), *(f"filler-{each:06d}" for each in range(fillers))]
    table = pa.table(
        {
            "image_id": ids,
            "uri": [f"memory:{image_id}" for image_id in ids],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim),
            "edition": pa.array([number] * len(ids), pa.int64()),
        }
    )
    schema = row_schema(dim, [pa.field("edition", pa.int64())])
    missing = [field for field in schema if field.name not in table.column_names]
    for field in missing:
        table = table.append_column(field, pa.nulls(len(table), field.type))
    add_run(collection, table.select(schema.names).cast(schema), model=model_record(embedder.identity))
