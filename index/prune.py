"""Removes index versions that are not wanted any more, the segments that only they had, and runs left unfinished."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow.fs as pafs

from index.collection import Collection
from index.errors import CollectionError, DamagedVersionError
from index.files import SEGMENTS
from index.lease import writing
from index.prune_runs import abandoned_runs
from index.records import VersionManifest
from index.versions import NOT_GOOD, require_good

ABANDONED = timedelta(days=1)
"""Once nothing of an unfinished build has changed for so long, its files are taken for remains.

An hour would not do: to fill one large graph index may take longer, and writes nothing meanwhile. Remains cost space; a
segment that is pulled away costs the build.
"""

GRACE = timedelta(hours=1)
"""A version stays for so long after another took its place: whoever looked it up may be opening it still, and a server
that has it open over NFS loses what is deleted. Elsewhere mapped files and copies outlive their names.
"""

_FOLDER = re.compile(r"index/(?:segments/)?([0-9]{6})(?:-[0-9-]+)?(?=/|$)")
"""A version's folder or a segment's, and the version in whose making it came to be."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was removed, or would be: versions and segments by name, `remains` of unfinished builds by path, and
    unfinished `runs` by id.

    `left` says why a version, or a folder by its path, was left that looks as if it could go.
    """

    versions: list[str]
    segments: list[str]
    remains: list[str]
    runs: list[str]
    bytes_freed: int
    left: dict[str, str]


@dataclass
class _Folder:
    """A version's or a segment's folder: which version's making it came from, and the bytes in it."""

    maker: str
    size: int = 0
    changed: bool = False  # of late


def prune(collection: Collection, keep: int = 3, *, dry_run: bool = False) -> Pruned:
    """Remove old versions, and then the segments that no other names. Committed runs, from which all is made, stay.

    What stays: the live version and those newer than it, of those below their target the newest alone; of those before
    it the newest, until `keep` good ones are there, the live one counted; what was superseded within `GRACE`; a version
    whose manifest cannot be read, and every segment that it may name, which are all made by it or before. Good is what
    one could go back to (`index.versions.rollback`), its files checked by their sizes. What no version names is removed
    once its build has been idle for `ABANDONED`, and so are unfinished runs (`index.prune_runs`).

    CollectionError for a `keep` below 1, DamagedVersionError when CURRENT cannot be read, LeaseHeldError while another
    job writes.
    """
    if keep < 1:
        raise CollectionError(f"keep is {keep}: expected 1 or more, since the live version always stays")
    if dry_run:
        return _plan(collection, keep)[0]
    with writing(collection, "prune") as held:
        live = held.current()
        pruned, gone = _plan(held, keep)
        for path in gone:
            held.check_lease()
            if held.current() != live:
                raise CollectionError(
                    f"another version than {live} was made live meanwhile, so pruning has stopped: run it again"
                )
            _delete(held, path)
    return pruned


def _plan(collection: Collection, keep: int) -> tuple[Pruned, list[str]]:
    """What would be removed, and the paths of it in order."""
    manifests, unreadable = _manifests(collection)
    versions = _outdated(collection, manifests, keep)
    recent = _recently_superseded(collection, versions)
    versions = [name for name in versions if name not in recent]
    needed = _named(manifests[name] for name in manifests if name not in versions)
    dropped = _named(manifests[name] for name in versions)
    folders = _folders(collection)
    busy = {folder.maker for folder in folders.values() if folder.changed}
    segments, remains, left = list[str](), list[str](), unreadable | recent
    for path, folder in folders.items():
        is_segment = path.startswith(SEGMENTS)
        if path in needed or (not is_segment and folder.maker in manifests | unreadable):
            continue
        if is_segment and folder.maker <= max(unreadable, default=""):
            left[path] = f"index version {max(unreadable)}, whose manifest cannot be read, may name it"
        elif folder.maker in busy and path not in dropped:
            left[path] = f"no version names it; it may belong to a build, which wrote within {ABANDONED}"
        else:
            (segments if path in dropped else remains).append(path)
    runs = abandoned_runs(collection, ABANDONED)
    gone = [*(f"index/{name}" for name in versions), *segments, *remains]
    pruned = Pruned(
        versions=versions,
        segments=[path.removeprefix(f"{SEGMENTS}/") for path in segments],
        remains=remains,
        runs=list(runs),
        bytes_freed=sum(folders[path].size for path in gone) + sum(runs.values()),
        left=left,
    )
    return pruned, [*gone, *(f"runs/{name}" for name in runs)]


def _manifests(collection: Collection) -> tuple[dict[str, VersionManifest], dict[str, str]]:
    """Manifests by version, and why the others cannot be read."""
    read: dict[str, VersionManifest] = {}
    unreadable: dict[str, str] = {}
    for name in collection.versions():
        try:
            read[name] = collection.read_version(name)
        except DamagedVersionError as error:
            unreadable[name] = f"{error}; restore that file, or remove index/{name}"
    return read, unreadable


def _outdated(collection: Collection, manifests: Mapping[str, VersionManifest], keep: int) -> list[str]:
    """Versions before the live one that are not among the newest `keep` good ones, and those after it that are below
    their target, the newest apart; oldest first.
    """
    live = collection.current()
    if live is None:
        return []
    outdated: list[str] = []
    good = 0
    for name in sorted((name for name in manifests if name <= live), reverse=True):
        if good >= keep:
            outdated.append(name)
            continue
        try:
            require_good(collection, name, verify=False)
            good += 1
        except NOT_GOOD:
            continue  # nothing that one could go back to
    failed = [name for name, made in manifests.items() if name > live and made.below_target]
    return sorted([*outdated, *sorted(failed)[:-1]])


def _recently_superseded(collection: Collection, versions: Sequence[str]) -> dict[str, str]:
    """Those versions that another took the place of within `GRACE`, with the reason to leave them."""
    recent = {}
    for name in versions:
        found = collection.superseded(name)
        if found and found[1] > datetime.now(UTC) - GRACE:
            recent[name] = f"index version {found[0]} took its place within {GRACE}; it may be read still"
    return recent


def _named(manifests: Iterable[VersionManifest]) -> set[str]:
    """Paths of the segments that versions consist of."""
    return {f"{SEGMENTS}/{segment.name}" for manifest in manifests for segment in manifest.segments}


def _folders(collection: Collection) -> dict[str, _Folder]:
    """Every version's and segment's folder, by path. Hidden files count: they are of a build that is under way."""
    storage = collection.storage
    root = storage.absolute("")
    selector = pafs.FileSelector(storage.absolute("index"), allow_not_found=True, recursive=True)
    since = datetime.now(UTC) - ABANDONED
    folders: dict[str, _Folder] = {}
    for info in storage.filesystem.get_file_info(selector):
        if match := _FOLDER.match(info.path.removeprefix(root).lstrip("/")):
            folder = folders.setdefault(match[0], _Folder(match[1]))
            folder.size += info.size or 0
            folder.changed |= info.mtime is None or info.mtime > since
    return dict(sorted(folders.items()))


def _delete(collection: Collection, path: str) -> None:
    # First, so that what is half removed does not look complete. Segments come last: no manifest names them now.
    collection.storage.delete(f"{path}/manifest.json")
    # A run's `started.json` goes last: without it nobody would find the rest.
    collection.storage.delete(f"{path}/rows")
    collection.storage.delete(path)
