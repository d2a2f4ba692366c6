"""Columns from the nearest others: what brute force finds, and what is written when images come and go."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.records.index_settings import IndexSettings
from index.errors import EmptyCollectionError
from jobs.annotation.annotate import Annotate
from jobs.annotation_spec import AnnotationSpec
from tests.support.collections.hand_made import add_run, add_version, hashed, indexed, metadata_of, rows, unit_vectors

IDS = [f"é{number:03}.jpg" for number in range(150)]


def table(ids: list[str], seed: int = 0) -> pa.Table:
    return hashed(rows(ids, unit_vectors(len(ids), seed)), str(seed))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments."""
    return indexed(tmp_path_factory.mktemp("template"), table(IDS), settings=IndexSettings(segment_rows=90))


def annotate(collection: Collection, kind: str) -> tuple[int, int]:
    """How many values were written, and how many stayed."""
    options: dict[str, Any] = {"name": "lone", kind: True}
    with writing(collection, "annotate") as leased:
        report = Annotate(collection=leased, console=Console(quiet=True)).run(AnnotationSpec(**options))
    return report.embedded, report.already_there


def values(collection: Collection) -> dict[str, float | None]:
    return {image_id: row.get("lone") for image_id, row in metadata_of(collection).items()}


def brute_force(vectors: dict[str, Any], k: int) -> dict[str, Any]:
    all_of = np.array([*vectors.values()])
    cosines = all_of @ all_of.T
    np.fill_diagonal(cosines, -2)
    apart = 1 - np.sort(cosines, axis=1)[:, -k:].mean(axis=1)
    return {image_id: pytest.approx(value, abs=1.01e-4) for image_id, value in zip(vectors, apart, strict=True)}


@pytest.mark.parametrize(("kind", "k"), [("uniqueness", 1), ("outlier", 10)])
def test_only_values_that_differ_are_written(collection: Collection, kind: str, k: int) -> None:
    vectors = dict(zip(IDS, unit_vectors(len(IDS)), strict=True))
    assert annotate(collection, kind) == (150, 0)
    assert values(collection) == brute_force(vectors, k)
    version = collection.current()
    assert (annotate(collection, kind), collection.current()) == ((0, 150), version)
    # A copy of one image, another picture in place of a second one, and a third one gone.
    copy = table([IDS[0]]).set_column(0, "image_id", pa.array(["copy"]))
    add_run(collection, copy, table([IDS[1]], seed=7), deletes=[IDS[2]])
    build_index(collection)
    assert values(collection)["copy"] is values(collection)[IDS[1]] is None
    vectors |= {IDS[1]: unit_vectors(1, 7)[0], "copy": unit_vectors(1)[0]}
    del vectors[IDS[2]]
    written, stayed = annotate(collection, kind)
    assert values(collection) == brute_force(vectors, k)
    assert 3 <= written < 75 < stayed


def test_a_copy_is_not_unique_and_the_only_image_has_no_value(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    add_version(collection, table(["one"]))
    assert annotate(collection, "uniqueness") == (0, 0)
    assert values(collection) == {"one": None}
    add_version(collection, table(["one"]).set_column(0, "image_id", pa.array(["two"])))
    assert annotate(collection, "uniqueness") == (2, 0)
    assert values(collection) == {"one": 0, "two": 0}
    far = rows(["far"], -unit_vectors(1))
    add_version(collection, far.append_column("content_hash", pa.array(["far"])))
    annotate(collection, "uniqueness")
    assert values(collection) == {"one": 0, "two": 0, "far": 2}


def test_without_an_index_there_are_no_neighbours(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    add_run(collection, table(IDS))
    with pytest.raises(EmptyCollectionError, match="no index to search: build one with `likeness index`"):
        annotate(collection, "uniqueness")
