"""A collection: an append-only log of runs, and the versions of the index made from them."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.catalog.row_facts import write_deletes, write_facts
from index.collection.current_file import read_current, replace_current
from index.collection.layout import (
    CURRENT,
    INDEX,
    MANIFEST,
    ROW_FILES,
    RUN_STARTED,
    RUNS,
    SUPERSEDED,
    VERSION,
    run_path,
    version_path,
)
from index.collection.lease import Lease
from index.collection.live_rows import LiveRows
from index.collection.merged.sets import read_merged_runs
from index.collection.records.bounds import MAX_YEAR
from index.collection.records.model_record import ModelRecord
from index.collection.records.record import OtherFormatError
from index.collection.records.run_manifest import RowFile, RunCounts, RunManifest, RunSettings, RunStart
from index.collection.records.version_manifest import VersionManifest
from index.collection.row_files import FileList, block_of, describe, map_in_threads, map_small, write_table
from index.collection.rows import check_rows, text_array
from index.errors import CollectionError, DamagedRunError, DamagedVersionError, NotACollectionError, UnsafeFileError
from index.storage import Storage
from index.storage.bucket_address import without_secrets
from index.storage.storage import canonical_address

R = TypeVar("R", RunStart, RunManifest)

_MEMBERS = {RUNS, INDEX, CURRENT}
_RUN_ID_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The runs of a collection at one moment, oldest first. A job reads them once, while it has the lease."""

    collection: Collection
    committed: list[RunManifest]
    unfinished: list[RunStart]

    @property
    def last_run(self) -> str:
        """The id of the newest committed run; empty if there is none."""
        return self.committed[-1].run_id if self.committed else ""

    @cached_property
    def live(self) -> LiveRows:
        return LiveRows.of_runs(self.collection.storage, self.committed)

    def everything(self, unfinished: Sequence[RunStart] | None = None) -> Catalog:
        """All that was written, by these unfinished runs too, or by all; the live rows are those of committed runs."""
        more = self._written(self.unfinished if unfinished is None else unfinished, committed=False)
        return Catalog(self.collection.storage, sorted([*self._committed_rows, *more], key=lambda rows: rows.run_id))

    def newest(self) -> Catalog:
        """The live rows, and those of unfinished runs that are newer, or have ids that no live row has."""
        unfinished = self._written(self.unfinished, committed=True)
        older = [rows for rows in unfinished if rows.run_id <= self.last_run]
        newer = [rows for rows in unfinished if rows.run_id > self.last_run]
        return Catalog(self.collection.storage, [*older, *self._committed_rows, *newer])

    @property
    def _committed_rows(self) -> list[RunRows]:
        return [RunRows.of(self.collection.storage, run) for run in self.committed]

    def _written(self, runs: Iterable[RunStart], *, committed: bool) -> list[RunRows]:
        return [RunRows(run=run, files=self.collection.written_files(run), committed=committed) for run in runs]


@dataclass(frozen=True)
class Collection:
    """Runs of rows and index versions below one location. Stateless without a lease, so it is cheap to pickle."""

    storage: Storage
    lease: Lease | None = field(default=None, compare=False)
    """Set by `writing`; checked before each commit."""

    @classmethod
    def create_or_open(cls, location: str | os.PathLike[str]) -> Collection:
        """A new, empty or existing collection. NotACollectionError names files that are not a collection's."""
        collection = cls.open_or_empty(location)
        collection.storage.create_folder(RUNS)
        return collection

    @classmethod
    def open_or_empty(cls, location: str | os.PathLike[str]) -> Collection:
        """Like `create_or_open`, but creates nothing: a collection that does not exist has no runs."""
        storage, location = Storage.open(location), without_secrets(os.fspath(location))
        if storage.is_file():
            raise NotACollectionError(f"{location} is a file: expected a folder for the collection")
        foreign = [] if is_collection(storage) else [entry.name for entry in storage.list()]
        if foreign:
            names = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
            raise NotACollectionError(
                f"{location} has files that are not a collection's: {names}; "
                "expected a new or an empty folder, or a collection: name another folder"
            )
        return cls(storage)

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Collection:
        """An existing collection. NotACollectionError if there is none."""
        storage, location = Storage.open(location), without_secrets(os.fspath(location))
        folder = storage.info()
        if folder is None:
            raise NotACollectionError(f"{location} does not exist: make a collection with `likeness embed`")
        if not folder.is_folder or not is_collection(storage):
            raise NotACollectionError(
                f"{location} is not a collection: expected runs/ in it; make one with `likeness embed`"
            )
        return cls(storage)

    @property
    def location(self) -> str:
        """An absolute path or a URI; `open` takes it."""
        return self.storage.location

    @property
    def name(self) -> str:
        """The name of its folder."""
        return canonical_address(self.location).rpartition("/")[2] or "collection"

    def check_lease(self) -> None:
        if self.lease:
            self.lease.check()

    def raise_if_lease_lost(self) -> None:
        """Between commits, so that a job that lost its lease stops soon; see `Lease.raise_if_lost`."""
        if self.lease:
            self.lease.raise_if_lost()

    # Runs

    def runs(self) -> list[RunManifest]:
        return [run for run in self._manifests(self._run_ids()) if run]

    def snapshot(self) -> Snapshot:
        """All runs, read in parallel. DamagedRunError names a damaged file."""
        ids = self._run_ids()
        manifests = self._manifests(ids)
        uncommitted = [run_id for run_id, manifest in zip(ids, manifests, strict=True) if manifest is None]
        return Snapshot(
            collection=self,
            committed=[manifest for manifest in manifests if manifest],
            unfinished=[start for start in self._read_runs(uncommitted, RUN_STARTED, RunStart) if start],
        )

    def start_run(
        self,
        source: str,
        model: ModelRecord,
        settings: RunSettings | None = None,
    ) -> RunStart:
        """Begin a run. Its id sorts after every other run's, even if the clock was set back."""
        started_at = datetime.now(UTC)
        for other in self._run_ids():
            with suppress(ValueError):
                newest = datetime.strptime(other.partition("-")[0], _RUN_ID_TIME).replace(tzinfo=UTC)
                if newest.year + 1 >= MAX_YEAR:
                    problem = f"is of the year {newest.year}, and no run could follow: remove it"
                    raise CollectionError(f"{run_path(other)} {problem}")
                if newest >= started_at.replace(microsecond=0):
                    started_at = newest + timedelta(seconds=1)
        run_id = f"{started_at.strftime(_RUN_ID_TIME)}-{secrets.token_hex(2)}"
        start = RunStart(
            run_id=run_id,
            source=source,
            model=model,
            started_at=started_at,
            **(settings or RunSettings()).model_dump(include={*RunSettings.model_fields}),
        )
        self.storage.write_atomic(run_path(run_id, RUN_STARTED), start.to_bytes())
        return start

    def write_rows(self, run_id: str, name: str, table: pa.Table) -> RowFile:
        """Write rows as `runs/<run_id>/rows/<name>.<token>.parquet`; see `check_rows` and `write_table`."""
        return write_table(self.storage, run_path(run_id, ROW_FILES, name), check_rows(table))

    def files_of(self, run: RunManifest) -> FileList:
        """The row files of a committed run, in order."""
        return FileList(self.storage, run.files)

    def row_files(self, run_id: str) -> list[str]:
        """Paths of all row files of a run, finished or not, sorted by name."""
        entries = self.storage.list(run_path(run_id, ROW_FILES))
        return [entry.path for entry in entries if entry.name.endswith(".parquet")]

    def written_files(self, run: RunStart) -> list[RowFile]:
        """The complete row files of an unfinished run, one per block, those of earlier attempts first."""
        numbered = [path for path in self.row_files(run.run_id) if path.rpartition("/")[2].split("-")[0].isdigit()]

        def read(path: str) -> RowFile | None:
            try:
                return describe(self.storage, path)
            except DamagedRunError:
                return None  # a bad disk: files get their names only once they are complete

        # If a block was retried, both tries may have written it.
        return list({block_of(file.path): file for file in map_in_threads(read, numbered) if file}.values())

    def commit_run(
        self,
        run: RunStart,
        files: Sequence[RowFile],
        *,
        facts: Sequence[RowFile] | None = None,
        deletes: Iterable[pa.Array[Any]] = (),
        counts: RunCounts | None = None,
    ) -> RunManifest:
        """Make the rows in these files live, without the ids of `deletes`; `facts` are theirs if they are written.

        DamagedRunError if a file is missing or has another size.
        """
        facts = write_facts(self.storage, run.run_id, self.storage, files) if facts is None else list(facts)
        facts += write_deletes(self.storage, run.run_id, deletes, len(facts))
        listed = FileList.write(self.storage, run.run_id, files)
        sizes = {entry.path: entry.size for entry in self.storage.walk(run_path(run.run_id))}
        for file in (*files, *facts):
            if sizes.get(file.path) != file.size:
                raise DamagedRunError(f"{file.path} is missing or has changed since it was written", file.path)
        manifest = RunManifest(
            **dict(run), finished_at=datetime.now(UTC), files=listed, facts=facts, counts=counts or {}
        )
        self.check_lease()
        self.storage.write_atomic(run_path(run.run_id, MANIFEST), manifest.to_bytes())
        return manifest

    def add_run(
        self, source: str, model: ModelRecord, tables: Iterable[pa.Table], *, deletes: Sequence[str] = ()
    ) -> RunManifest:
        """Write and commit a run, with a file for each table."""
        start = self.start_run(source, model)
        files = [self.write_rows(start.run_id, f"{number:04}", table) for number, table in enumerate(tables)]
        return self.commit_run(start, files, deletes=[text_array(deletes)] if deletes else ())

    # Rows

    def live_rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The newest committed row of each id that was not deleted since, sorted by image_id. `columns` None: all."""
        if isinstance(columns, str):
            raise CollectionError(f"expected a list of columns, got {columns!r}")
        live = LiveRows.of_runs(self.storage, self.runs())
        names = list(live.schema.names if columns is None else columns)
        return live.read(list(dict.fromkeys([*names, "image_id"]))).sort_by("image_id").select(names)

    # Index versions

    def versions(self) -> list[str]:
        """Complete index versions (those with a manifest), oldest first."""
        folders = [entry for entry in self.storage.list(INDEX) if re.fullmatch(VERSION, entry.name)]
        return [entry.name for entry in folders if self._has_manifest(entry.path)]

    def _has_manifest(self, folder: str) -> bool:
        try:
            return self.storage.is_file(f"{folder}/{MANIFEST}")
        except UnsafeFileError:
            return True  # so that the version is not overlooked: `read_version` says what is wrong

    def current(self) -> str | None:
        return read_current(self.storage, self.versions)

    def promote(self, version: str, before: str | None) -> None:
        """Make a version live in place of `before`; None if no version is live, or CURRENT is damaged.

        DamagedVersionError if it has no readable manifest, OvertakenError if another version than `before` is live.
        """
        self.read_version(version)
        self.check_lease()
        if before and before != version:
            # First: without this file, `prune` could remove it at once, while servers are still reading it.
            self.storage.write_atomic(version_path(before, SUPERSEDED), f"{version}\n".encode())
        replace_current(self.storage, version, before)

    def read_version(self, version: str) -> VersionManifest:
        """The manifest of a version. DamagedVersionError if it is missing, altered or of another release."""
        path = version_path(version, MANIFEST)
        try:
            manifest = VersionManifest.from_bytes(self.storage.read(path))
            if manifest.version != version:
                raise ValueError(f"it belongs to version {manifest.version}")
            return manifest
        except OtherFormatError as error:
            raise DamagedVersionError(
                f"{path} {error}: `likeness index {self.location}` builds a version in this format, with default "
                f"settings unless you give them again; other versions: {self.other_versions(version)}",
                path,
            ) from error
        except (FileNotFoundError, ValueError) as error:
            problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
            others = self.other_versions(version)
            raise DamagedVersionError(f"{path} {problem}; other versions: {others}", path) from error

    def other_versions(self, version: str = "") -> str:
        return ", ".join(name for name in self.versions() if name != version) or "none"

    def _run_ids(self) -> list[str]:
        return [entry.name for entry in self.storage.list(RUNS) if entry.is_folder]

    def _manifests(self, ids: Sequence[str]) -> list[RunManifest | None]:
        """The manifests of runs; None for those that are not committed. Merged runs have one record for many."""
        merged = read_merged_runs(self.storage)
        read = iter(self._read_runs([run_id for run_id in ids if run_id not in merged], MANIFEST, RunManifest))
        return [merged[run_id] if run_id in merged else next(read) for run_id in ids]

    def _read_runs(self, ids: Sequence[str], name: str, record: type[R]) -> list[R | None]:
        return map_small(self.storage, lambda run_id: self._read_run(run_id, name, record), ids)

    def _read_run(self, run_id: str, name: str, record: type[R]) -> R | None:
        path = run_path(run_id, name)
        try:
            run = record.from_bytes(self.storage.read(path))
            if run.run_id != run_id:  # `prune` removes a run's folder by its id
                raise ValueError(f"it belongs to run {run.run_id}")
            return run
        except FileNotFoundError:
            return None
        except OtherFormatError as error:
            raise CollectionError(
                f"{self.location}: {path} {error}, so its rows cannot be read: embed the source into a new folder"
            ) from error
        except ValueError as error:
            raise DamagedRunError(
                f"{path} is damaged ({error}): restore it from a backup; or remove it, embed the source again, and run "
                "`likeness index` with --accept-lost-runs",
                path,
            ) from error


@contextmanager
def writing(collection: Collection, command: str, *, wait_s: float = 0.0) -> Iterator[Collection]:
    """The collection with its lease: commits raise LeaseLostError once another job has the lease.

    Other jobs show `command` to their users. Raises LeaseHeldError if one of them has the lease for longer than
    `wait_s` seconds.
    """
    if collection.lease:
        yield collection
        return
    lease = Lease.wait_for(collection.storage, command, wait_s)
    try:
        yield replace(collection, lease=lease)
    finally:
        lease.release()


def is_collection(storage: Storage) -> bool:
    """Whether a folder has any of a collection's files."""
    return any(entry.name in _MEMBERS for entry in storage.list())
