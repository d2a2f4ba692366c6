"""The two nights of the demo: what the second finds changed is what its index version has."""

from pathlib import Path

from index.analysis.compare import changes
from index.search import Searcher
from jobs.demo.nights import make_nights
from jobs.planning.rejects import list_rejects


def test_the_second_night_holds_what_has_changed(tmp_path: Path) -> None:
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
