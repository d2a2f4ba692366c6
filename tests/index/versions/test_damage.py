"""A version with a damaged file is refused by that name and never served; the last good one is served instead."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from index.build.build_index import build_index
from index.collection import Collection
from index.collection.records import FLAT, IndexSettings
from index.errors import DamagedVersionError
from index.search import Searcher
from index.search.searcher import open_last_good
from index.versions.promotion import promote
from tests.support.collections.hand_made import add_run, rows, unit_vectors

IDS = [f"{number:04d}" for number in range(2_000)]
LIVE = "000003"

# So short that no more than 31 rows are scanned exactly: the large segment is approximate, the small one flat.
SETTINGS = IndexSettings(target_recall=0.9, latency_ms=1e-4)


def flip(place: float) -> Callable[[bytes], bytes]:
    def flipped(data: bytes) -> bytes:
        position = int(place * (len(data) - 1))
        return data[:position] + bytes([data[position] ^ 0x01]) + data[position + 1 :]

    return flipped


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "first byte": flip(0),
    "middle byte": flip(0.5),
    "last byte": flip(1),
    "cut short": lambda data: data[:-2],  # a manifest's last byte is a line's end, which is no content
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "missing": lambda data: None,
}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Version 1 and 2 built from scratch, so that they share no segment; 3 updates 2 and is live."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("made") / "collection"))
    add_run(collection, rows(IDS, unit_vectors(len(IDS))))
    build_index(collection, SETTINGS)
    build_index(collection, SETTINGS, rebuild=True)
    add_run(collection, rows(["new", "0007"], unit_vectors(2, seed=1)), deletes=["0003"])
    assert build_index(collection).version == LIVE
    return collection


def files_of(collection: Collection) -> list[Path]:
    """Every file that the live version has on disk, the mark of its beginning apart."""
    index = Path(collection.location) / "index"
    folders = [index / LIVE]
    folders += [index / "segments" / segment.name for segment in collection.read_version(LIVE).segments]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file() and path.name != "started")


@contextmanager
def damaged(path: Path, damage: Callable[[bytes], bytes | None]) -> Iterator[None]:
    data = path.read_bytes()
    left = damage(data)
    try:
        path.unlink() if left is None else path.write_bytes(left)
        yield
    finally:
        path.write_bytes(data)


def test_the_version_has_every_kind_of_file(collection: Collection) -> None:
    manifest = collection.read_version(LIVE)
    assert [segment.factory == FLAT for segment in manifest.segments] == [False, True]
    assert {path.name for path in files_of(collection)} == {
        *("manifest.json", "queries.arrow", "tombstones.arrow"),
        *("vectors.faiss", "rows.arrow", "ann.faiss"),
    }
    searcher = Searcher.open(collection)
    assert searcher.ntotal == 2_000  # one more, one less
    assert searcher.row("0003") is None
    assert searcher.search(unit_vectors(2, seed=1)[1:], 10)[0][0].image_id == "0007"


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_is_refused_by_name_and_never_served(
    collection: Collection, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(collection.location)
    for path in files_of(collection):
        name = path.relative_to(root).as_posix()
        with damaged(path, DAMAGES[damage]):
            with pytest.raises(DamagedVersionError) as refused:
                Searcher.open(collection, LIVE)
            assert (refused.value.file, name in str(refused.value)) == (name, True)
            with pytest.raises(DamagedVersionError, match=name):
                promote(collection, LIVE)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                served = open_last_good(collection)
            # Version 2 has the large segment too.
            assert served.version == ("000001" if "/segments/000002" in name else "000002"), name
            assert served.search(unit_vectors(len(IDS))[:1], 10)[0][0].image_id == IDS[0]
            assert name in caplog.text
            assert f"Serving index version {served.version}" in caplog.text
    assert collection.current() == LIVE
    assert open_last_good(collection).version == LIVE
