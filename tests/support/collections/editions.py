"""A collection whose versions can be told apart in every match, of two real models: for tests under load."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from embedder.images.decode import decode_image
from embedder.models.clip import ClipEmbedder
from embedder.protocol import Embedder
from index.build.build_index import build_index
from index.collection import Collection
from index.collection.rows import row_schema
from index.versions.promotion import promote
from jobs.demo.captions import build_tokenizer
from jobs.demo.gallery import plan_exhibit
from jobs.demo.train import build_model
from jobs.embedding.model import model_record
from jobs.values import DEMO_MODEL
from tests.support.collections.hand_made import add_run, unit_vectors
from tests.support.servers.load import Asked

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
    other = ClipEmbedder.load(_another_model(folder / "other-model"), device="cpu")
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
        assert each.version is not None, each
        edition = editions.by_version[each.version]
        assert (each.model, each.ntotal) == (edition.model, edition.ntotal), each
        assert each.editions == (edition.number,) * 10, each
        assert each.best == each.picture, each
        assert each.score is not None
        assert abs(each.score - 1) < 1e-5, each
        seen.add(each.version)
    return seen


def draw_pictures(folder: Path, count: int) -> Path:
    """So many files of the demo's gallery, in one folder."""
    folder.mkdir(parents=True)
    for number in range(count):
        exhibit = plan_exhibit(number)
        (folder / exhibit.image_id.replace("/", "-")).write_bytes(exhibit.data())
    return folder


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


def _another_model(folder: Path) -> str:
    """The demo model's architecture with random weights."""
    torch.manual_seed(2)
    tokenizer = build_tokenizer()
    build_model(len(tokenizer), tokenizer.eos_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}).save_pretrained(folder)
    return str(folder)
