"""The small demo collection, what `likeness demo` would make, and the demo's two nights; without Ray."""

from pathlib import Path

from index.analysis.compare import changes
from index.search import Searcher
from jobs.demo.collection import make_demo_collection
from notebooks.nights import make_nights
from tests.support.collections.rejects_and_checks import list_rejects


def test_it_holds_the_gallery_and_is_made_once(tmp_path: Path) -> None:
    collection = make_demo_collection(tmp_path, count=16)
    ids = sorted(path.relative_to(tmp_path / "pictures").as_posix() for path in (tmp_path / "pictures").glob("*/*"))
    searcher = Searcher.open(collection)
    assert collection.live_rows(["image_id"])["image_id"].to_pylist() == ids
    assert (len(ids), searcher.ntotal) == (16, 16)
    assert {str(searcher.row(image_id)["label"]) for image_id in ids} == {i.partition("/")[0] for i in ids}  # type: ignore[index]
    [run] = collection.runs()
    assert run.source == str(tmp_path / "pictures")
    assert (run.counts["embedded"], run.counts["rejected"]) == (16, 0)

    again = make_demo_collection(tmp_path, count=16)
    assert [kept.run_id for kept in again.runs()] == [run.run_id]
    assert again.versions() == ["000001"]


def test_the_second_night_holds_the_changes(tmp_path: Path) -> None:
    nights = make_nights(tmp_path, count=40)
    before, after = (Searcher.open(nights.nightly, version) for version in ("000001", "000002"))
    found = changes(before, after)
    assert set(found.added) == set(nights.new)
    assert set(found.removed) == {*nights.gone, *nights.broken}
    assert set(found.edited) == set(nights.edited)
    assert [row["image_id"] for row in list_rejects(nights.nightly)] == sorted(nights.broken)
    other = Searcher.open(nights.other)
    assert other.ntotal == after.ntotal == 40 - 12 - 3 + 20
    assert other.model.fingerprint != after.model.fingerprint
