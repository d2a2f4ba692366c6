"""The small demo collection, which is what `likeness demo` would make, without Ray."""

from pathlib import Path

from index.search import Searcher
from jobs.demo.collection import make_demo_collection


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
