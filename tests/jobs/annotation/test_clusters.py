"""Clusters as columns: learned once, named, and kept for new images."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.annotations import annotation_log, list_annotations
from index.errors import CollectionError
from jobs.annotation.annotate import Annotate
from jobs.annotation_spec import AnnotationSpec
from jobs.errors import UsageError
from tests.support.collections.hand_made import add_run, add_version, indexed, metadata_of, rows
from tests.support.command_line import Run

IDS = [f"é{number:02}.jpg" for number in range(60)]
AXES = [number % 3 for number in range(60)]
NAMES = ["the sea", "a hill", "my town"]


def table(ids: Sequence[str], axes: Sequence[int], **metadata: Any) -> pa.Table:
    """Rows near axes."""
    vectors = np.eye(8)[list(axes)] + np.random.default_rng(len(ids)).normal(0, 0.05, (len(ids), 8))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    made = rows(ids, vectors, metadata={name: pa.array(values) for name, values in metadata.items()})
    return made.append_column("content_hash", pa.array(list(ids)))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("template"), table(IDS, AXES))


def annotate(collection: Collection, clusters: int | str = 3, name: str = "kind") -> int:
    with writing(collection, "annotate") as leased:
        job = Annotate(collection=leased, console=Console(quiet=True))
        return job.run(AnnotationSpec(name=name, clusters=clusters)).embedded


def kinds(collection: Collection, name: str = "kind") -> dict[str, Any]:
    return {image_id: row[name] for image_id, row in metadata_of(collection).items()}


def test_new_images_join_the_clusters_that_were_learned(collection: Collection) -> None:
    assert annotate(collection) == 60
    before = kinds(collection)
    assert sorted(set(before.values())) == ["1", "2", "3"]
    assert len({(axis, before[image_id]) for axis, image_id in zip(AXES, IDS, strict=True)}) == 3
    assert all(0.9 < row["kind_score"] <= 1 for row in metadata_of(collection).values())
    # A fourth kind is assigned to what was learned, and others keep theirs.
    add_run(collection, table(["new 0", "new 1", *(f"other {number}" for number in range(50))], [0, 1, *[5] * 50]))
    build_index(collection)
    assert annotate(collection) == 52
    after = kinds(collection)
    assert {image_id: after[image_id] for image_id in IDS} == before
    assert (after["new 0"], after["new 1"]) == (before[IDS[0]], before[IDS[1]])
    assert annotate(collection) == 0


def test_clusters_are_named_by_labels_or_by_captions(collection: Collection) -> None:
    texts = [NAMES[axis] for axis in AXES]
    add_version(collection, table(IDS, AXES, caption=[f"{text} at night" for text in texts]))
    annotate(collection)
    expected = [["sea, the", "a, hill", "my, town"][axis] for axis in AXES]
    assert [kinds(collection)[image_id] for image_id in IDS] == expected
    add_version(collection, table(IDS, AXES, caption=texts, label=texts))
    annotate(collection, name="again")
    assert [kinds(collection, "again")[image_id] for image_id in IDS] == texts


@pytest.mark.parametrize("damage", [None, b"{}", b'{"names": [], "vectors": ""}'])
def test_rows_of_clusters_that_are_lost_get_no_others(collection: Collection, damage: bytes | None) -> None:
    annotate(collection)
    log = annotation_log(collection, "kind")
    [path] = [entry.path for entry in log.storage.list() if entry.name.startswith("learned-")]
    log.storage.delete(path)
    if damage is not None:
        log.storage.write_atomic(path, damage)
    assert annotate(collection, "auto") == 60  # others, which are learned
    assert len(set(kinds(collection).values())) == 5  # √30
    add_run(collection, table(["new"], [0]))
    drop = re.escape(f"`likeness columns {collection.location} --drop kind`")
    expected = f"{re.escape(path)} is {'missing' if damage is None else 'damaged'}.*{drop}"
    with pytest.raises(CollectionError, match=expected):
        annotate(collection)


def test_few_images(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    add_version(collection, table(["only"], [0]))
    annotate(collection, "auto")
    assert kinds(collection) == {"only": "1"}
    with pytest.raises(UsageError, match="--clusters is 2: expected at most 1, the number of images, or auto"):
        annotate(collection, 2, name="two")
    assert [each.name for each in list_annotations(collection)] == ["kind"]


def test_a_model_without_words_cannot_name_them(collection: Collection, run: Run) -> None:
    options = ("--name", "kind", "--clusters", "3", "--label", "sea")
    assert run("annotate", collection.location, *options).code != 0
    refused = run("annotate", collection.location, "--name", "kind", "--clusters", "0")
    assert (refused.code, "--clusters is '0': expected 2 to 1,000, or auto" in refused.err) == (2, True)
    assert list_annotations(collection) == []
