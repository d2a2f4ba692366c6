"""A collection: an append-only log of runs, and the versions of the index made from them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa

from index.collection.current_file import read_current, replace_current
from index.collection.layout import (
    ANNOTATIONS,
    CURRENT,
    DELETES,
    HISTORY,
    INDEX,
    MANIFEST,
    ROW_FILES,
    RUN_STARTED,
    RUNS,
    SUPERSEDED,
    run_path,
    version_path,
)
from index.collection.lease import TTL, Lease
from index.collection.live_rows import LiveRows
from index.collection.records import ModelRecord, OtherFormatError, RowFile, RunManifest, RunStart, VersionManifest
from index.collection.row_files import describe, map_in_threads, write_table
from index.collection.rows import check_rows, conform
from index.errors import DamagedRunError, DamagedVersionError, NotACollectionError
from index.storage import Storage
from index.storage.bucket_address import without_secrets
from index.storage.storage import canonical_address

R = TypeVar("R", RunStart, RunManifest)

_MEMBERS = {RUNS, INDEX, CURRENT}
_IDS = pa.schema([("image_id", pa.string())])
_VERSION = re.compile(r"[0-9]{6}")
_RUN_ID_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The runs of a collection at one moment, oldest first. A job reads it once, while it has the lease."""

    collection: Collection
    committed: list[RunManifest]
    unfinished: list[RunStart]

    @property
    def last_run(self) -> str:
        """The id of the newest committed run; empty where there is none."""
        return self.committed[-1].run_id if self.committed else ""

    def live(self) -> LiveRows:
        """The live rows, of which the ids are read."""
        return LiveRows.of_runs(self.collection.storage, self.committed)


@dataclass(frozen=True)
class Collection:
    """Runs of rows and index versions below one location. Stateless without a lease, so it is cheap to pickle."""

    storage: Storage
    lease: Lease | None = field(default=None, compare=False)
    """Held while `writing`: it is checked before each commit."""

    @classmethod
    def create_or_open(cls, location: str) -> Collection:
        """A new, an empty or an existing collection. NotACollectionError names files that do not belong."""
        collection = cls.open_or_empty(location)
        collection.storage.create_folder(RUNS)
        return collection

    @classmethod
    def open_or_empty(cls, location: str) -> Collection:
        """Like `create_or_open`, but creates nothing: if there is no collection, it has no runs."""
        storage, location = Storage.open(location), without_secrets(location)
        if storage.is_file():
            raise NotACollectionError(f"{location} is a file: expected a folder for the collection")
        foreign = [entry.name for entry in storage.list() if entry.name not in _MEMBERS | {ANNOTATIONS, HISTORY}]
        if foreign:
            shown = ", ".join(foreign[:5]) + (f" and {len(foreign) - 5} more" if len(foreign) > 5 else "")
            raise NotACollectionError(
                f"{location} holds files that are not a collection's: {shown}; "
                "expected a new or an empty folder, or a collection: name another folder"
            )
        return cls(storage)

    @classmethod
    def open(cls, location: str) -> Collection:
        """A collection that exists. NotACollectionError when there is none."""
        storage, location = Storage.open(location), without_secrets(location)
        found = storage.info()
        if found is None:
            raise NotACollectionError(f"{location} does not exist: make a collection with `likeness embed`")
        if not found.is_folder or not is_collection(storage):
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

    def check_lease_if_overdue(self) -> None:
        """`check_lease` for between commits: cheap, because it seldom asks the storage."""
        if self.lease:
            self.lease.check_if_overdue()

    # Runs

    def runs(self) -> list[RunManifest]:
        return [run for run in self._read_runs(self._run_folders(), MANIFEST, RunManifest) if run]

    def snapshot(self) -> Snapshot:
        """Every run, each read once, side by side. DamagedRunError names a damaged file."""
        folders = self._run_folders()
        manifests = self._read_runs(folders, MANIFEST, RunManifest)
        begun = [folder for folder, manifest in zip(folders, manifests, strict=True) if manifest is None]
        return Snapshot(
            collection=self,
            committed=[manifest for manifest in manifests if manifest],
            unfinished=[start for start in self._read_runs(begun, RUN_STARTED, RunStart) if start],
        )

    def start_run(
        self,
        source: str,
        model: ModelRecord,
        calibration: dict[str, float] | None = None,
        keep: str | None = None,
        exif: bool = False,
    ) -> RunStart:
        """Begin a run. Its id sorts after every other run's, whatever the clock says."""
        started_at = datetime.now(UTC)
        for folder in self._run_folders():
            with suppress(ValueError):
                began = folder.rpartition("/")[2].partition("-")[0]
                newest = datetime.strptime(began, _RUN_ID_TIME).replace(tzinfo=UTC)
                if newest >= started_at.replace(microsecond=0):
                    started_at = newest + timedelta(seconds=1)
        run_id = f"{started_at.strftime(_RUN_ID_TIME)}-{secrets.token_hex(2)}"
        start = RunStart(
            run_id=run_id,
            source=source,
            model=model,
            started_at=started_at,
            calibration=calibration or {},
            keep=keep,
            exif=exif,
        )
        self.storage.write_atomic(run_path(run_id, RUN_STARTED), start.to_bytes())
        return start

    def write_rows(self, run_id: str, name: str, table: pa.Table) -> RowFile:
        """Write rows as `runs/<run_id>/rows/<name>.<token>.parquet`; the token is of the content. See `check_rows`."""
        return write_table(self.storage, run_path(run_id, ROW_FILES, name), check_rows(table))

    def write_deletes(self, run_id: str, image_ids: pa.ChunkedArray[Any] | Sequence[str]) -> RowFile:
        """Record ids that have left the source, in a file of its own; the run's manifest has to name it."""
        table = conform(pa.table({"image_id": image_ids}), _IDS)
        return write_table(self.storage, run_path(run_id, DELETES), table)

    def row_files(self, run_id: str) -> list[str]:
        """Paths of all row files of a run, finished or not, by name."""
        entries = self.storage.list(run_path(run_id, ROW_FILES))
        return [entry.path for entry in entries if entry.name.endswith(".parquet")]

    def row_file(self, path: str) -> RowFile:
        """The entry for an existing row file, all of which is read. DamagedRunError when it was altered."""
        return describe(self.storage, path)

    def commit_run(self, manifest: RunManifest) -> None:
        """Make a run's rows live. DamagedRunError when a file that it names is missing or has changed."""

        def require_whole(file: RowFile) -> None:
            with suppress(FileNotFoundError):
                if self.storage.size(file.path) == file.size:
                    return
            raise DamagedRunError(f"{file.path} is missing or has changed since it was written", file.path)

        map_in_threads(require_whole, [*manifest.files, *([manifest.deletes] if manifest.deletes else [])])
        self.check_lease()
        self.storage.write_atomic(run_path(manifest.run_id, MANIFEST), manifest.to_bytes())

    def add_run(
        self,
        source: str,
        model: ModelRecord,
        tables: Iterable[pa.Table],
        *,
        deletes: Sequence[str] = (),
        counts: dict[str, int] | None = None,
    ) -> RunManifest:
        """Write and commit a run at once, with a file for each table."""
        start = self.start_run(source, model)
        files = [self.write_rows(start.run_id, f"{number:04}", table) for number, table in enumerate(tables)]
        gone = self.write_deletes(start.run_id, deletes) if deletes else None
        finished_at = datetime.now(UTC)
        manifest = RunManifest(**dict(start), finished_at=finished_at, files=files, deletes=gone, counts=counts or {})
        self.commit_run(manifest)
        return manifest

    # Rows

    def live_rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The newest committed row of each id that was not deleted since, by image_id. None: every column."""
        live = LiveRows.of_runs(self.storage, self.runs())
        names = list(live.schema.names if columns is None else columns)
        return live.read(list(dict.fromkeys([*names, "image_id"]))).sort_by("image_id").select(names)

    # Index versions

    def versions(self) -> list[str]:
        """Complete index versions, oldest first: those that have a manifest."""
        folders = [entry for entry in self.storage.list(INDEX) if _VERSION.fullmatch(entry.name)]
        return [entry.name for entry in folders if self.storage.is_file(f"{entry.path}/{MANIFEST}")]

    def current(self) -> str | None:
        return read_current(self.storage, self.versions)

    def promote(self, version: str, before: str | None) -> None:
        """Make a version the live one in place of `before`; None: of none, or of a CURRENT that is damaged.

        DamagedVersionError when it has no readable manifest, OvertakenError when another than `before` is live.
        """
        self.read_version(version)
        self.check_lease()
        if before and before != version:
            # First: it would be pruned at once where nothing says that somebody may be reading it still.
            self.storage.write_atomic(version_path(before, SUPERSEDED), f"{version}\n".encode())
        replace_current(self.storage, version, before)

    def read_version(self, version: str) -> VersionManifest:
        """The manifest of a version. DamagedVersionError when it is missing, altered or of another release."""
        path = version_path(version, MANIFEST)
        try:
            manifest = VersionManifest.from_bytes(self.storage.read(path))
            if manifest.version != version:
                raise ValueError(f"it is that of version {manifest.version}")
            return manifest
        except OtherFormatError as error:
            raise DamagedVersionError(
                f"{path} {error}: `likeness index {self.location}` builds a version of this release, with default "
                f"settings unless they are given again; other versions: {self.other_versions(version)}",
                path,
            ) from error
        except (FileNotFoundError, ValueError) as error:
            problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
            others = self.other_versions(version)
            raise DamagedVersionError(f"{path} {problem}; other versions: {others}", path) from error

    def other_versions(self, version: str = "") -> str:
        return ", ".join(name for name in self.versions() if name != version) or "none"

    def _run_folders(self) -> list[str]:
        return [entry.path for entry in self.storage.list(RUNS) if entry.is_folder]

    def _read_runs(self, folders: Sequence[str], name: str, record: type[R]) -> list[R | None]:
        return map_in_threads(lambda folder: self._read_run(f"{folder}/{name}", record), folders)

    def _read_run(self, path: str, record: type[R]) -> R | None:
        try:
            return record.from_bytes(self.storage.read(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DamagedRunError(
                f"{path} is damaged ({error}): restore it from a backup; or remove it, embed the source again, and run "
                "`likeness index` with --accept-lost-runs",
                path,
            ) from error


@contextmanager
def writing(collection: Collection, command: str, ttl: timedelta = TTL) -> Iterator[Collection]:
    """The collection with its lease: commits fail with LeaseLostError once another job has it.

    `command` is shown to other jobs. LeaseHeldError when one of them holds the lease.
    """
    if collection.lease:
        yield collection
        return
    lease = Lease.acquire(collection.storage, command, ttl)
    try:
        yield replace(collection, lease=lease)
    finally:
        lease.release()


def is_collection(storage: Storage) -> bool:
    """Whether a folder holds what a collection does."""
    return any(entry.name in _MEMBERS for entry in storage.list())
