"""Plans for a small folder with duplicates of every kind, embedded with the demo model."""

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from index.analysis.duplicate_kinds import KINDS, Kind
from index.analysis.duplicate_plan import DuplicatePlan, PlannedGroup, read_plan, write_plan
from index.builder.build_index import build_index
from index.collection import Collection
from index.errors import CollectionError, DamagedRunError
from jobs.demo.collection import embed_here
from jobs.demo.drawing import draw, random_subject
from jobs.duplicates.find import Finder
from jobs.duplicates.move import LOG, move_duplicates, moved_files, undo_moves
from jobs.duplicates.picture_loader import PictureLoader
from jobs.exchange.import_vectors import VectorImport
from tests.support.collections.hand_made import unit_vectors
from tests.support.pictures.copies import make_pictures


class _Unreadable:
    def signatures(self, rows: Sequence[Any]) -> list[str]:
        return ["not_found"] * len(rows)


UNREADABLE = cast("PictureLoader", _Unreadable())


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("duplicates")
    make_pictures(folder / "pictures")
    embed_here(folder / "pictures", folder / "collection")
    return folder


@pytest.fixture(scope="module")
def reader() -> Iterator[PictureLoader]:
    with closing(PictureLoader()) as reader:
        yield reader


@pytest.fixture
def collection(location: Path) -> Collection:
    return Collection.open(str(location / "collection"))


def plan(collection: Collection, reader: PictureLoader, kinds: Sequence[Kind] = KINDS, **more: Any) -> DuplicatePlan:
    with TemporaryDirectory() as scratch:
        found = Finder(collection=collection, loader=reader, kinds=kinds, **more).plan(Path(scratch))
        return found.model_copy(update={"found": tuple(found.found)})


def kinds_of(group: PlannedGroup) -> dict[str, tuple[str, str]]:
    return {duplicate.image_id: (duplicate.kind, duplicate.why) for duplicate in group.duplicates}


def test_each_copy_has_its_kind_and_the_reason_to_keep_another(collection: Collection, reader: PictureLoader) -> None:
    found = plan(collection, reader, KINDS[:-1])
    star, ring = found.found
    assert star.keep.image_id == "star.png"
    assert kinds_of(star) == {
        "star.jpg": ("identical_pixels", "lossless format"),
        "star copy.jpg": ("identical_pixels", "lossless format"),
        "star-q.jpg": ("re_encoded", "lossless format"),
        "star-small.jpg": ("re_encoded", "more pixels"),
        "star-crop.jpg": ("cropped", "more pixels"),
    }
    assert (ring.keep.image_id, kinds_of(ring)) == ("still.gif", {"ring.jpg": ("re_encoded", "lossless format")})
    assert found.duplicates == {"identical_pixels": 2, "re_encoded": 3, "cropped": 1}
    assert found.unread == {}
    again = found.model_copy(update={"created_at": None})
    assert plan(collection, reader, KINDS[:-1]).model_copy(update={"created_at": None}) == again


def test_identical_bytes_are_found_without_pictures_and_vectors_and_the_older_file_is_kept(
    collection: Collection, tmp_path: Path
) -> None:
    copy = Collection.open(str(shutil.copytree(collection.location, tmp_path / "copy")))
    for path in Path(copy.location).glob("index/segments/*/*"):
        path.unlink()
    (group,) = plan(copy, UNREADABLE, KINDS[:1]).found
    assert (group.keep.image_id, kinds_of(group)) == ("star.jpg", {"star copy.jpg": ("identical_bytes", "older file")})
    [run] = Path(copy.location).glob("runs/*/manifest.json")
    run.unlink()
    with pytest.raises(DamagedRunError, match=r"manifest\.json .* is missing, and index version 000001"):
        plan(copy, UNREADABLE, KINDS[:1])


def test_a_reduced_copy_belongs_to_the_page_that_it_is_of(tmp_path: Path, reader: PictureLoader) -> None:
    """At its size another page of the form differs by less than other copies do."""
    (tmp_path / "pages").mkdir()
    for number in range(3):
        page = Image.new("RGB", (600, 500), "white")
        pen = ImageDraw.Draw(page)
        for line in range(12):
            pen.text((50, 30 + 30 * line), f"line {line} of this form", "black", ImageFont.load_default(18))
        pen.text((400, 450), f"No. {1000 + number}", (190, 190, 190), ImageFont.load_default(16))
        page.save(tmp_path / f"pages/{number}.png")
        page.resize((400, 333), Image.Resampling.LANCZOS).save(tmp_path / f"pages/{number}-small.jpg", quality=90)
    embed_here(tmp_path / "pages", tmp_path / "collection")
    found = plan(Collection.open(str(tmp_path / "collection")), reader, ["re_encoded"])
    groups = {group.keep.image_id: [copy.image_id for copy in group.duplicates] for group in found.found}
    assert groups == {f"{number}.png": [f"{number}-small.jpg"] for number in range(3)}


def test_similar_pictures_are_not_copies_and_nothing_differs_by_zero(
    collection: Collection, reader: PictureLoader
) -> None:
    (group,) = (each for each in plan(collection, reader, min_score=-1).found if each.duplicates[0].score is not None)
    names = {group.keep.image_id, *kinds_of(group)}
    assert names == {"star.png", "still.gif", "moving.gif", "other star.jpg"}
    assert {kind for kind, _ in kinds_of(group).values()} == {"similar"}
    assert plan(collection, reader, ["re_encoded", "cropped"], max_difference=0.0).found == ()


def test_pictures_that_cannot_be_read_are_counted_and_are_no_copies(tmp_path: Path, reader: PictureLoader) -> None:
    make_pictures(pictures := tmp_path / "pictures")
    collection = embed_here(pictures, tmp_path / "collection")
    (pictures / "star-q.jpg").unlink()
    (pictures / "star-small.jpg").write_bytes((pictures / "ring.jpg").read_bytes())
    found = plan(collection, reader, KINDS[:-1], max_difference=1.0)
    assert found.unread == {"not_found": 1, "changed": 1}
    assert not {"star-q.jpg", "star-small.jpg"} & {each.image_id for group in found.found for each in group.duplicates}
    np.save(tmp_path / "vectors.npy", np.repeat(unit_vectors(1), 2, axis=0))
    VectorImport(source=str(tmp_path / "vectors.npy"), collection=str(tmp_path / "imported")).run()
    without = Collection.open(str(tmp_path / "imported"))
    build_index(without)
    found = plan(without, reader)
    assert (found.unread, found.duplicates) == ({"no_uri": 2}, {"similar": 1})


def test_a_move_that_was_stopped_is_finished_when_run_again(
    location: Path, tmp_path: Path, reader: PictureLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, collection = location / "pictures", Collection.open(str(location / "collection"))
    aside, removed, unlink = tmp_path / "aside", itertools.count(), Path.unlink

    def kill(path: Path) -> None:
        if next(removed) == 3:
            raise KeyboardInterrupt
        unlink(path)

    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(KeyboardInterrupt):
        move_duplicates(plan(collection, reader, KINDS[:-1]), aside, [pictures])
    monkeypatch.setattr(Path, "unlink", unlink)
    rest = plan(collection, reader, KINDS[:-1], moved=moved_files(aside))
    again = move_duplicates(rest, aside, [pictures])
    assert (again.refused, len(again.files)) == ({}, 3)
    left = {path.name for path in pictures.iterdir()}
    assert left == {"star.png", "still.gif", "moving.gif", "other star.jpg"}
    assert undo_moves(aside / LOG).refused == {}
    assert len(list(pictures.iterdir())) == 10


def test_links_and_hard_links_are_not_copies(tmp_path: Path, reader: PictureLoader) -> None:
    pictures = tmp_path / "pictures"
    for folder in ("a-best", "z-album"):
        (pictures / folder).mkdir(parents=True)
    for number in range(4):
        subject = random_subject(np.random.default_rng(number))
        draw(subject, (160, 120), np.random.default_rng(number)).save(pictures / "z-album" / f"p{number}.png")
    (pictures / "a-best" / "link.png").symlink_to("../z-album/p0.png")
    (pictures / "b-linked").symlink_to("z-album")
    os.link(pictures / "z-album" / "p1.png", pictures / "z-album" / "hard.png")
    shutil.copy2(pictures / "z-album" / "p2.png", pictures / "a-best" / "copy.png")
    collection = embed_here(pictures, tmp_path / "collection")
    found = plan(collection, reader, min_score=0.9999)
    listed = {"link.png", "hard.png", *(f"b-linked/{name}" for name in ("p0", "p1", "p2", "p3", "hard"))}
    assert found.second_paths == len(listed)
    assert {group.keep.image_id: kinds_of(group) for group in found.found} == {
        "a-best/copy.png": {"z-album/p2.png": ("identical_bytes", "first by name")}
    }
    moved = move_duplicates(found, tmp_path / "aside", [pictures])
    assert (len(moved.files), moved.refused) == (1, {})


def test_a_damaged_plan_says_how_to_write_it_again(collection: Collection, reader: PictureLoader) -> None:
    write_plan(collection, plan(collection, reader))
    path = Path(collection.location) / "duplicates.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CollectionError, match=r"jsonl is damaged: run `likeness duplicates` to write it again"):
        read_plan(collection, 0, 100)
    path.unlink()
