"""Flipped bits in files of rows: a build refuses the file by name, and nothing raises anything raw."""

import hashlib
import random
from pathlib import Path

import pytest

from index.build.build_index import build_index
from index.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.records import RowFile
from index.collection.rows import EMBEDDING
from index.errors import CollectionError, DamagedRunError
from jobs.cli.tables import collection_facts, list_rejects
from tests.support.collections.hand_made import add_run, rows, unit_vectors

IDS = [f"{number:02d}" for number in range(20)]
FLIPS = 150


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Of two runs; the second has deletes."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("made") / "collection"))
    labels = {"label": [f"label {number % 3}" for number in range(22)]}
    add_run(collection, rows(IDS, unit_vectors(20), rejected={"a": "corrupt", "b": "timeout"}, metadata=labels))
    add_run(collection, rows(["new", "00"], unit_vectors(2, seed=1)), deletes=["01", "02"])
    return collection


def files(collection: Collection) -> list[RowFile]:
    return [file for run in collection.runs() for file in (*run.files, *([run.deletes] if run.deletes else []))]


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def test_mend_05_manifests_have_the_digests_of_their_files(collection: Collection) -> None:
    assert len(files(collection)) == 3
    for file in files(collection):
        data = (Path(collection.location) / file.path).read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert collection.row_file(file.path) == file


@pytest.mark.parametrize("number", range(3))
def test_mend_05_no_flipped_bit_is_read_for_a_build_or_raises_anything_raw(collection: Collection, number: int) -> None:
    file = files(collection)[number]
    path = Path(collection.location) / file.path
    data, drawn = path.read_bytes(), random.Random(number)
    try:
        for bit in drawn.sample(range(8 * len(data)), FLIPS):
            path.write_bytes(flipped(data, bit))
            with pytest.raises(DamagedRunError, match=file.path) as refused:
                list(LiveRows.of_runs(collection.storage, collection.runs()).embedded())
            assert refused.value.file == file.path
            with pytest.raises(DamagedRunError, match=file.path):
                LiveRows.of_runs(collection.storage, collection.runs()).read(["image_id", EMBEDDING])
            try:
                collection.live_rows([name for name in collection.live_rows().schema.names if name != EMBEDDING])
                collection_facts(collection)
                list_rejects(collection)
            except CollectionError as error:
                named = str(error)
            else:
                named = file.path
            assert file.path in named
            with pytest.raises(DamagedRunError, match=file.path):
                collection.row_file(file.path)
    finally:
        path.write_bytes(data)


def test_mend_05_a_build_names_the_file_and_publishes_nothing(collection: Collection) -> None:
    file = files(collection)[0]
    path = Path(collection.location) / file.path
    data = path.read_bytes()
    try:
        path.write_bytes(flipped(data, 8 * len(data) - 100))
        with pytest.raises(DamagedRunError, match=file.path):
            build_index(collection)
    finally:
        path.write_bytes(data)
    assert collection.versions() == []
