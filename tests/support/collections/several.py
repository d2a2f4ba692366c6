"""Several collections for one server. Image ids repeat between collections, but every picture has its own colour."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

from embedder.errors import ModelNotFoundError
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from tests.support.collections.small_collection import add_rows, embedded_row, png
from tests.support.fake_embedder import FakeEmbedder


class OtherFake(FakeEmbedder):
    """Another model of the same dimension: its vectors are the fake's, reversed."""

    def __init__(self, side: int = 64) -> None:
        super().__init__(side=side)
        self._projection = self._projection[:, ::-1].copy()


class Loader:
    """Loads fakes by fingerprint, by default one of two, and records the fingerprints."""

    def __init__(self, *fakes: Embedder) -> None:
        self.known: dict[str, Embedder] = {}
        self.loaded: list[str] = []
        for fake in fakes or (FakeEmbedder(), OtherFake()):
            self.add(fake)

    def add(self, fake: Embedder) -> None:
        self.known[fake.identity.fingerprint] = fake

    def load(self, record: ModelRecord) -> Embedder:
        self.loaded.append(record.fingerprint)
        if record.fingerprint not in self.known:
            raise ModelNotFoundError(f"there is no model {record.id!r}")
        return self.known[record.fingerprint]


def own_colour(name: str, number: int) -> tuple[int, int, int]:
    red, green, blue, *_ = sha256(f"{name} {number}".encode()).digest()
    return red, green, blue


def picture_of(name: str, number: int) -> bytes:
    return png(own_colour(name, number))


def make_several(
    folder: Path, names: Sequence[str], *, start: int = 0, count: int = 3, other: Sequence[str] = ()
) -> None:
    """Make collections in subfolders, or add a version to them, with `count` new pictures in `pictures/`."""
    for name in names:
        embedder = OtherFake() if name in other else FakeEmbedder()
        collection = Collection.create_or_open(str(folder / name))
        rows = []
        for number in range(start, start + count):
            path = folder / "pictures" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture_of(name, number))
            row = embedded_row(path.name, str(path), path.read_bytes(), embedder)
            rows.append(row | {"collection": name})
        add_rows(collection, rows, embedder, {"collection": pa.string()})


def damage(location: Path) -> None:
    """Change a byte in the vectors of every segment."""
    for path in location.glob("index/segments/*/vectors.faiss"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
