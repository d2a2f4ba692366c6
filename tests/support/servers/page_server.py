"""A gallery behind the real app, for tests and screenshots of the web page in a browser."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from api.build_service import build_service
from api.http.app import create_app
from api.local import running
from api.settings import Access, ServeSettings
from embedder.errors import UnsupportedInputError
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from jobs.demo.gallery import Exhibit, Gallery, make_gallery
from tests.support.collections.small_collection import add_rows, embedded_row, fake_service, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.pictures.fetching import answer
from tests.support.scripted_server import scripted

# A page that does not escape it would show an element.
MARKUP = "<img src=x onerror=alert(1)>"
_TEXT = pa.string()
_METADATA: Any = {"label": _TEXT, "pattern": _TEXT, "number": pa.int32(), "turned": pa.bool_(), "note": _TEXT}
_METADATA |= {"exif_taken": pa.timestamp("us"), "exif_latitude": pa.float64(), "exif_longitude": pa.float64()}
# A third of the pictures each: taken in Paris, in Berlin, and in an unknown place.
PLACES = ((48.86, 2.35), (52.52, 13.4), (None, None))


@dataclass(frozen=True, kw_only=True)
class Site:
    """The app at `url`, another server with the gallery's files at `pictures_at`, and `copied`, the id of a picture
    that is in the collection twice.
    """

    url: str
    pictures_at: str
    gallery: Gallery
    copied: str


class PicturesOnly(FakeEmbedder):
    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise UnsupportedInputError("the model knows pictures only")


@contextmanager
def gallery_site(folder: Path, *, count: int, access: Access | None = None, name: str = "collection") -> Iterator[Site]:
    """Embed, index and serve the demo's gallery of `count` pictures during the block."""
    gallery = make_gallery(folder / "pictures", count=count, broken=0)
    embedder = ClipEmbedder.load(str(DEMO_MODEL), device="cpu")
    _index(folder / name, gallery, embedder)
    with scripted() as files:
        files.routes = {
            f"/{each.image_id}": answer((gallery.folder / each.image_id).read_bytes()) for each in gallery.exhibits
        }
        host = files.url.removeprefix("http://")
        settings = ServeSettings(collection=str(folder / name), allowed_hosts=frozenset({host}))
        app = create_app(build_service(settings), limits=settings.limits(), access=access)
        with running(app) as url:
            yield Site(url=url, pictures_at=files.url, gallery=gallery, copied=gallery.exhibits[0].image_id)


@contextmanager
def columns_site(
    folder: Path,
    values: Sequence[Mapping[str, Any]],
    types: Mapping[str, pa.DataType] | None = None,
    *,
    embedder: Embedder | None = None,
    settings: IndexSettings | None = None,
    **options: Any,
) -> Iterator[str]:
    """The app with the fake model, or this `embedder`, and a picture for each of these values of columns, which have an
    `image_id` if it is not "0.png" and so on. `options` are those of `create_app`. Yields its address.
    """
    embedder, rows, pictures = embedder or FakeEmbedder(), [], {}
    for number, more in enumerate(values):
        image_id, data = more.get("image_id", f"{number}.png"), coloured(number, len(values))
        pictures[f"memory:{image_id}"] = data
        rows.append({**embedded_row(image_id, f"memory:{image_id}", data, embedder), **more})
    collection = Collection.create_or_open(str(folder))
    add_rows(collection, rows, embedder, types or {}, settings)
    service = fake_service(Searcher.open(collection), embedder=embedder, pictures=pictures)
    with running(create_app(service, **options)) as address:
        yield address


def coloured(number: int, count: int) -> bytes:
    """One of `count` pictures of a colour each."""
    step = 240 // count
    return png((step * number, 90, 255 - step * number))


def _index(location: Path, gallery: Gallery, embedder: Embedder) -> None:
    rows = [_row(exhibit, gallery.folder, embedder) for exhibit in gallery.exhibits]
    rows.append(rows[0] | {"image_id": f"copies/{rows[0]['image_id']}", "note": None})
    add_rows(Collection.create_or_open(str(location)), rows, embedder, _METADATA)


def _row(exhibit: Exhibit, folder: Path, embedder: Embedder) -> dict[str, Any]:
    path = folder / exhibit.image_id
    latitude, longitude = PLACES[exhibit.number % 3]
    return embedded_row(exhibit.image_id, str(path), path.read_bytes(), embedder) | {
        "label": exhibit.subject.shape,
        "pattern": exhibit.subject.pattern,
        "number": exhibit.number,
        "turned": exhibit.orientation != 1,
        "exif_taken": datetime(2021 + exhibit.number % 4, 1 + exhibit.number % 12, 1),
        "exif_latitude": latitude,
        "exif_longitude": longitude,
        "note": MARKUP if exhibit.number == 0 else None,
    }
