"""A collection of a few pictures of one colour each, for tests of the service and its HTTP interface."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from api.search.engine import LiveEngine, LoadModel
from api.search.pictures import Pictures
from api.search.service import SearchService
from embedder.errors import FetchError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from embedder.images.decode import decode_image
from embedder.images.decoder_pool import DecodePool
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.rows import row_schema
from index.search import Searcher, VersionSearcher
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_version
from tests.support.fake_embedder import FakeEmbedder
from tests.support.pictures.sample_images import encode

COLOURS = {"red.png": (220, 30, 30), "green.png": (30, 200, 40), "blue.png": (20, 40, 210)}


class SharedDecoders(DecodePool):
    """Their processes stay for the next test, which would wait for others to start."""

    def close(self) -> None:
        pass


@cache
def shared_decoders() -> SharedDecoders:
    return SharedDecoders()


class RecordingFetcher(Fetcher):
    """Answers from a dict and records the URIs."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(FetchPolicy())
        self.files = files
        self.fetched: list[str] = []

    def fetch(self, uri: str) -> bytes:
        self.fetched.append(uri)
        if uri not in self.files:
            raise FetchError("not_found", f"{uri}: /secret/path does not exist")
        return self.files[uri]


def png(colour: tuple[int, int, int], size: tuple[int, int] = (48, 40)) -> bytes:
    return encode(Image.new("RGB", size, colour), "png")


def make_collection(location: Path, pictures: dict[str, bytes], embedder: Embedder) -> Searcher:
    """A collection of `pictures` by id, with an index; URIs are memory:<id>."""
    collection = Collection.create_or_open(str(location))
    add_pictures(collection, pictures, embedder)
    return Searcher.open(collection)


def add_pictures(collection: Collection, pictures: dict[str, bytes], embedder: Embedder) -> None:
    """Add a run of these pictures and an index version."""
    rows = [
        embedded_row(image_id, f"memory:{image_id}", data, embedder)
        | {"label": image_id.partition(".")[0], "weight": float("nan")}
        for image_id, data in pictures.items()
    ]
    add_rows(collection, rows, embedder, {"label": pa.string(), "weight": pa.float64()})


def add_rows(
    collection: Collection,
    rows: Sequence[Mapping[str, Any]],
    embedder: Embedder,
    columns: Mapping[str, pa.DataType],
    settings: IndexSettings | None = None,
) -> None:
    """Add a run of rows as made by `embedded_row`, with these columns besides, and an index version."""
    model = model_record(embedder.identity)
    schema = row_schema(model.dim, [pa.field(name, kind) for name, kind in columns.items()])
    add_version(collection, pa.Table.from_pylist(list(rows), schema=schema), settings=settings, model=model)


def embedded_row(image_id: str, uri: str, data: bytes, embedder: Embedder) -> dict[str, Any]:
    """The row of a picture at `uri`, without metadata."""
    decoded = decode_image(data, embedder.crop)
    return {
        "image_id": image_id,
        "uri": uri,
        "size": len(data),
        "width": decoded.width,
        "height": decoded.height,
        "format": decoded.format,
        "embedding": embedder.embed_images(decoded.pixels[np.newaxis])[0],
    }


PLAIN = {name: png(colour) for name, colour in COLOURS.items()}
"""The pictures of `COLOURS`, by name."""


def fake_service(
    searcher: VersionSearcher,
    *,
    embedder: Embedder | None = None,
    queries: Fetcher | dict[str, bytes] | None = None,
    pictures: Fetcher | dict[str, bytes] | None = None,
    decoders: DecodePool | None = None,
    load_model: LoadModel | None = None,
    **following: Any,
) -> SearchService:
    """A service with the fake model, which can fetch `queries` and `pictures`, by default none."""
    embedder = embedder or FakeEmbedder()

    def fetcher(files: Fetcher | dict[str, bytes] | None) -> Fetcher:
        return files if isinstance(files, Fetcher) else RecordingFetcher(files or {})

    return SearchService(
        live=LiveEngine(searcher, load_model or (lambda _: embedder), **following),
        query_fetcher=fetcher(queries),
        pictures=Pictures(fetcher(pictures), decoders or shared_decoders()),
    )


def followed_service(location: Path, **more: Any) -> SearchService:
    """A fake service of an existing collection. It switches versions only on `refresh`, not by itself."""
    collection = Collection.open(str(location))
    return fake_service(Searcher.open(collection), collection=collection, interval_s=3_600, **more)
