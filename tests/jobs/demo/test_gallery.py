"""The demo's gallery: every file as planned, every broken one broken in its own way."""

from pathlib import Path

import pytest

from embedder.errors import ImageError
from embedder.images.decode import CropSpec, decode_image
from jobs.demo.broken import BROKEN, Breakage
from jobs.demo.drawing import SHAPES
from jobs.demo.gallery import make_gallery

CROP = CropSpec(side=64, shortest_edge=64)


@pytest.mark.parametrize("breakage", BROKEN, ids=lambda b: b.name)
def test_each_broken_kind_is_rejected_for_its_reason(breakage: Breakage) -> None:
    data = breakage.make()
    assert len(data) <= 100_000
    assert data == breakage.make()
    with pytest.raises(ImageError) as rejection:
        decode_image(data, CROP)
    assert rejection.value.reason == breakage.reason


def test_the_gallery_holds_the_files_that_it_lists(tmp_path: Path) -> None:
    gallery = make_gallery(tmp_path, count=60, broken=20)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {exhibit.image_id for exhibit in gallery.exhibits} | set(gallery.broken)
    assert (len(gallery.exhibits), len(gallery.broken)) == (40, 20)
    assert {image_id.split("/")[0] for image_id in found} == set(SHAPES)
    for exhibit in gallery.exhibits:
        decoded = decode_image((tmp_path / exhibit.image_id).read_bytes(), CROP)
        assert (decoded.width, decoded.height) == exhibit.size


def test_missing_files_are_drawn_and_others_left_alone(tmp_path: Path) -> None:
    gallery = make_gallery(tmp_path, count=20, broken=2)
    lost, kept = gallery.exhibits[3], gallery.exhibits[4]
    data = (tmp_path / lost.image_id).read_bytes()
    (tmp_path / lost.image_id).unlink()
    (tmp_path / kept.image_id).write_bytes(b"not drawn again")
    make_gallery(tmp_path, count=20, broken=2)
    assert (tmp_path / lost.image_id).read_bytes() == data
    assert (tmp_path / kept.image_id).read_bytes() == b"not drawn again"


def test_pool_draws_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_gallery(tmp_path / "one", count=12, broken=0)
    monkeypatch.setattr("jobs.demo.gallery._MIN_POOL_FILES", 1)
    gallery = make_gallery(tmp_path / "many", count=12, broken=0)
    for exhibit in gallery.exhibits:
        one, many = tmp_path / "one" / exhibit.image_id, tmp_path / "many" / exhibit.image_id
        assert one.read_bytes() == many.read_bytes()
