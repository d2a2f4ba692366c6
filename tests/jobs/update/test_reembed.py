"""Re-embedding, night by night: which images need the model, which rows result, and when a night is refused."""

import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from embedder.errors import FetchError
from embedder.fetch import Fetcher
from embedder.fetch.validators import Download
from embedder.models.checkpoint import Checkpoint
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import LeaseLostError, NotACollectionError
from index.search import Searcher
from index.versions.promotion import rollback
from jobs.errors import SourceError, TooManyMissingError, TooManyRejectsError
from jobs.schedule.spec_file import read_spec
from jobs.update import Update
from likeness.cli import app
from tests.support.collections.hand_made import add_run, add_version, metadata_of, rows
from tests.support.collections.rejects_and_checks import list_rejects
from tests.support.collections.storage_steps import KilledError, at, expire, is_step, kill
from tests.support.listings import write_files
from tests.support.nights.quiet_night import make_job
from tests.support.nights.reembed_nights import (
    DEMO,
    Nights,
    assert_rows_match_files,
    bmp,
    bmps,
    copy_nights,
    save_nights,
    vector_of,
)

LENIENT = 0.5


class CrashedError(Exception):
    pass


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_nights(
        tmp_path_factory.mktemp("nights"), {f"a/{name}": data for name, data in bmps(*range(10)).items()}
    )


@pytest.fixture
def nights(saved: Path) -> Nights:
    """Ten pictures, embedded and indexed."""
    nights = copy_nights(saved)
    nights.embedded.append([f"a/{n}.bmp" for n in range(10)])
    return nights


@pytest.fixture
def tmp_path(nights: Nights) -> Path:
    """Beside the pictures, for lists of them."""
    return nights.pictures.parent


def later(path: Path) -> None:
    """Set the file's time a second later."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def test_a_night_embeds_new_and_changed_images_and_deletes_missing_ones(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nights.pictures / "b.bmp").write_bytes(bmp(11))
    (nights.pictures / "a" / "3.bmp").write_bytes(bmp(12))
    later(nights.pictures / "a" / "3.bmp")
    (nights.pictures / "a" / "7.bmp").unlink()
    found, find = list[str](), Checkpoint.find

    def find_model(model: str, revision: str | None = None) -> Checkpoint:
        found.append(model)
        return find(model, revision)

    monkeypatch.setattr(Checkpoint, "find", find_model)
    report = nights.night()
    assert found == [DEMO]  # its weights are read once
    assert sorted(nights.embedded[1]) == ["a/3.bmp", "b.bmp"]
    counts = report.counts
    assert (counts.unchanged, counts.new, counts.changed, counts.to_embed) == (8, 1, 1, 2)
    assert (counts.missing, counts.moved, counts.deleted) == (1, 0, 1)
    assert (report.embedded, report.index_after, report.promoted) == (2, "000002", True)
    assert_rows_match_files(nights)
    assert Searcher.open(nights.collection).ntotal == 10


def test_moved_copied_and_touched_files_need_no_model(nights: Nights) -> None:
    nights.index = False
    folder = nights.pictures / "a"
    shutil.move(folder / "0.bmp", nights.pictures / "moved.bmp")
    shutil.copy(folder / "1.bmp", nights.pictures / "copied.bmp")
    later(folder / "2.bmp")
    report = nights.night(max_missing=0)  # what has moved is not missing
    assert nights.embedded[1] == []
    counts = report.counts
    assert (counts.new, counts.changed, counts.reused, counts.to_embed) == (2, 1, 3, 0)
    assert (counts.missing, counts.moved, counts.deleted) == (1, 1, 1)
    assert_rows_match_files(nights)
    assert nights.night().counts.unchanged == 11


def test_changed_bytes_of_the_same_size_and_time_are_found_by_reading_them(nights: Nights) -> None:
    nights.index = False
    path = nights.pictures / "a" / "3.bmp"
    status = path.stat()
    path.write_bytes(bmp(30))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert nights.night().counts.unchanged == 10
    report = nights.night(verify_hash=True)
    assert (report.counts.changed, nights.embedded[-1]) == (1, ["a/3.bmp"])
    assert_rows_match_files(nights)


def test_more_missing_than_allowed_stops_the_night(nights: Nights) -> None:
    """In any spelling of the source."""
    nights.index = False
    for seed in range(3):
        (nights.pictures / "a" / f"{seed}.bmp").unlink()
    message = r"3 of the 10 images .* \(30.0%, over the 20% .*--max-missing 0.31"
    for source, dry_run in (("{}", True), ("file://{}", False), ("{}/a/..", False), ("{}/", False)):
        with pytest.raises(TooManyMissingError, match=message):
            nights.night(source=source.format(nights.pictures), dry_run=dry_run)
    assert len(nights.collection.live_rows(["image_id"])) == 10
    assert nights.night(source=f"file://{nights.pictures}/", max_missing=0.31).counts.deleted == 3
    assert_rows_match_files(nights)


def test_an_empty_source_deletes_nothing(nights: Nights) -> None:
    nights.pictures.rename(nights.pictures.with_name("unmounted"))
    for missing in ("keep", "delete"):
        with pytest.raises(SourceError, match="does not exist"):
            nights.night(missing=missing)
    nights.pictures.mkdir()
    with pytest.raises(SourceError, match="is empty"):
        nights.night(missing="keep")
    with pytest.raises(TooManyMissingError, match="10 of the 10 images"):
        nights.night(missing="delete")
    assert len(nights.collection.live_rows(["image_id"])) == 10


def test_the_last_images_of_a_collection_are_not_deleted(nights: Nights, tmp_path: Path) -> None:
    """An index cannot be empty, so searches would still find them."""
    for path in (nights.pictures / "a").iterdir():
        path.unlink()
    runs = nights.collection.runs()
    with pytest.raises(
        TooManyMissingError, match=r"10 of the 10 images .* no others, .* remove the collection, or embed"
    ):
        nights.night(max_missing=1.0)
    assert nights.collection.runs() == runs
    nights.night(source=write_files(tmp_path / "other", bmps(20)))
    assert nights.night(max_missing=1.0).counts.deleted == 10
    assert Searcher.open(nights.collection).ntotal == 1


def test_rows_of_another_source_are_replaced_within_limits(
    nights: Nights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.index = False
    other = tmp_path / "other"
    write_files(other / "a", {f"{seed}.bmp": bmp(20 + seed) for seed in range(3)})
    before = nights.collection.live_rows().to_pylist()
    for dry_run in (True, False):
        with pytest.raises(
            TooManyMissingError, match=r"3 of the 10 images of .*/pictures .*30.0%.* --max-missing 0.31"
        ):
            nights.night(source=other, dry_run=dry_run, missing="keep")
    assert nights.collection.live_rows().to_pylist() == before
    (other / "a" / "2.bmp").unlink()
    for dry_run in (True, False):
        report = nights.night(source=other, dry_run=dry_run, console=Console(width=500))
        assert (report.counts.changed, report.counts.replaced) == (2, 2)
        printed = capsys.readouterr().out
        assert "2 ids belong to images elsewhere, which will be replaced; the first is a/0.bmp, now" in printed
        assert str(before[0]["uri"]) in printed
    assert nights.night(source=other).counts.replaced == 0
    assert nights.night(max_missing=1.0).counts.replaced == 2


def test_a_column_of_the_source_that_an_annotation_hides_is_warned_of(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*, dry_run: bool = False) -> str:
        nights.night(dry_run=dry_run, console=Console(width=500))
        return capsys.readouterr().out

    app.app(["annotate", nights.location, "--name", "kind", "--clusters", "2"], standalone_mode=False)
    capsys.readouterr()
    nights.pictures.joinpath("list.csv").write_text("file_name,year,kindness\na/0.bmp,2024,1\n")
    assert "hides" not in printed()
    nights.pictures.joinpath("list.csv").write_text("file_name,kind,kind_score,kind_of\na/0.bmp,mine,2,x\n")
    warning = (
        "the annotation kind hides the source's columns kind, kind_score from searches: rename them in the source, "
    )
    advice = f"or drop the annotation (`likeness columns {nights.location} --drop kind`)"
    for dry_run in (True, False, False):
        assert warning + advice in printed(dry_run=dry_run)
    row = metadata_of(nights.collection)["a/0.bmp"]
    assert row["kind"] != "mine"
    assert row["kind_of"] == "x"
    app.app(["columns", nights.location, "--drop", "kind"], standalone_mode=False)
    capsys.readouterr()
    assert "hides" not in printed()
    assert metadata_of(nights.collection)["a/0.bmp"]["kind"] == "mine"


def test_a_dry_run_writes_nothing(nights: Nights, tmp_path: Path) -> None:
    (nights.pictures / "b.bmp").write_bytes(bmp(11))
    shutil.move(nights.pictures / "a" / "1.bmp", nights.pictures / "c.bmp")
    before = sorted(path for path in Path(nights.location).rglob("*"))
    report = nights.night(dry_run=True)
    assert sorted(path for path in Path(nights.location).rglob("*")) == before
    counts = report.counts
    assert (counts.new, counts.to_embed, counts.reused, counts.deleted) == (2, 1, 1, 1)
    assert (report.runs, report.promoted, report.dry_run) == ([], False, True)
    first = Nights(nights.pictures, str(tmp_path / "new"))
    report = first.night(DEMO, dry_run=True)
    assert (report.counts.new, report.index_before) == (report.counts.listed, None)
    assert not (tmp_path / "new").exists()
    with pytest.raises(NotACollectionError, match="has files that are not a collection's"):
        Nights(nights.pictures, str(nights.pictures)).night(DEMO, dry_run=True)


def test_a_broken_file_is_not_fetched_again_until_it_changes(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.index = False
    broken = nights.pictures / "broken.png"
    broken.write_bytes(b"no picture")
    report = nights.night(max_reject_rate=LENIENT)
    assert (report.rejected, report.failed) == (1, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "download", None)
        report = nights.night(max_reject_rate=LENIENT)
    assert (report.counts.unchanged, report.counts.retried) == (11, 0)
    broken.write_bytes(bmp(40))
    report = nights.night(max_reject_rate=LENIENT)
    assert (report.counts.changed, report.counts.retried, nights.embedded[-1]) == (1, 0, ["broken.png"])
    assert_rows_match_files(nights)


def test_failed_fetches_are_tried_again_every_night(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    (nights.pictures / "b.bmp").write_bytes(bmp(11))
    fetch = Fetcher.download

    def time_out(fetcher: Fetcher, uri: str) -> Download:
        if uri.endswith("/b.bmp"):
            raise FetchError("timeout", f"{uri}: too slow", retryable=True)
        return fetch(fetcher, uri)

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "download", time_out)
        report = nights.night(max_reject_rate=LENIENT)
        assert (report.counts.new, report.counts.retried, report.rejected, report.failed) == (1, 0, 0, 1)
        report = nights.night(max_reject_rate=LENIENT)
        assert (report.counts.changed, report.counts.retried, report.failed) == (0, 1, 1)
        # Nothing has changed: an identical version would push out one that could be rolled back to.
        assert (report.runs, report.promoted) == ([], False)
    assert [row["error_reason"] for row in list_rejects(nights.collection)] == ["timeout"]
    report = nights.night(max_reject_rate=LENIENT)
    assert (report.counts.retried, report.embedded, report.failed) == (1, 1, 0)
    assert nights.embedded[1:] == [["b.bmp"]] * 3
    assert_rows_match_files(nights)
    assert nights.night(max_reject_rate=LENIENT).runs == []


def test_a_list_whose_pictures_were_unreachable_is_embedded_later(nights: Nights, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("".join(["uri\n", *(f"pictures/a/{seed}.bmp\n" for seed in range(10))]))
    nights.pictures.rename(tmp_path / "unmounted")
    nights = Nights(listed, str(tmp_path / "listed"), index=False)
    with pytest.raises(TooManyRejectsError, match="10 of 10 images were rejected"):
        nights.night(DEMO)
    (tmp_path / "unmounted").rename(tmp_path / "pictures")
    assert nights.night(DEMO).embedded == 10
    assert nights.night().runs == []


# Metadata


def test_new_labels_need_no_model(nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nights.pictures / "a" / "2.bmp").write_bytes(b"no picture")
    listed = tmp_path / "list.csv"

    def write_list(header: str, *rows: str) -> None:
        lines = (f"pictures/a/{seed}.bmp,{rest}" for seed, rest in enumerate(rows))
        listed.write_text("\n".join([f"uri,{header}", *lines]))

    write_list("label,stars", "cat,1", "dog,2", "none,3")
    nights = Nights(listed, str(tmp_path / "listed"))
    nights.night(DEMO, max_reject_rate=LENIENT)
    monkeypatch.setattr(Fetcher, "download", None)
    write_list("label,year", "cat,1999", "wolf,2001", "broken,")
    report = nights.night(max_reject_rate=LENIENT)
    counts = report.counts
    assert (counts.changed, counts.reused, counts.to_embed, counts.missing, report.promoted) == (3, 3, 0, 0, True)
    assert "stars" not in nights.collection.live_rows().column_names
    rows = nights.collection.live_rows(["label", "year", "error_reason"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("cat", 1999, None),
        ("wolf", 2001, None),
        ("broken", None, "not_an_image"),
    ]
    searcher = Searcher.open(nights.collection)
    [[found]] = searcher.search([vector_of(bmp(1), DEMO)], 3, filter={"label": "wolf"})
    assert (found.metadata["label"], found.metadata["year"]) == ("wolf", 2001)
    write_list("label,year", "cat,1999", "wolf,2001", "broken,")
    assert nights.night(max_reject_rate=LENIENT).runs == []


def test_a_crashed_run_gets_labels_that_changed_since(nights: Nights, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("uri,label\npictures/a/0.bmp,cat\npictures/a/1.bmp,dog\n")
    nights = Nights(listed, str(tmp_path / "listed"), index=False)
    with pytest.raises(KilledError), at(is_step("run manifest"), after=False, action=kill):
        nights.night(DEMO)
    expire(nights.collection.storage)
    listed.write_text("uri,label\npictures/a/0.bmp,cat\npictures/a/1.bmp,wolf\n")
    assert nights.night(DEMO).counts.reused == 2
    assert nights.embedded[1] == []
    assert nights.collection.live_rows(["label"])["label"].to_pylist() == ["cat", "wolf"]


# Another model


def test_another_model_embeds_everything_and_takes_over_with_the_index(nights: Nights, other_model: str) -> None:
    report = nights.night(other_model)
    assert (report.counts.other_model, report.counts.unchanged, len(nights.embedded[1])) == (10, 0, 10)
    live = nights.collection.read_version("000002")
    assert (report.promoted, live.dim, live.base) == (True, 32, None)
    assert_rows_match_files(nights, other_model)
    assert rollback(nights.collection).manifest.dim == 64
    assert Searcher.open(nights.collection).model.dim == 64


def test_going_back_to_a_model_needs_neither_it_nor_the_pictures(
    nights: Nights, monkeypatch: pytest.MonkeyPatch, other_model: str
) -> None:
    nights.night(other_model)
    rollback(nights.collection)
    monkeypatch.setattr("embedder.fetch.fetcher.Fetcher.download", None)
    report = nights.night()
    assert (report.counts.reused, report.counts.to_embed, nights.embedded[2]) == (10, 0, [])
    assert_rows_match_files(nights)
    assert Searcher.open(nights.collection).model.dim == 64


def test_a_crashed_model_change_resumes_while_the_old_index_answers(nights: Nights, other_model: str) -> None:
    blocks = iter([None, None])

    def crash() -> None:
        next(blocks, None)
        raise CrashedError

    with pytest.raises(CrashedError):
        nights.night(other_model, before_block=crash)
    assert Searcher.open(nights.collection).model.dim == 64
    # Nights of the old model in between do not lose the new one's work.
    (nights.pictures / "b.bmp").write_bytes(bmp(11))
    assert nights.night().embedded == 1
    report = nights.night(other_model)
    assert (len(nights.embedded[1]), report.counts.reused, len(nights.embedded[3])) == (4, 4, 7)
    assert_rows_match_files(nights, other_model)


def test_a_model_change_covers_every_source(nights: Nights, tmp_path: Path, other_model: str) -> None:
    more = write_files(tmp_path / "more", bmps(20))
    nights.night(source=more)
    report = nights.night(other_model)
    assert (report.counts.listed, report.embedded, len(report.runs)) == (11, 11, 2)
    assert Searcher.open(nights.collection).ntotal == 11
    (nights.pictures / "a" / "1.bmp").unlink()
    assert nights.night(other_model).counts.deleted == 1
    assert "20.bmp" in nights.collection.live_rows(["image_id"])["image_id"].to_pylist()


def test_the_budget_outlives_a_damaged_live_version(tmp_path: Path) -> None:
    spec = read_spec(make_job(tmp_path / "job"))
    collection, budget = Collection.open(spec.collection), IndexSettings(target_recall=0.5, max_memory=2**30)
    build_index(collection, budget)
    add_version(collection, rows(["new"]), settings=budget)
    for version, damaged in (("000004", "CURRENT"), ("000005", "index/000004/manifest.json")):
        (tmp_path / "job" / "collection" / damaged).write_text("damaged")
        add_run(collection, rows([f"newer than {version}"]))
        assert Update(spec=spec, console=Console(quiet=True)).run().index_after == version
        assert collection.read_version(version).settings == budget


def test_a_rolled_back_version_stays_so_until_something_changes(nights: Nights) -> None:
    (nights.pictures / "b.bmp").write_bytes(bmp(11))
    nights.night()
    rollback(nights.collection)
    report = nights.night()
    assert (report.index_after, report.promoted) == ("000001", False)
    assert report.note is not None
    assert "000002 has these images and was rolled back" in report.note
    (nights.pictures / "c.bmp").write_bytes(bmp(12))
    assert nights.night().index_after == "000003"


def test_a_run_overtaken_at_its_start_leaves_nothing_to_do(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    (nights.pictures / "b.bmp").write_bytes(bmp(11))
    # Both runs get the second after this one as their time, and the first to draw a token gets the later name.
    nights.collection.storage.create_folder("runs/29990101T000000Z-0000")
    drawn = iter(range(0xFFFF, 0, -1))
    monkeypatch.setattr("secrets.token_hex", lambda size: f"{next(drawn):0{2 * size}x}")

    def overtake() -> None:
        expire(nights.collection.storage)
        nights.night()

    with pytest.raises(LeaseLostError), at(lambda path: path.endswith("started.json"), after=False, action=overtake):
        nights.night()
    collection = nights.collection
    [left], last = collection.snapshot().unfinished, collection.runs()[-1]
    assert (left.run_id > last.run_id, left.run_id[:16]) == (True, last.run_id[:16])
    assert nights.night().runs == []
    assert_rows_match_files(nights)
