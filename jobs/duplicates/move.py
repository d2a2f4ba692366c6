"""Moves duplicates on this machine to a folder, with a log to undo it.

A file's line of the log is on disk before it is moved. The file gets a second name (a hard link), or is copied if that
is impossible, before the first name is removed; nothing is ever overwritten. So if this is killed, each file is
complete in at least one place, and an incomplete copy is recognised by its content.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Final

from embedder.errors import FetchError
from embedder.fetch.uris import scheme_of, split_fragment
from index.analysis.duplicate_plan import DuplicatePlan, PlannedImage
from jobs.duplicates.local_files import local_file
from jobs.errors import UsageError

LOG: Final = "moved.jsonl"
_CHUNK: Final = 1 << 20
_TAKEN: Final = "{} already exists, and nothing is overwritten"


class _RefusedError(Exception):
    """A file cannot be moved; says why."""


@dataclass(frozen=True)
class MoveReport:
    """The new paths of the moved files, and for each other one why it was not moved."""

    files: list[Path] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def attempt(self, name: str, move: Callable[[], Path | None]) -> None:
        try:
            if (path := move()) is not None:
                self.files.append(path)
        except (_RefusedError, FetchError, OSError) as error:
            self.refused[name] = str(error)


def movable_folders(named: Sequence[Path], sources: Iterable[str]) -> list[Path]:
    """The folders below which files may be moved: those that the user named, as far as images were embedded from there.

    Otherwise a collection made by someone else could name any file whose content its author knows. A list may name
    files anywhere, so with one as a source all named folders count. UsageError if nothing is left.
    """
    local = [Path(address).resolve() for address in sorted(set(sources)) if address.startswith("/")]
    shown = ", ".join(map(str, local)) or "no folder on this machine"
    if not named:
        raise UsageError(
            f"--move-to needs --move-from: name the folders whose files may be moved. This collection says that its "
            f"images come from {shown}"
        )
    folders = list[Path]()
    for folder in (path.resolve() for path in named):
        if not folder.is_dir():
            raise UsageError(f"--move-from is {folder}: expected a folder")
        if any(source.is_file() or folder.is_relative_to(source) for source in local):
            folders.append(folder)
        else:
            folders += [source for source in local if source.is_relative_to(folder)]
    if not folders:
        raise UsageError(
            f"--move-from is {', '.join(map(str, named))}, but the images of this collection come from {shown}"
        )
    return folders


def moved_files(folder: Path) -> frozenset[Path]:
    """The former paths of files that are now in `folder`, by its log."""
    log = folder.resolve() / LOG
    entries = _entries(log) if log.exists() else iter(())
    return frozenset(source for source, target in entries if os.path.lexists(target) and not os.path.lexists(source))


def move_duplicates(plan: DuplicatePlan, folder: Path, movable: Sequence[Path]) -> MoveReport:
    """Move the files of all duplicates except similar ones to `folder`, with the subfolders that they have in a source.

    A file is moved only if it is below a `movable` folder, and if it and the one to keep are still as embedded.
    UsageError if `folder` is in a source.
    """
    folder, report = folder.resolve(), MoveReport()
    pairs = [
        (group.keep, duplicate) for group in plan.found for duplicate in group.duplicates if duplicate.kind != "similar"
    ]
    for _, duplicate in pairs:
        with suppress(_RefusedError, FetchError):
            _require_outside(folder, duplicate)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--move-to is {folder}, a file: expected a folder")
    logged = set(_entries(folder / LOG)) if (folder / LOG).exists() else set()
    for keep, duplicate in pairs:
        report.attempt(duplicate.image_id, partial(_move_one, keep, duplicate, folder, movable, logged))
    return report


def undo_moves(log: Path) -> MoveReport:
    """Move the files that a log names back to where they were. UsageError if it cannot be read.

    Skips files that are already back, so it can be repeated.
    """
    report = MoveReport()
    for source, target in reversed(list(_entries(log))):
        report.attempt(str(target), partial(_move_back, source, target))
    return report


def _move_one(
    keep: PlannedImage,
    duplicate: PlannedImage,
    folder: Path,
    movable: Sequence[Path],
    logged: set[tuple[Path, Path]],
) -> Path:
    path = _local_file(duplicate)
    if not any(path.parent.resolve().is_relative_to(root) for root in movable):
        raise _RefusedError(f"{path} is not below {' or '.join(map(str, movable))}")
    source = _unchanged_file(duplicate)
    try:
        kept = _unchanged_file(keep)
    except _RefusedError as error:
        raise _RefusedError(f"{keep.image_id} was to be kept, but {error}") from None
    # A file with one name, but found under two: in a folder that is mounted twice, or on a disk that ignores case.
    if kept.resolve() == source.resolve() or (kept.samefile(source) and source.stat().st_nlink == 1):
        raise _RefusedError(f"it is the same file as {keep.image_id}, which is kept")
    target = folder / _path_in_source(duplicate, source)
    if (source, target) in logged and target.exists() and _is_prefix(target, source):
        target.unlink()
    if os.path.lexists(target):  # not logged: undoing would take that file for this one
        raise _RefusedError(_TAKEN.format(target))
    _write_ahead(folder / LOG, source, target)
    return _rename(source, target)


def _move_back(source: Path, target: Path) -> Path | None:
    if not target.exists():
        if not source.exists():
            raise _RefusedError(f"it is missing, and so is {source}")
        return None
    if source.exists() and _is_prefix(target, source):
        target.unlink()
        return source
    if source.exists() and _is_prefix(source, target):
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


def _unchanged_file(image: PlannedImage) -> Path:
    """The file of an image, if it has not changed since it was embedded."""
    path = _local_file(image)
    if path.is_symlink():
        raise _RefusedError(f"{path} is a link, and only regular files are moved")
    if not path.is_file():
        raise _RefusedError(f"{path} is missing or not a regular file: bring the collection up to date first")
    with path.open("rb") as file:
        if path.stat().st_size != image.size or file_digest(file, "sha256").hexdigest() != image.content_hash:
            raise _RefusedError(f"{path} has changed since it was embedded: bring the collection up to date first")
    return path


def _local_file(image: PlannedImage) -> Path:
    if (path := local_file(image.uri)) is not None:
        return path
    if not image.uri or scheme_of(image.uri) != "file":
        raise _RefusedError("only files on this machine are moved")
    raise _RefusedError(f"it is a part of {split_fragment(image.uri)[0]}, and only whole files are moved")


def _path_in_source(image: PlannedImage, path: Path) -> Path:
    """The path relative to the folder that was embedded, or to the root if the id is not such a path, as in lists."""
    relative = Path(image.image_id)
    is_suffix = not relative.is_absolute() and path.parts[-len(relative.parts) :] == relative.parts
    return relative if is_suffix else path.relative_to(path.anchor)


def _require_outside(folder: Path, image: PlannedImage) -> None:
    path = _local_file(image)
    root = path.parents[len(_path_in_source(image, path).parts) - 1].resolve()
    if root != Path(root.anchor) and folder.is_relative_to(root):
        raise UsageError(
            f"--move-to is {folder}, in the source {root}: expected a folder outside it, or jobs find the files again"
        )


def _is_prefix(part: Path, whole: Path) -> bool:
    """Whether `whole` begins with the bytes of `part`, as of an incomplete copy or a second name."""
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
        # The first line break ends a line that was not completed.
        file.write(("\n" + json.dumps({"from": str(source), "to": str(target)}) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def _entries(log: Path) -> Iterator[tuple[Path, Path]]:
    """The old and the new path of each move."""
    try:
        lines = log.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read the log {log}: {error.strerror}") from error
    for line in lines:
        with suppress(ValueError):  # an incomplete line, so its file was not moved
            entry = json.loads(line)
            if not (isinstance(entry, dict) and {"from", "to"} <= entry.keys()):
                raise UsageError(f"{log} is not a log of moved files: expected the {LOG} that --move-to wrote")
            yield Path(entry["from"]), Path(entry["to"])
