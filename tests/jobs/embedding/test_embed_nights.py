"""The command `embed`, run again and again: what it resumes, keeps, refuses and prints."""

import tarfile
from pathlib import Path

import pytest

from index.collection import Collection
from index.search import Searcher
from index.versions.promotion import rollback
from jobs.errors import OtherModelError
from likeness.cli.options import console
from tests.support.collections.rejects_and_checks import list_rejects
from tests.support.collections.storage_steps import KilledError, at, expire, is_step, kill
from tests.support.listings import write_files
from tests.support.nights.reembed_nights import DEMO, Nights, assert_rows_match_files, bmps


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 500)


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    """Ten pictures, and a collection that does not exist yet."""
    return Nights(write_files(tmp_path / "my pictures", bmps(*range(10))), str(tmp_path / "collection"))


def ids(collection: Collection) -> list[str]:
    return [str(image_id) for image_id in collection.live_rows(["image_id"])["image_id"].to_pylist()]


def test_an_interrupted_embed_is_resumed_after_a_job_of_another_source(nights: Nights, tmp_path: Path) -> None:
    """Neither names the model, which the first one has chosen."""
    with pytest.raises(KilledError), at(is_step("run manifest"), after=False, action=kill):
        nights.embed()
    expire(nights.collection.storage)
    nights.embed(write_files(tmp_path / "other", bmps(20, 21)), None)
    nights.embed(model=None)
    assert [len(night) for night in nights.embedded] == [10, 2, 0]
    assert_rows_match_files(nights)
    assert Searcher.open(nights.collection).ntotal == 12


def test_embed_names_missing_images_and_the_command_that_removes_them(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --extensions, first as many as `reembed` allows by default, then more."""
    options = ("--extensions", "bmp,png")
    command = f"`likeness reembed '{nights.pictures}' {nights.location} --extensions bmp,png"
    nights.embed(None, DEMO, *options)
    assert "likeness reembed" not in capsys.readouterr().out
    (nights.pictures / "0.bmp").unlink()
    (nights.pictures / "1.bmp").rename(nights.pictures / "moved.bmp")
    nights.embed(None, DEMO, *options)
    assert nights.embedded[1] == []
    said = capsys.readouterr().out
    assert f"searches still find 2 images gone from {nights.pictures}, or moved there" in said
    assert f"{command}` removes what is gone" in said
    assert {"0.bmp", "1.bmp", "moved.bmp"} <= set(ids(nights.collection))
    for seed in (2, 3, 4):
        (nights.pictures / f"{seed}.bmp").unlink()
    nights.embed(None, DEMO, *options)
    assert f"{command} --max-missing 0.46` removes what is gone" in capsys.readouterr().out
    assert nights.night(max_missing=0.46).counts.deleted == 5
    nights.embed(None, DEMO, *options)
    assert "likeness reembed" not in capsys.readouterr().out


def test_a_repeated_id_rejects_only_its_own_row(
    nights: Nights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.pictures = tmp_path / "list.csv"
    lines = [f"my pictures/{seed}.bmp,{seed}\n" for seed in range(9)]
    nights.pictures.write_text("uri,id\n" + "".join(lines) + "my pictures/9.bmp,3\n")
    nights.embed(None, DEMO, "--max-reject-rate", "0.1")
    assert nights.embedded == [[str(seed) for seed in range(9)]]
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in (["listed", "10"], ["already", "there", "0"], ["rejected", "1"], ["duplicate_id", "1"]):
        assert line in shown
    [row] = list_rejects(nights.collection)
    assert (row["image_id"], row["error_reason"], row["uri"]) == (
        "3#duplicate=2",
        "duplicate_id",
        str(tmp_path / "my pictures" / "9.bmp"),
    )
    assert Searcher.open(nights.collection).ntotal == 9
    runs = nights.collection.runs()
    nights.embed(None, DEMO, "--max-reject-rate", "0.1")
    assert (nights.embedded[1], nights.collection.runs()) == ([], runs)
    nights.pictures.write_text("uri,id\n" + "".join(lines) + "my pictures/9.bmp,9\n")
    nights.embed()
    assert (nights.embedded[2], list_rejects(nights.collection)) == (["9"], [])
    assert Searcher.open(nights.collection).ntotal == 10


def test_refused_rows_stay_rejects_with_another_model(nights: Nights, tmp_path: Path, other_model: str) -> None:
    """Also if a job of another source changed the model."""
    listed = tmp_path / "list.csv"
    listed.write_text("uri,id\nmy pictures/0.bmp,x\nmy pictures/1.bmp,x\nbroken,line,here\n")
    nights.embed(listed, DEMO, "--max-reject-rate", "1")
    nights.embed(write_files(tmp_path / "other", bmps(20, 21)))
    report = nights.night(other_model, source=tmp_path / "other", max_reject_rate=1)
    assert (report.counts.refused, sorted(nights.embedded[-1])) == (2, ["20.bmp", "21.bmp", "x"])
    assert [row["image_id"] for row in list_rejects(nights.collection)] == ["list.csv#line=4", "x#duplicate=2"]
    assert Searcher.open(nights.collection).ntotal == 3


def test_images_in_an_unreadable_tar_are_not_deleted(
    nights: Nights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights.pictures = tmp_path / "tars"
    nights.pictures.mkdir()
    for name, seeds in (("a", range(6)), ("b", range(6, 10))):
        with tarfile.open(nights.pictures / f"{name}.tar", "w") as tar:
            for seed in seeds:
                tar.add(tmp_path / "my pictures" / f"{seed}.bmp", f"{seed}.bmp")
    nights.embed()
    whole = (nights.pictures / "b.tar").read_bytes()
    (nights.pictures / "b.tar").write_bytes(whole[:1000])
    note = f"nothing is deleted: cannot read {nights.pictures}/b.tar as an uncompressed tar"
    report = nights.night(max_reject_rate=0.2)
    assert (report.counts.refused, report.counts.missing, report.counts.deleted) == (1, 4, 0)
    assert note in str(report.note)
    assert note in str(nights.night(max_reject_rate=0.2).note)
    nights.embed(None, DEMO, "--max-reject-rate", "0.2")
    assert note in (said := capsys.readouterr().out)
    assert "removes what is gone" not in said
    assert Searcher.open(nights.collection).ntotal == 10
    assert [row["image_id"] for row in list_rejects(nights.collection)] == ["b.tar"]
    (nights.pictures / "b.tar").write_bytes(whole)
    assert nights.night().counts.deleted == 1  # the reject
    assert (nights.embedded[-1], list_rejects(nights.collection)) == ([], [])
    assert Searcher.open(nights.collection).ntotal == 10


def test_embed_stays_with_the_live_indexs_model(nights: Nights, other_model: str) -> None:
    """Also after a rollback from another model, because a collection has one model."""
    nights.embed()
    with pytest.raises(OtherModelError) as error:
        nights.embed(model=other_model)
    assert f"was embedded with {DEMO} (fingerprint " in str(error.value)
    assert f"not with {other_model}" in str(error.value)
    assert "or name another folder for a new collection; `likeness reembed` with --model or" in str(error.value)
    nights.night(other_model)
    rollback(nights.collection)
    nights.embed(model=None)
    assert [len(night) for night in nights.embedded] == [10, 0, 10, 0]
    assert_rows_match_files(nights)
    assert Searcher.open(nights.collection).model.dim == 64


def test_no_index_leaves_the_index_alone(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    nights.embed(None, DEMO, "--no-index")
    assert nights.collection.current() is None
    assert "index" not in capsys.readouterr().out.replace(DEMO, "")
    nights.embed()
    assert nights.embedded[1:] == [[]]
    assert "index 000001 is live, recall@10 1.0000" in capsys.readouterr().out


def test_embed_warns_of_replaced_ids(nights: Nights, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nights.embed()
    nights.embed(write_files(tmp_path / "other", bmps(*range(10))))
    said = capsys.readouterr().out
    assert "10 ids belong to images elsewhere, which will be replaced; the first is 0.bmp, now" in said
