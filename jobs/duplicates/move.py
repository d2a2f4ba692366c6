"""Moves redundant files of this machine into a folder, with a log that undoes it.

A line of the log is on the disk before its file is moved. A file gets a second name (a hard link), or is copied where
that cannot be, before the first is removed; nothing is ever overwritten. So wherever this is stopped, each file is
whole in one place at least, and what was begun in the other is told by its content.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Final

from embedder.errors import FetchError
from embedder.fetch.uris import local_path, scheme_of, split_fragment
from index.analysis.duplicate_plan import DuplicatePlan, PlannedImage
from jobs.errors import UsageError

LOG: Final = "moved.jsonl"
_CHUNK: Final = 1 << 20
_TAKEN: Final = "{} is there already, and nothing is overwritten"


class _RefusedError(Exception):
    """Why a file stays where it is."""


@dataclass(frozen=True)
class Moved:
    """Where the files are now, and of each that was not moved, why."""

    files: list[Path] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def attempt(self, name: str, move: Callable[[], Path | None]) -> None:
        try:
            if (moved := move()) is not None:
                self.files.append(moved)
        except (_RefusedError, FetchError, OSError) as error:
            self.refused[name] = str(error)


def move_duplicates(plan: DuplicatePlan, folder: Path) -> Moved:
    """Move the files of all duplicates but the similar ones into `folder`, below it as below their source.

    A file stays if it, or the one to keep, is not the one that was embedded. UsageError if `folder` lies in a source.
    """
    folder, moved = folder.resolve(), Moved()
    pairs = [
        (group.keep, duplicate) for group in plan.found for duplicate in group.duplicates if duplicate.kind != "similar"
    ]
    for _, duplicate in pairs:
        with suppress(_RefusedError, FetchError):
            _require_outside(folder, duplicate)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--move-to is {folder}, a file: expected a folder")
    begun = set(_entries(folder / LOG)) if (folder / LOG).exists() else set()
    for keep, duplicate in pairs:
        moved.attempt(duplicate.image_id, partial(_move_one, keep, duplicate, folder, begun))
    return moved


def undo_moves(log: Path) -> Moved:
    """Move the files that a log names back to where they were. UsageError if it cannot be read.

    Files that are back already are left out, so it can be repeated.
    """
    moved = Moved()
    for source, target in reversed(list(_entries(log))):
        moved.attempt(str(target), partial(_move_back, source, target))
    return moved


def _move_one(keep: PlannedImage, duplicate: PlannedImage, folder: Path, begun: set[tuple[Path, Path]]) -> Path:
    source = _checked(duplicate)
    try:
        kept = _checked(keep)
    except _RefusedError as error:
        raise _RefusedError(f"{keep.image_id} was to be kept, but {error}") from None
    # A file with one name, but found under two: in a folder that is mounted twice, or on a disk that ignores case.
    if kept.resolve() == source.resolve() or (kept.samefile(source) and source.stat().st_nlink == 1):
        raise _RefusedError(f"it is the same file as {keep.image_id}, which is kept")
    target = folder / _below_source(duplicate, source)
    if (source, target) in begun and target.exists() and _is_begun(target, source):
        target.unlink()
    if os.path.lexists(target):  # not logged: undoing would take that file for this one
        raise _RefusedError(_TAKEN.format(target))
    _write_ahead(folder / LOG, source, target)
    return _rename(source, target)


def _move_back(source: Path, target: Path) -> Path | None:
    if not target.exists():
        if not source.exists():
            raise _RefusedError(f"it is gone, and so is {source}")
        return None
    if source.exists() and _is_begun(target, source):
        target.unlink()
        return source
    if source.exists() and _is_begun(source, target):
        source.unlink()
    return _rename(target, source)


def _rename(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            os.link(source, target, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:  # another disk, or one without links
            _copy(source, target)
    except FileExistsError:
        raise _RefusedError(_TAKEN.format(target)) from None
    try:
        source.unlink()
    except OSError:
        target.unlink()
        raise
    return target


def _copy(source: Path, target: Path) -> None:
    with target.open("xb") as copy:
        try:
            with source.open("rb") as original:
                shutil.copyfileobj(original, copy)
            copy.flush()
            os.fsync(copy.fileno())
            shutil.copystat(source, target)
        except BaseException:
            target.unlink()
            raise


def _checked(image: PlannedImage) -> Path:
    """The file of an image, if it is the one that was embedded."""
    path = _local_file(image)
    if path.is_symlink() or not path.is_file():
        raise _RefusedError(f"{path} is not there, or no plain file: bring the collection up to date first")
    with path.open("rb") as file:
        if path.stat().st_size != image.size or file_digest(file, "sha256").hexdigest() != image.content_hash:
            raise _RefusedError(f"{path} has changed since it was embedded: bring the collection up to date first")
    return path


def _local_file(image: PlannedImage) -> Path:
    uri = image.uri or ""
    whole, part = split_fragment(uri)
    if scheme_of(uri) != "file":
        raise _RefusedError("only files of this machine are moved")
    if part is not None:
        raise _RefusedError(f"it is a part of {whole}, and only whole files are moved")
    return Path(os.path.abspath(local_path(uri)))  # noqa: PTH100  # links stay as they are


def _below_source(image: PlannedImage, path: Path) -> Path:
    """The path below the folder that was embedded; of a file that a list names, below the root."""
    relative = Path(image.image_id)
    ends_alike = not relative.is_absolute() and path.parts[-len(relative.parts) :] == relative.parts
    return relative if ends_alike else path.relative_to(path.anchor)


def _require_outside(folder: Path, image: PlannedImage) -> None:
    path = _local_file(image)
    root = path.parents[len(_below_source(image, path).parts) - 1].resolve()
    if root != Path(root.anchor) and folder.is_relative_to(root):
        raise UsageError(
            f"--move-to is {folder}, in the source {root}, whose next job would find the files there again"
        )


def _is_begun(part: Path, whole: Path) -> bool:
    """Whether `part` is a second name of `whole`, or has no byte that `whole` does not begin with."""
    if part.samefile(whole):
        return True
    with part.open("rb") as one, whole.open("rb") as other:
        while chunk := one.read(_CHUNK):
            if other.read(len(chunk)) != chunk:
                return False
    return True


def _write_ahead(log: Path, source: Path, target: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        # After a line that was not completed, an empty one.
        file.write(("\n" + json.dumps({"from": str(source), "to": str(target)}) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def _entries(log: Path) -> Iterator[tuple[Path, Path]]:
    """Of each move where the file was, and where it went."""
    try:
        lines = log.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read the log {log}: {error.strerror}") from error
    for line in lines:
        with suppress(ValueError):  # an incomplete line: its file was not moved
            entry = json.loads(line)
            if not (isinstance(entry, dict) and {"from", "to"} <= entry.keys()):
                raise UsageError(f"{log} is no log of moved files: expected the {LOG} that --move-to has written")
            yield Path(entry["from"]), Path(entry["to"])
