"""The sizing guide: its table says what its figures say, and what is measured is right on small inputs."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from benchmarks.common.process import in_new_process
from benchmarks.scale import __main__ as scale
from benchmarks.scale.costs import FIGURES, PAGE, Cost, Costs
from benchmarks.scale.images import photo, row_bytes
from benchmarks.scale.listing import listing
from benchmarks.scale.requests import Counting, requests
from tests.support.paths import DOCS

COSTS = Costs(
    date="2026-11-21",
    machine="2 cores",
    quick=False,
    costs=[
        Cost(what="decode a JPEG", unit="CPU ms", costs={"at reduced scale": 5.5239, "in full": 1234.5}),
        Cost(what="a crop", unit="bytes", costs={"": 150700.0}),
        Cost(what="faiss factory", unit="", costs={"fast": "IVF632"}),
        Cost(what="open it", unit="requests", costs={}),
    ],
)


def test_the_page_has_the_costs_of_its_record() -> None:
    page, costs = (DOCS / PAGE).read_text(), Costs.read(DOCS)
    assert page == costs.put_into(page), "run python -m benchmarks.scale --write docs"
    assert not costs.quick, "run python -m benchmarks.scale --write docs, without --quick"


def test_costs_are_a_table_between_two_marks() -> None:
    page = COSTS.put_into("before\n<!-- costs -->\nstale\n<!-- end of costs -->\nafter")
    assert page == (
        "before\n<!-- costs -->\n\nMeasured 2026-11-21 on 2 cores.\n\n| what | unit | costs |\n|---|---|---|\n"
        "| decode a JPEG | CPU ms | 5.52 at reduced scale, 1,234 in full |\n| a crop | bytes | 150,700 |\n"
        "| faiss factory |  | `IVF632` fast |\n| open it | requests | none |\n\n<!-- end of costs -->\nafter"
    )
    assert COSTS.put_into(page) == page
    assert "nothing to plan with" in COSTS.model_copy(update={"quick": True}).table()


def test_costs_come_back_from_their_record_in_four_digits(tmp_path: Path) -> None:
    (tmp_path / PAGE).write_text("<!-- costs -->\n<!-- end of costs -->")
    COSTS.write(tmp_path)
    assert Costs.read(tmp_path).costs[0].costs == {"at reduced scale": 5.524, "in full": 1234.0}
    assert (tmp_path / PAGE).read_text() == COSTS.put_into("<!-- costs -->\n<!-- end of costs -->")
    record = (tmp_path / FIGURES).read_text()
    (tmp_path / FIGURES).write_text(record.replace('"what"', '"which"'))
    with pytest.raises(ValidationError, match="which"):
        Costs.read(tmp_path)


def test_a_folder_without_the_page_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scale", "--write", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        scale.main()
    assert f"{tmp_path} has no scale.md" in capsys.readouterr().err


def test_photos_are_seeded_and_have_the_spectrum_of_photographs() -> None:
    picture = np.asarray(photo(512, 256), np.float32)
    assert picture.shape == (256, 512, 3)
    assert np.array_equal(picture, np.asarray(photo(512, 256), np.float32))
    light = picture.mean(axis=-1) - picture.mean()
    power = np.abs(np.fft.rfft(light, axis=1)).mean(axis=0)
    # Along a line amplitudes fall as 1 ÷ √frequency: power is 1 ÷ f² over the plane.
    slope = np.polyfit(np.log(np.arange(4, 100)), np.log(power[4:100]), 1)[0]
    assert -0.75 < slope < -0.35


def test_bytes_of_a_row_follow_its_dimensions(tmp_path: Path) -> None:
    few, many, more, of_manifest = (list(map(float, each.costs.values())) for each in row_bytes(tmp_path))
    assert 0.85 < (more[1] - many[1]) / (256 * 4) < 1  # 768 and 512 dimensions; zstd takes a little off
    assert abs(few[0] - few[1]) < 50  # files of 256 and of 4,096 rows
    assert 100 < of_manifest[0] < 250


def test_requests_are_counted_by_method() -> None:
    def answered(environ: dict[str, str], start_response: object) -> Iterable[bytes]:
        return [environ["REQUEST_METHOD"].encode()]

    counting = Counting(answered)
    queries = {"HEAD": "", "PUT": "partNumber=1", "POST": ""}
    for method, query in (("GET", ""), ("GET", "list-type=2&prefix=a"), *queries.items()):
        answer = counting({"REQUEST_METHOD": method, "QUERY_STRING": query}, None)  # type: ignore[arg-type]
        assert answer == [method.encode()]
    assert counting.take() == {"GET": 1, "LIST": 1, "HEAD": 1, "PUT": 1, "POST": 1}
    assert not counting.take()


@pytest.mark.slow
def test_what_each_step_asks_of_a_bucket(tmp_path: Path) -> None:
    found = {each.what: each.costs for each in in_new_process(requests, tmp_path)}
    assert 1 <= float(found["list, for each 1,000 pictures"]["LIST"]) <= 3  # ranges that turn out empty cost requests
    assert found["fetch, for each picture"]["GET"] == 1
    assert found["write, for each row file"] == {"PUT": 1}
    assert found["open it, for each segment"]["GET"] == 2  # vectors and rows
    # Each file's ids, then what is needed of it: some columns by ranges, or all of it at once.
    most = {"write": 1.0, "commit": 1.0, "read the ids": 3.0, "compare": 6.0}
    # Opening reads no row file. But the held-out queries of eight more need a second part, of 8 MiB, on both ways.
    most |= {"build the index": 4 + 3 / 8, "open it": 1 / 8}
    for step, requests_of_a_file in most.items():
        assert sum(map(float, found[f"{step}, for each row file"].values())) <= requests_of_a_file, step


def test_listing_and_comparing_cost_what_more_of_them_take(tmp_path: Path) -> None:
    of_listing, of_comparing = listing(tmp_path, files=2_000, rows=20_000)[1::2]
    # A process of 150 MB, divided by 2,000 files, would be 75 kB.
    for memory in (of_listing, of_comparing):
        assert 0 <= float(memory.costs[""]) < 20_000, memory
