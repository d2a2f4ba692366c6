"""Files are moved and moved back, even after a kill; nothing is overwritten, and doubtful files stay."""

import errno
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from index.analysis.duplicate_kinds import Kind
from index.analysis.duplicate_plan import Duplicate, DuplicatePlan, PlannedGroup, PlannedImage
from jobs.duplicates.move import LOG, movable_folders, move_duplicates, moved_files, undo_moves
from jobs.errors import UsageError
from tests.support.listings import write_files

FILES = {"a/keep.png": b"the best one", "a/copy.jpg": b"a copy", "b/copy.jpg": b"one more copy"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "pictures", FILES)


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    return tmp_path / "aside"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOG)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def image(source: Path, name: str, **facts: Any) -> dict[str, Any]:
    data = FILES[name]
    row = {"image_id": name, "uri": str(source / name), "content_hash": sha256(data).hexdigest(), "size": len(data)}
    return {**row, "width": 1, "height": 1, "format": "png", "modified": None, **facts}


def planned(source: Path, kind: Kind = "re_encoded", changes: Mapping[str, Any] | None = None) -> DuplicatePlan:
    """A plan that keeps the first file; `changes` replace facts of images, by name."""
    kept, *others = (image(source, name, **(changes or {}).get(name, {})) for name in FILES)
    duplicates = tuple(Duplicate(**other, kind=kind, why="more pixels") for other in others)
    group = PlannedGroup(keep=PlannedImage(**kept), duplicates=duplicates)
    parts: Any = {"version": "000001", "created_at": datetime.now(UTC), "looked_for": (kind,), "unread": {}}
    return DuplicatePlan(**parts, min_score=1, max_difference=0, groups=1, duplicates={kind: 2}, found=(group,))


def test_copies_are_moved_with_their_folders_and_back(source: Path, aside: Path) -> None:
    assert moved_files(aside) == frozenset()
    moved = move_duplicates(planned(source), aside, [source])
    assert (moved.files, moved.refused) == ([aside / "a/copy.jpg", aside / "b/copy.jpg"], {})
    assert moved_files(aside) == {source / "a/copy.jpg", source / "b/copy.jpg"}
    assert contents(source) == {"a/keep.png": b"the best one"}
    assert contents(aside) == {"a/copy.jpg": b"a copy", "b/copy.jpg": b"one more copy"}
    back = undo_moves(aside / LOG)
    assert (sorted(back.files), back.refused) == ([source / "a/copy.jpg", source / "b/copy.jpg"], {})
    assert (contents(source), contents(aside)) == (FILES, {})
    assert moved_files(aside) == frozenset()
    assert undo_moves(aside / LOG).files == []
    assert len(move_duplicates(planned(source), aside, [source]).files) == 2
    assert len(undo_moves(aside / LOG).files) == 2
    assert contents(source) == FILES


KEPT = {"content_hash": sha256(FILES["a/keep.png"]).hexdigest(), "size": len(FILES["a/keep.png"])}
STAYS: list[tuple[dict[str, Any], str]] = [  # facts of the copy, and why it is not moved; {} is the source
    ({"size": 7}, "has changed since it was embedded"),
    ({"content_hash": "0" * 64}, "has changed since it was embedded"),
    ({"content_hash": None}, "has changed since it was embedded"),
    ({"uri": "https://example.org/copy.jpg"}, "only files on this machine are moved"),
    ({"uri": None}, "only files on this machine are moved"),
    ({"uri": "s3://bucket/copy.jpg"}, "only files on this machine are moved"),
    ({"uri": "/data/shard.tar#bytes=512-1023"}, "a part of /data/shard.tar, and only whole files"),
    ({"uri": "/data/part.parquet#row=1&column=image"}, "a part of /data/part.parquet, and only whole"),
    ({"uri": "/data/clip.mp4#t=12.5"}, "a part of /data/clip.mp4, and only whole files"),
    ({"uri": "{}/linked/pictures/a/keep.png", **KEPT}, "the same file as a/keep.png"),
    ({"uri": "{}/../private.jpg"}, "private.jpg is not below {}"),
    ({"uri": "{}/a/../../private.jpg"}, "private.jpg is not below {}"),
    ({"uri": "file://{}/%2e%2e/private.jpg"}, "private.jpg is not below {}"),
    ({"uri": "{}/linked/private.jpg"}, "private.jpg is not below {}"),
    ({"uri": "{}/link"}, "is a link"),
    ({"uri": "{}/pipe"}, "not a regular file"),
    ({"uri": "{}/a"}, "not a regular file"),
]


@pytest.mark.parametrize(("facts", "message"), STAYS)
def test_a_file_that_cannot_be_moved_stays(source: Path, aside: Path, facts: dict[str, Any], message: str) -> None:
    (source.parent / "private.jpg").write_bytes(FILES["a/copy.jpg"])
    (source / "linked").symlink_to(source.parent)
    (source / "link").symlink_to(source / "a/copy.jpg")
    os.mkfifo(source / "pipe")
    named = {key: each.replace("{}", str(source)) if key == "uri" and each else each for key, each in facts.items()}
    before = {path: path.lstat() for path in source.parent.rglob("*") if path.name != "copy.jpg"}
    moved = move_duplicates(planned(source, changes={"a/copy.jpg": named}), aside, [source])
    assert message.replace("{}", str(source)) in moved.refused["a/copy.jpg"]
    assert moved.files == [aside / "b/copy.jpg"]
    assert contents(source)["a/copy.jpg"] == b"a copy"
    assert all(path.lstat().st_ino == stat.st_ino for path, stat in before.items())


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"size": 7}, "a/keep.png has changed since it was embedded: bring the collection up to date first"),
        ({"uri": "/nowhere/at/all.png"}, "is missing or not a regular file"),
    ],
)
def test_nothing_is_moved_if_the_kept_file_changed_or_is_similar(
    source: Path, aside: Path, facts: dict[str, Any], message: str
) -> None:
    moved = move_duplicates(planned(source, changes={"a/keep.png": facts}), aside, [source])
    assert message in moved.refused["a/copy.jpg"]
    assert move_duplicates(planned(source, "similar"), aside, [source]).files == []
    assert contents(source) == FILES
    assert not aside.exists()


def test_the_kept_file_in_another_mount_stays(source: Path, aside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "mount").symlink_to(source / "a")  # which only the file system knows to be the same folder
    monkeypatch.setattr(Path, "resolve", Path.absolute)
    same = image(source, "a/keep.png", uri=str(source / "mount/keep.png"), image_id="mount/keep.png")
    moved = move_duplicates(planned(source, changes={"a/copy.jpg": same}), aside, [source])
    assert "the same file as a/keep.png" in moved.refused["mount/keep.png"]
    assert contents(source)["a/keep.png"] == b"the best one"


def test_nothing_is_overwritten_either_way(source: Path, aside: Path) -> None:
    (aside / "a").mkdir(parents=True)
    (aside / "a/copy.jpg").write_bytes(b"precious")
    moved = move_duplicates(planned(source), aside, [source])
    assert "nothing is overwritten" in moved.refused["a/copy.jpg"]
    assert (contents(aside)["a/copy.jpg"], contents(source)["a/copy.jpg"]) == (b"precious", b"a copy")
    (source / "b/copy.jpg").write_bytes(b"a new picture")
    assert "nothing is overwritten" in undo_moves(aside / LOG).refused[str(aside / "b/copy.jpg")]
    assert contents(source)["b/copy.jpg"] == b"a new picture"


def test_a_file_set_aside_from_elsewhere_is_neither_replaced_nor_taken_back_for_another(
    source: Path, aside: Path, tmp_path: Path
) -> None:
    other = write_files(tmp_path / "other", FILES)
    move_duplicates(planned(source), aside, [source])
    assert "nothing is overwritten" in move_duplicates(planned(other), aside, [other]).refused["a/copy.jpg"]
    assert contents(other) == FILES
    assert undo_moves(aside / LOG).refused == {}
    assert contents(source) == contents(other) == FILES


def test_a_folder_within_the_source_is_refused(source: Path) -> None:
    with pytest.raises(UsageError, match=r"--move-to is .*pictures/aside, in the source .*pictures: expected a folder"):
        move_duplicates(planned(source), source / "aside", [source])
    (source.parent / "file").touch()
    with pytest.raises(UsageError, match="a file: expected a folder"):
        move_duplicates(planned(source), source.parent / "file", [source])
    assert contents(source) == FILES


def test_a_file_that_a_list_names_goes_below_its_whole_path(source: Path, aside: Path) -> None:
    moved = move_duplicates(planned(source, changes={"a/copy.jpg": {"image_id": "../number one"}}), aside, [source])
    assert moved.files[0] == aside / str(source / "a/copy.jpg")[1:]


@pytest.mark.parametrize("links", [True, False])
def test_after_a_kill_both_undo_and_another_move_work(
    source: Path, aside: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "another disk")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    unlink = Path.unlink

    def killed(path: Path, **_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        move_duplicates(planned(source), aside, [source])
    monkeypatch.setattr(Path, "unlink", unlink)
    assert contents(source) == FILES
    assert contents(aside) == {"a/copy.jpg": b"a copy"}  # in both places
    lines = (aside / LOG).read_text().split()
    with (aside / LOG).open("a") as log:
        log.write('{"from": "/torn')
    assert len(lines) == 4  # {"from": …, "to": …}
    assert undo_moves(aside / LOG).refused == {}
    assert (contents(source), contents(aside)) == (FILES, {})
    (aside / "a/copy.jpg").write_bytes(b"a co")  # a copy that was not completed
    assert len(move_duplicates(planned(source), aside, [source]).files) == 2
    assert contents(aside)["a/copy.jpg"] == b"a copy"
    (source / "a/copy.jpg").write_bytes(b"a co")
    assert undo_moves(aside / LOG).refused == {}
    assert (contents(source), contents(aside)) == (FILES, {})


def test_folders_are_movable_if_they_are_named_and_were_a_source(source: Path, tmp_path: Path) -> None:
    (tmp_path / "urls.csv").write_text("url")
    (tmp_path / "link").symlink_to(source)
    both, listed = [str(source), "s3://bucket/pictures"], [str(tmp_path / "urls.csv")]
    assert movable_folders([source / "a"], both) == [source / "a"]
    assert movable_folders([tmp_path / "link"], both) == [source]
    assert movable_folders([tmp_path], both) == [source]
    assert movable_folders([tmp_path], listed) == [tmp_path]


@pytest.mark.parametrize(
    ("named", "sources", "message"),
    [
        ([], ["/home/me/Pictures"], "--move-to needs --move-from: .* come from /home/me/Pictures"),
        ([], ["s3://bucket/x"], "--move-to needs --move-from: .* come from no folder on this machine"),
        (["."], ["/home/me/Pictures"], r"--move-from is .*, but the images of this collection come from /home/me/Pict"),
        (["missing"], ["/"], "--move-from is .*missing: expected a folder"),
    ],
)
def test_folders_of_no_source_are_refused(tmp_path: Path, named: list[str], sources: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        movable_folders([tmp_path / name for name in named], sources)


@pytest.mark.parametrize(("text", "message"), [(None, "the log .*: No such file"), ("[1]", "not a log of moved files")])
def test_undo_refuses_a_file_that_is_not_a_log(tmp_path: Path, text: str | None, message: str) -> None:
    if text:
        (tmp_path / "log").write_text(text)
    with pytest.raises(UsageError, match=message):
        undo_moves(tmp_path / "log")
