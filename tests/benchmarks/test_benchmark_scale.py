"""The sizing guide: its page says what its figures say, and its examples are the arithmetic that they claim to be."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from rich.console import Console

from benchmarks.index.upkeep import in_new_process
from benchmarks.scale import __main__ as scale
from benchmarks.scale.costs import Costs, Decoding, Index, Line, Listing, Machine, Model, Requests, RowBytes, Scan
from benchmarks.scale.examples import LISTED_AT_ONCE, READ_AT_ONCE, Assumed, Example, index_steps, job_steps, night
from benchmarks.scale.images import photo, row_bytes
from benchmarks.scale.index import FAST, LEAN
from benchmarks.scale.limits import limits
from benchmarks.scale.listing import listing
from benchmarks.scale.page import rendered
from benchmarks.scale.requests import Counting, requests
from benchmarks.scale.serving import serving
from benchmarks.scale.text import amount, duration, table
from index.collection import row_files
from index.storage import list_objects
from tests.support.paths import DOCS

MILLION = 1_000_000


def _index(kind: str, rows: int, core_ms: float) -> Index:
    """However few the rows, a server takes 50 MB, a build 300 MB, and finding one 0.1 ms."""
    return Index(
        kind=kind,
        rows=rows,
        dim=512,
        factory="IVF",
        recall=0.99,
        build_s=60,
        build_core_s=120,
        peak_bytes=300e6 + 2_000 * rows,
        peak_own_bytes=300e6 + 1_000 * rows,
        truth_core_s=20,
        check_s=4,
        ann_bytes=552 * rows,
        vectors_bytes=2_048 * rows,
        rows_bytes=400 * rows,
        own_bytes=50e6 + 10 * rows,
        mapped_bytes=(590 if kind == FAST else 50) * rows,
        core_ms=core_ms,
        p50_ms=0.4,
        candidates=22,
        lookup_ms=0.1 + rows / 1e5,
    )


def _requests(step: str, unit: str, total: float) -> Requests:
    return Requests(step=step, unit=unit, put=0, get=total, head=0, list=0, other=0)


COSTS = Costs(
    machine=Machine(date="2026-11-21", cpu="AMD", cores=2, memory_bytes=24 * 10**9, python="3.11", quick=False),
    decoding=[
        Decoding(picture="JPEG 4:2:0", width=2000, height=1500, draft=True, file_bytes=1_200_000, cpu_ms=30),
        Decoding(picture="JPEG 4:2:0", width=2000, height=1500, draft=False, file_bytes=1_200_000, cpu_ms=90),
        Decoding(picture="JPEG 4:2:0", width=4000, height=3000, draft=True, file_bytes=5_000_000, cpu_ms=60),
    ],
    crop_bytes=150_600,
    models=[Model(name="ViT-B/32", side=224, core_ms=100)],
    rows=[RowBytes(dim=512, block=block, bytes=2_000) for block in (256, 4096)],
    listing=Listing(
        listed=1000,
        listing_s=1e-5,
        listing_bytes=800,
        compared=1000,
        comparing_s=2e-5,
        comparing_bytes=1_000,
        manifest_bytes_per_file=150,
    ),
    indexes=[
        _index(FAST, 250_000, 0.1),
        _index(LEAN, 250_000, 0.2),
        _index(FAST, MILLION, 0.2),
        _index(LEAN, MILLION, 0.4),
    ],
    scan=Scan(rows=1000, dim=512, core_ms=1, p50_ms=2),
    requests=[
        _requests("list", "1,000 pictures", 1),
        _requests("fetch", "picture", 2),
        _requests("write", "row file", 3),
        _requests("commit", "row file", 2),
        _requests("read the ids", "row file", 3),
        _requests("compare", "row file", 6),
        _requests("build the index", "row file", 4),
        _requests("open it", "segment", 4),
    ],
)
ONE = Example(images=MILLION, machines=1, block=256, segment_rows=MILLION)
MANY = Example(images=100 * MILLION, machines=8, block=4096, segment_rows=4 * MILLION)


def test_the_page_has_the_figures_of_its_json() -> None:
    page = (DOCS / scale.PAGE).read_text()
    assert page == rendered(page, Costs.read(DOCS / scale.FIGURES)), "run python -m benchmarks.scale --render docs"


def test_what_is_published_is_of_a_whole_run() -> None:
    machine = Costs.read(DOCS / scale.FIGURES).machine
    assert (machine.quick, machine.kept) == (False, []), "run python -m benchmarks.scale --write docs, without --quick"


def test_no_figure_is_written_twice_and_all_are_of_known_names(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="of-nothing"):
        rendered("<!-- figures: of-nothing -->\n<!-- end of figures -->", COSTS)
    page = "before\n<!-- figures: machine -->\nstale\n<!-- end of figures -->\nafter"
    once = rendered(page, COSTS)
    assert "stale" not in once
    assert once.startswith("before\n<!-- figures: machine -->\n\nMeasured 2026-11-21 on 2 cores of AMD with 24 GB of")
    assert once.endswith("<!-- end of figures -->\nafter")
    assert rendered(once, COSTS) == once
    quick = COSTS.model_copy(update={"machine": COSTS.machine.model_copy(update={"quick": True})})
    assert "not to be planned with" in rendered(page, quick)
    assert "not to be planned with" not in once


def test_figures_come_back_from_their_file_and_a_stranger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    COSTS.model_copy(update={"crop_bytes": 150_612.345}).write(path)
    assert Costs.read(path) == COSTS  # four digits
    path.write_text(path.read_text().replace('"crop_bytes"', '"crop_size"'))
    with pytest.raises(ValidationError, match="crop_size"):
        Costs.read(path)


def test_a_job_is_as_slow_as_its_slowest_resource() -> None:
    listing, decode, embed, write = job_steps(COSTS, ONE, Assumed(cores=16, gpu_images_per_s=1_000))
    # 1,000 pages of 0.1 s, 32 at once, in less than the ten seconds of the driver.
    # 30 ms a picture on 16 cores against 1.2 MB at 1.25 GB/s.
    assert listing.seconds["LIST requests, 32 at once"] == pytest.approx(100 / 32)
    assert list_objects._LISTINGS == LISTED_AT_ONCE
    assert listing.total == pytest.approx(10)
    assert decode.seconds == pytest.approx({"cores": 1_875, "network": 960})
    assert decode.bottleneck == "cores"
    assert decode.total == pytest.approx(1_875)
    assert "1.2 TB read, 2,000,000 requests, 8 core hours" in decode.work
    # A GPU of 1,000 images/s takes what 30 cores decode.
    assert embed.bottleneck == "cores that decode"
    assert embed.total == pytest.approx(1_875)
    assert "what 30 cores decode" in embed.remedy
    assert "0.3 GPU hours, or 28 core hours" in embed.work
    slow_gpu = job_steps(COSTS, ONE, Assumed(cores=64, gpu_images_per_s=1_000))[2]
    assert slow_gpu.bottleneck == "GPUs"
    assert slow_gpu.total == pytest.approx(1_000)
    # 2 requests of 30 ms for each of 3,906 files, after 2 GB over the network.
    assert write.total == pytest.approx(MILLION / 256 * 2 * 0.03 / 16 + 2e9 / 1.25e9)
    assert write.bottleneck == "requests of the commit, 16 at once"


def test_an_index_is_finished_by_one_process_alone() -> None:
    build, finish = index_steps(COSTS, ONE, Assumed())
    assert build.seconds["cores"] == pytest.approx((120 - 20) / 16)
    opened = build.seconds["row files that the driver opens, 16 at once"]
    assert opened == pytest.approx(MILLION / 256 * 0.09 / 16)
    assert finish.seconds == pytest.approx(
        {"copying from the bucket": 3e9 / 1.25e9, "checksums": 4 / 16, "exact neighbours": 20 / 16}
    )
    build, finish = index_steps(COSTS, MANY, Assumed())
    assert build.seconds["cores"] == pytest.approx(100 * 100 * 2 / 128)  # four times the rows, twice the lists
    assert "25 of 4,000,000 rows" in build.work
    assert "4.3 GB of memory each" in build.work  # not 1.3 GB four times
    assert finish.total == pytest.approx(100 * (2.4 + 0.25 + 1.25))  # more machines do not help


def test_serving_is_bounded_by_memory_cores_reads_and_the_front() -> None:
    assert COSTS.growth(FAST) == pytest.approx(0.5)
    one = serving(COSTS, ONE, Assumed(), FAST)
    assert one.shards == 1
    assert [one.memory_bytes, one.core_ms] == pytest.approx([6.5e8, 0.2])
    assert one.bottleneck == "cores"  # all of it fits in memory
    assert one.rate == pytest.approx(80_000)
    many = serving(COSTS, MANY, Assumed(), FAST)
    assert many.shards == 2  # 60 GB, 48 GB a machine
    assert many.core_ms == pytest.approx(25 * 0.2 * 2)
    assert many.front == pytest.approx(16_000)
    # 25 segments × 22 vectors, of which what 115.2 − 60.1 GB hold of 204.8 GB is in memory.
    assert many.reads == pytest.approx(2 * 300_000 / (25 * 22 * (1 - 55.1 / 204.8)))
    assert many.rate == many.reads
    assert many.bottleneck == "random reads from disk"
    assert serving(COSTS, MANY, Assumed(), LEAN).shards == 1  # 6 GB
    small = Assumed(disk_bytes=1e11)
    assert serving(COSTS, MANY, small, LEAN).shards == 4  # 300 GB on disks of 90


def test_a_line_has_no_part_below_zero() -> None:
    def of(small: float, large: float) -> Line:
        indexes = [
            _index(FAST, rows, 1).model_copy(update={"own_bytes": own}) for rows, own in ((100, small), (300, large))
        ]
        return COSTS.model_copy(update={"indexes": indexes}).line(FAST, lambda each: each.own_bytes)

    assert of(200, 400) == Line(100, 1)
    assert of(200, 400).at(1000) == 1100
    assert of(50, 600) == Line(0, 2)  # more than in proportion
    assert of(70, 60) == Line(60, 0)


def test_a_night_costs_a_look_at_everything() -> None:
    it = night(COSTS, MANY, Assumed())
    assert it.seconds["comparing, on the driver"] == pytest.approx(2_000)
    assert row_files._THREADS == READ_AT_ONCE
    assert it.seconds["row files that the driver opens, 16 at once"] == pytest.approx(MANY.files * 6 * 0.03 / 16)
    # The new hundredth of 300 GB.
    assert it.seconds["downloading the new segments"] == pytest.approx(2.4)
    assert "each server download 3 GB of new segments, or all 300 GB where their cache is empty" in it.work
    assert it.seconds["fetching, decoding, embedding"] == pytest.approx(MILLION * 0.03 / 128)
    assert it.bottleneck == "comparing, on the driver"


def test_limits_come_in_the_order_in_which_they_are_met() -> None:
    found = limits(COSTS, Assumed())
    numbers = [limit.images for limit in found]
    assert numbers == sorted(numbers)
    by_name = {limit.what: limit.images for limit in found}
    assert by_name["the driver's memory, comparing on 64 GB"] == pytest.approx(64e6)
    assert by_name["commit of a run, `--block-size 256`: an hour"] == pytest.approx(256 * 3600 * 16 / 0.06)


def test_amounts_durations_and_tables_for_people() -> None:
    assert [amount(size) for size in (999.0, 1.5e6, 64e9, 250e9, 2.75e12, 3e15)] == [
        "0.999 kB",
        "1.5 MB",
        "64 GB",
        "250 GB",
        "2.75 TB",
        "3 PB",
    ]
    assert [duration(seconds) for seconds in (0.5, 90.0, 600.0, 3 * 3600.0, 10 * 86400.0)] == [
        "under 1 s",
        "90 s",
        "10 min",
        "3 h",
        "10 days",
    ]
    assert table(("a", "b"), [(1.23456, 12345), (1234.5, "x")]) == (
        "| a | b |\n| --- | --- |\n| 1.23 | 12,345 |\n| 1,234 | x |"
    )


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
    found, of_manifest = row_bytes(tmp_path)
    by = {(each.dim, each.block): each.bytes for each in found}
    assert 0.85 < (by[768, 4096] - by[512, 4096]) / (256 * 4) < 1  # zstd takes a little off
    assert abs(by[64, 256] - by[64, 4096]) < 50
    assert 100 < of_manifest < 250


def test_requests_are_counted_by_method() -> None:
    def answered(environ: dict[str, str], start_response: object) -> Iterable[bytes]:
        return [environ["REQUEST_METHOD"].encode()]

    counting = Counting(answered)
    for method, query in (
        ("GET", ""),
        ("GET", "list-type=2&prefix=a"),
        ("HEAD", ""),
        ("PUT", "partNumber=1"),
        ("POST", ""),
    ):
        answer = counting({"REQUEST_METHOD": method, "QUERY_STRING": query}, None)  # type: ignore[arg-type]
        assert answer == [method.encode()]
    assert counting.take() == {"get": 1, "list": 1, "head": 1, "put": 1, "other": 1}
    assert not counting.take()


@pytest.mark.slow
def test_what_each_step_asks_of_a_bucket(tmp_path: Path) -> None:
    found = {(each.step, each.unit): each for each in in_new_process(requests, tmp_path)}
    assert 1 <= found["list", "1,000 pictures"].list <= 3  # ranges that turn out empty cost requests
    assert found["fetch", "picture"].get == 1
    assert found["write", "row file"].put == 1
    assert found["open it", "segment"].get == 2  # vectors and rows
    assert found["open it", "row file"].total == 0
    # Each file's ids, then what is needed of it: some columns by ranges, or all of it at once.
    totals = {step: each.total for (step, unit), each in found.items() if unit == "row file"}
    assert totals == {"write": 1, "commit": 1, "read the ids": 3, "compare": 6, "build the index": 4, "open it": 0}


def test_a_part_that_fails_keeps_its_figures_and_the_others_are_there_at_once() -> None:
    def fails() -> dict[str, object]:
        raise OSError("disk full")

    parts: dict[str, Callable[[], dict[str, object]]] = {
        "rows": lambda: {"crop_bytes": 7.0},
        "models": fails,
        "requests": lambda: {"requests": []},
    }
    first, second, third = scale.measure(parts, COSTS, Console(quiet=True), quick=False)
    assert (first.crop_bytes, first.requests, first.machine.kept) == (7.0, COSTS.requests, ["models", "requests"])
    assert (second.models, second.machine.kept) == (COSTS.models, ["models", "requests"])
    assert (third.models, third.requests, third.machine.kept) == (COSTS.models, [], ["models"])
    quick = COSTS.model_copy(update={"machine": COSTS.machine.model_copy(update={"quick": True})})
    assert [costs.machine.quick for costs in scale.measure(parts, quick, Console(quiet=True), quick=False)] == [
        True
    ] * 3
    page = rendered("<!-- figures: machine -->\n<!-- end of figures -->", third)
    assert "Not measured this time, and kept from the run before: models." in page


@pytest.mark.parametrize(
    ("larger_ms", "said"),
    [
        (0.2, "to the power of 0.50: four times the rows cost 2.0 times as much, so few large segments search faster"),
        (0.4, "cost 4.0 times as much, so the size of segments makes little difference"),
        (0.8, "cost 8.0 times as much, so small segments searched faster here"),
    ],
)
def test_what_the_page_advises_follows_the_figures(larger_ms: float, said: str) -> None:
    indexes = [_index(FAST, 250_000, 0.1), _index(FAST, MILLION, larger_ms)]
    costs = COSTS.model_copy(update={"indexes": indexes + [each for each in COSTS.indexes if each.kind == LEAN]})
    assert said in rendered("<!-- figures: index -->\n<!-- end of figures -->", costs)


def test_listing_and_comparing_cost_what_more_of_them_take(tmp_path: Path) -> None:
    found = listing(tmp_path, files=2_000, rows=20_000, manifest_bytes_per_file=150)
    assert (found.listed, found.compared, found.manifest_bytes_per_file) == (2_000, 20_000, 150)
    # A process of 150 MB, divided by 2,000 files, would be 75 kB.
    assert 0 < found.listing_bytes < 20_000
    assert 0 < found.comparing_bytes < 20_000
    assert 0 < found.listing_s < 0.05


def test_a_folder_without_the_page_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scale", "--write", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        scale.main()
    assert f"{tmp_path} has no scale.md" in capsys.readouterr().err
    page = "<!-- figures: machine -->\n<!-- end of figures -->\n"
    (tmp_path / "scale.md").write_text(page)
    COSTS.write(tmp_path / "scale.json")
    monkeypatch.setattr("sys.argv", ["scale", "--render", str(tmp_path)])
    assert scale.main() == 0
    assert (tmp_path / "scale.md").read_text() == rendered(page, COSTS)
