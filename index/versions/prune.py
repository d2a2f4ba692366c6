"""Removes old index versions, segments that only they use, unfinished runs, and files that no manifest names."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from index.collection import Collection, layout, writing
from index.collection.annotations import annotation_logs
from index.collection.layout import annotation_path, merged_path, run_path, segment_path, version_path
from index.collection.merged.sets import read_manifest
from index.collection.records.version_manifest import VersionManifest
from index.errors import CollectionError, OvertakenError
from index.storage.storage import FileInfo
from index.versions.promotion import list_versions
from index.versions.servable import UNFIT_VERSION, require_servable

ABANDONED_AFTER = timedelta(days=1)
"""An unfinished build is abandoned once its files have not changed for so long.

Filling one large graph index may take more than an hour, during which nothing is written.
"""

GRACE = timedelta(hours=1)
"""How long a version stays after another replaced it: a server may still be opening it, and one that has it open over
NFS loses deleted files."""

FORGOTTEN_AFTER = timedelta(days=30)
"""An unfinished run is given up after so long without a write: a change of models may take weeks, with pauses."""

_FOLDER = re.compile(rf"index/(?:({layout.VERSION})|segments/({layout.VERSION})-[0-9-]+)(?=/|$)")
"""A version's or segment's folder. The groups are the version whose build made it. Other folders are not ours."""

_IN_RUN = re.compile(
    rf"(.*{layout.RUNS}/[^/]+)/(?:(?:{layout.ROW_FILES}|{layout.FACTS}|{layout.TODO}[^/]*)/|{layout.FILE_LIST}[.]).*"
)
"""A file of a run. The group is the run's folder."""

_RUN = re.compile(rf"{layout.RUNS}/[^/]+")
_SET = re.compile(rf"{layout.MERGED}/(?:[0-9]{{8}}|[.][^/]+)(?=/|$)")  # hidden: a write that was killed


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What was removed, or would be: versions and segments by name, `remains` of abandoned builds and sets of merged
    runs that are of no more use by path, unfinished `runs` by id (an annotation's by path), and how many
    `unnamed_files` committed runs had, by the run's path. `left` has the reasons why versions (by name) and folders (by
    path) stay."""

    versions: list[str]
    segments: list[str]
    remains: list[str]
    runs: list[str]
    unnamed_files: dict[str, int]
    bytes_freed: int
    left: dict[str, str]


def prune(collection: Collection, keep: int = 3, *, dry_run: bool = False) -> Pruned:
    """Remove old versions, then the segments that no other version names. Never removes committed rows. What stays:

    - the live version;
    - newer versions, but only the newest of those below their target recall;
    - older versions, newest first, until there are `keep` good ones, the live one included;
    - versions superseded within `GRACE`;
    - versions whose manifest cannot be read, with all segments that it may name: those built with it or before it.

    A version is good if `rollback` could choose it; only its files' sizes are checked. Files that no version names are
    removed once their build has been idle for `ABANDONED_AFTER`. Unfinished runs are removed after as long if a later
    run of the same source and model was committed (it took over what it needed), otherwise after `FORGOTTEN_AFTER`.
    All of this holds for the runs of annotations too.
    """
    if keep < 1:
        raise CollectionError(f"keep is {keep}: expected 1 or more, because the live version always stays")
    if dry_run:
        return _plan(collection, keep)[0]
    with writing(collection, "prune") as leased:
        live = leased.current()
        pruned, gone = _plan(leased, keep)
        for path in gone:
            leased.check_lease()
            if leased.current() != live:
                raise OvertakenError(
                    f"a version other than {live} was made live meanwhile, so pruning was stopped: run it again"
                )
            _delete(leased, path)
    return pruned


def _plan(collection: Collection, keep: int) -> tuple[Pruned, list[str]]:
    """What `prune` removes, and the paths in the order of removal."""
    every = list_versions(collection)
    manifests = {version.name: version.manifest for version in every if version.manifest}
    advice = "{}; restore that file, or remove {}".format
    unreadable = {each.name: advice(each.damage, version_path(each.name)) for each in every if not each.manifest}
    outdated = _outdated(collection, manifests, keep)
    recent = _recently_superseded(collection, outdated)
    versions = {name: manifests[name] for name in outdated if name not in recent}
    kept = {name: manifest for name, manifest in manifests.items() if name not in versions}
    folders = _grouped(collection, layout.INDEX, _FOLDER)
    segments, remains, left = _unneeded(folders, versions, kept, unreadable)
    left = unreadable | recent | left
    sizes, runs, unnamed = {path: _bytes(files) for path, files in folders.items()}, list[str](), list[str]()
    logs = {f"{annotation_path(name)}/": log for name, log in annotation_logs(collection).items()}
    for below, log in {"": collection, **logs}.items():
        for paths, found in zip((runs, unnamed, remains), _leftovers(log), strict=True):
            paths += [below + path for path in found]
            sizes |= {below + path: size for path, size in found.items()}
    for version in sorted(kept, reverse=True):
        for path in set(map(run_path, kept[version].runs)).intersection(runs):
            left[path] = f"index version {version} was built from this run: restore its {layout.MANIFEST}"
            runs.remove(path)
    gone = [*map(version_path, versions), *segments, *remains, *runs, *unnamed]
    pruned = Pruned(
        versions=list(versions),
        segments=[path.removeprefix(f"{layout.SEGMENTS}/") for path in segments],
        remains=remains,
        runs=[path.removeprefix(f"{layout.RUNS}/") for path in runs],
        unnamed_files=Counter(_IN_RUN.sub(r"\1", path) for path in unnamed),
        bytes_freed=sum(sizes.get(path, 0) for path in gone),
        left=left,
    )
    return pruned, gone


def _unneeded(
    folders: Mapping[str, Sequence[FileInfo]],
    versions: Mapping[str, VersionManifest],
    kept: Mapping[str, VersionManifest],
    unreadable: Mapping[str, str],
) -> tuple[list[str], list[str], dict[str, str]]:
    """The paths of segments that only the `versions` to remove name, and of the remains of builds; and why others that
    no version names stay.
    """
    needed, dropped = _segment_paths(kept.values()), _segment_paths(versions.values())
    makers = {path: _FOLDER.sub(r"\1\2", path) for path in folders}
    busy = {makers[path] for path, files in folders.items() if not _are_older(files, ABANDONED_AFTER)}
    segments, remains, left = list[str](), list[str](), dict[str, str]()
    for path, maker in makers.items():
        is_segment = path.startswith(layout.SEGMENTS)
        if path in needed or (not is_segment and maker in (*versions, *kept, *unreadable)):
            continue
        if is_segment and maker <= max(unreadable, default=""):
            left[path] = f"index version {max(unreadable)}, whose manifest cannot be read, may name it"
        elif maker in busy and path not in dropped:
            left[path] = f"no version names it, but its build has written within {ABANDONED_AFTER} and may be running"
        else:
            (segments if path in dropped else remains).append(path)
    return segments, remains, left


def _outdated(collection: Collection, manifests: Mapping[str, VersionManifest], keep: int) -> list[str]:
    """Versions that `prune` removes once their `GRACE` is over, oldest first."""
    live = collection.current()
    if live is None:
        return []
    outdated: list[str] = []
    good = 0
    for name in sorted((name for name in manifests if name <= live), reverse=True):
        if good >= keep:
            outdated.append(name)
            continue
        with suppress(*UNFIT_VERSION):  # `rollback` would skip it, so it does not count
            require_servable(collection, name, verify=False)
            good += 1
    failed = [name for name, made in manifests.items() if name > live and made.below_target]
    return sorted([*outdated, *sorted(failed)[:-1]])


def _recently_superseded(collection: Collection, versions: Sequence[str]) -> dict[str, str]:
    """The versions that were superseded within `GRACE`, with the reason why they stay."""
    recent, storage = {}, collection.storage
    for name in versions:
        with suppress(FileNotFoundError):
            successor = storage.read(version_path(name, layout.SUPERSEDED)).decode(errors="replace").strip()
            file = storage.info(version_path(name, layout.SUPERSEDED))
            if file and file.modified and file.modified > datetime.now(UTC) - GRACE:
                recent[name] = f"index version {successor} replaced it within {GRACE}; servers may still read it"
    return recent


def _segment_paths(manifests: Iterable[VersionManifest]) -> set[str]:
    return {segment_path(segment.name) for manifest in manifests for segment in manifest.segments}


def _grouped(collection: Collection, below: str, pattern: re.Pattern[str]) -> dict[str, list[FileInfo]]:
    """What is below a folder, by the start of its path that matches. Hidden files count, because a running build writes
    them.
    """
    found = defaultdict[str, list[FileInfo]](list)
    for file in collection.storage.walk(below):
        if match := pattern.match(file.path):
            found[match[0]].append(file)
    return dict(sorted(found.items()))


def _bytes(files: Iterable[FileInfo]) -> int:
    return sum(file.size for file in files)


def _are_older(files: Iterable[FileInfo], age: timedelta) -> bool:
    """Whether nobody has written to these files for so long."""
    times = [file.modified for file in files if not file.is_folder]
    return all(time is not None and time <= datetime.now(UTC) - age for time in times)


def _leftovers(log: Collection) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """The bytes, by path, of unfinished runs that no job will resume; of files that their committed run does not name,
    such as those of an attempt that another one replaced; and of sets of merged runs that were merged into others, or
    not completed.
    """
    snapshot, files = log.snapshot(), _grouped(log, layout.RUNS, _RUN)
    runs, unnamed = dict[str, int](), dict[str, int]()
    for start in snapshot.unfinished:
        superseded = any(
            run.source == start.source and run.model.agrees_with(start.model) and run.run_id > start.run_id
            for run in snapshot.committed
        )
        path, age = run_path(start.run_id), ABANDONED_AFTER if superseded else FORGOTTEN_AFTER
        if path in files and _are_older(files[path], age):
            runs[path] = _bytes(files[path])
    for run in snapshot.committed:
        named = {file.path for file in (*log.files_of(run), run.files, *run.facts)}
        for file in files.get(run_path(run.run_id), ()):
            is_unnamed = _IN_RUN.fullmatch(file.path) and not file.is_folder and file.path not in named
            if is_unnamed and _are_older([file], ABANDONED_AFTER):
                unnamed[file.path] = file.size
    merged = read_manifest(log.storage)
    kept = set(map(merged_path, [*merged.sets, *merged.recently_replaced(datetime.now(UTC))]))
    sets = {path: files for path, files in _grouped(log, layout.MERGED, _SET).items() if path not in kept}
    return runs, unnamed, {path: _bytes(each) for path, each in sets.items() if _are_older(each, ABANDONED_AFTER)}


def _delete(collection: Collection, path: str) -> None:
    # The manifest goes first, so that a half-removed version does not look complete. Segments go last: by then no
    # manifest names them.
    collection.storage.delete(f"{path}/{layout.MANIFEST}")
    # A run's `started.json` goes last: without it the rest would not be found again.
    collection.storage.delete(f"{path}/{layout.ROW_FILES}")
    collection.storage.delete(path)
