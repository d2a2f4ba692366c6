"""A collection: an append-only log of runs, and the versions of the index made from them."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from index.clouds import without_secrets
from index.conditional import update_file
from index.errors import DamagedRunError, DamagedVersionError, NotACollectionError, OvertakenError
from index.live import LiveRows
from index.records import Current, ModelRecord, RowFile, RunManifest, RunStart, VersionManifest
from index.row_files import TOKEN, at_once, describe
from index.rows import EMBEDDING, check_rows, conform
from index.storage import Storage

if TYPE_CHECKING:
    from index.lease import Lease

R = TypeVar("R", RunStart, RunManifest)

HISTORY = "history"
"""Where jobs record their outcomes."""

_MEMBERS = {"runs", "index", "CURRENT"}
_IDS = pa.schema([("image_id", pa.string())])
_VERSION = re.compile(r"[0-9]{6}")
_RUN_ID_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The runs of a collection at one moment, oldest first: `committed`, and `unfinished` ones.

    A job reads it once, while it has the lease, and hands it down.
    """

    collection: Collection
    committed: list[RunManifest]
    unfinished: list[RunStart]

    def live(self) -> LiveRows:
        """The live rows, of which the ids are read."""
        return LiveRows.of_runs(self.collection.storage, self.committed)


@dataclass(frozen=True)
class Collection:
    """Runs of rows and index versions below one location. Stateless without a lease, so it is cheap to pickle."""

    storage: Storage
    lease: Lease | None = field(default=None, compare=False)
    """Held while `index.lease.writing`: it is checked before each commit."""

    @classmethod
    def create_or_open(cls, location: str) -> Collection:
        """A new, an empty or an existing collection. NotACollectionError names files that do not belong."""
        collection = cls.planned(location)
        collection.storage.create_folder("runs")
        return collection

    @classmethod
    def planned(cls, location: str) -> Collection:
        """Like `create_or_open`, but creates nothing: if there is no collection, it has no runs."""
        storage, location = Storage.open(location), without_secrets(location)
        if storage.is_file():
            raise NotACollectionError(f"{location} is a file: expected a folder for the collection")
        foreign = [entry.name for entry in storage.list() if entry.name not in _MEMBERS | {HISTORY}]
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
        if not storage.exists():
            raise NotACollectionError(f"{location} does not exist: make a collection with `likeness embed`")
        if storage.is_file() or not any(entry.name in _MEMBERS for entry in storage.list()):
            raise NotACollectionError(
                f"{location} is not a collection: expected runs/ in it; make one with `likeness embed`"
            )
        return cls(storage)

    @property
    def location(self) -> str:
        """An absolute path or a URI; `open` takes it."""
        return self.storage.location

    def check_lease(self) -> None:
        """LeaseLostError when another job has taken the lease."""
        if self.lease:
            self.lease.check()

    def check_lease_lately(self) -> None:
        """`check_lease` for between commits: cheap, because it seldom asks the storage."""
        if self.lease:
            self.lease.check_lately()

    # Runs

    def runs(self) -> list[RunManifest]:
        """Committed runs, oldest first. DamagedRunError names a damaged manifest."""
        return [run for run in at_once(self._manifest, self._run_folders()) if run]

    def snapshot(self) -> Snapshot:
        """Every run, each read once, side by side. DamagedRunError names a damaged file."""
        folders = self._run_folders()
        manifests = at_once(self._manifest, folders)
        begun = [folder for folder, manifest in zip(folders, manifests, strict=True) if manifest is None]
        return Snapshot(
            collection=self,
            committed=[manifest for manifest in manifests if manifest],
            unfinished=[start for start in at_once(self._start, begun) if start],
        )

    def start_run(self, source: str, model: ModelRecord) -> RunStart:
        """Begin a run. Its id sorts after every other run's, whatever the clock says."""
        started_at = datetime.now(UTC)
        for folder in self._run_folders():
            newest = _run_time(folder.rpartition("/")[2])
            if newest and newest >= started_at.replace(microsecond=0):
                started_at = newest + timedelta(seconds=1)
        run_id = f"{started_at.strftime(_RUN_ID_TIME)}-{secrets.token_hex(2)}"
        start = RunStart(run_id=run_id, source=source, model=model, started_at=started_at)
        self.storage.write_atomic(f"runs/{run_id}/started.json", start.to_bytes())
        return start

    def write_rows(self, run_id: str, name: str, table: pa.Table) -> RowFile:
        """Write rows as `runs/<run_id>/rows/<name>.<token>.parquet`, atomically. The token is of the content, so that a
        file replaces none but its equal, and can be checked before a manifest names it.

        Missing fixed columns become null. CollectionError when a column is twice there or of another type,
        an id is null or the embedding has no fixed length.
        """
        return self._write_table(f"runs/{run_id}/rows/{name}", check_rows(table))

    def write_deletes(self, run_id: str, image_ids: pa.ChunkedArray[Any] | Sequence[str]) -> RowFile:
        """Record ids that have left the source, in a file of its own; the run's manifest has to name it."""
        table = conform(pa.table({"image_id": image_ids}), _IDS)
        return self._write_table(f"runs/{run_id}/deletes", table)

    def row_files(self, run_id: str) -> list[str]:
        """Paths of all row files of a run, finished or not, by name."""
        entries = self.storage.list(f"runs/{run_id}/rows")
        return [entry.path for entry in entries if entry.name.endswith(".parquet")]

    def row_file(self, path: str) -> RowFile:
        """The manifest's entry for an existing row file, all of which is read. DamagedRunError when it was altered."""
        return describe(self.storage, path)

    def commit_run(self, manifest: RunManifest) -> None:
        """Make a run's rows live. DamagedRunError when a file that it names is missing or has changed."""

        def require_whole(file: RowFile) -> None:
            with suppress(FileNotFoundError):
                if self.storage.size(file.path) == file.size:
                    return
            raise DamagedRunError(f"{file.path} is missing or has changed since it was written", file.path)

        at_once(require_whole, [*manifest.files, *([manifest.deletes] if manifest.deletes else [])])
        self.check_lease()
        self.storage.write_atomic(f"runs/{manifest.run_id}/manifest.json", manifest.to_bytes())

    # Rows

    def live_rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The newest committed row of each id that was not deleted since, by image_id. None: every column."""
        live = LiveRows.of_runs(self.storage, self.runs())
        names = list(live.schema.names if columns is None else columns)
        return live.read(list(dict.fromkeys([*names, "image_id"]))).sort_by("image_id").select(names)

    def rejects(self) -> pa.Table:
        """Live rows that could not be embedded, without the embedding, by image_id."""
        live = LiveRows.of_runs(self.storage, self.runs())
        rows = live.read([name for name in live.schema.names if name != EMBEDDING])
        return rows.filter(pc.is_valid(rows.column("error_reason"))).sort_by("image_id")

    # Index versions

    def versions(self) -> list[str]:
        """Complete index versions, oldest first: those that have a manifest."""
        folders = [entry for entry in self.storage.list("index") if _VERSION.fullmatch(entry.name)]
        return [entry.name for entry in folders if self.storage.is_file(f"{entry.path}/manifest.json")]

    def current(self) -> str | None:
        """The live index version, or None. DamagedVersionError when CURRENT cannot be read, or is missing beside
        complete versions.
        """
        with suppress(FileNotFoundError):
            return self._read_current()
        versions = self.versions()
        if not versions:
            return None
        # A first build makes CURRENT and then a version: both may have come since CURRENT was looked for.
        with suppress(FileNotFoundError):
            return self._read_current()
        raise _lost_current("is missing", versions)

    def _read_current(self) -> str | None:
        """FileNotFoundError when CURRENT is missing, DamagedVersionError when it cannot be read."""
        try:
            return Current.from_bytes(self.storage.read("CURRENT")).version
        except ValueError as error:
            raise _lost_current(f"is damaged ({error})", self.versions()) from error

    def begin_current(self) -> None:
        """Make CURRENT, which names no version yet, unless it is there: from now on it is never missing."""
        update_file(self.storage, "CURRENT", lambda content: content or Current(version=None).to_bytes())

    def promote(self, version: str, before: str | None) -> None:
        """Make a version the live one in place of `before`, at once; None: of none, or of a CURRENT that is damaged.

        DamagedVersionError when it has no readable manifest, OvertakenError when another than `before` is live.
        """
        self.read_version(version)
        self.check_lease()
        if before and before != version:
            # First: it would be pruned at once where nothing says that somebody may be reading it still.
            self.storage.write_atomic(f"index/{before}/superseded", f"{version}\n".encode())

        def replace(content: bytes) -> bytes:
            now = _version_named(content)
            if now not in (before, version):  # it names this one where the answer to an earlier try was lost
                raise OvertakenError(
                    f"index version {now} was made live meanwhile, so that stays and {version} is not live: look at "
                    f"`likeness versions {self.location}`, and run this again if you still want it"
                )
            return Current(version=version).to_bytes()

        update_file(self.storage, "CURRENT", replace)

    def superseded(self, version: str) -> tuple[str, datetime] | None:
        """Which version last took the place of this one, and when; None if none did."""
        path = f"index/{version}/superseded"
        try:
            return self.storage.read(path).decode(errors="replace").strip(), self.storage.modified(path)
        except FileNotFoundError:
            return None

    def read_version(self, version: str) -> VersionManifest:
        """The manifest of a version. DamagedVersionError when it is missing or altered."""
        path = f"index/{version}/manifest.json"
        try:
            manifest = VersionManifest.from_bytes(self.storage.read(path))
            if manifest.version != version:
                raise ValueError(f"it is that of version {manifest.version}")
            return manifest
        except (FileNotFoundError, ValueError) as error:
            problem = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
            raise DamagedVersionError(
                f"{path} {problem}; other versions: {self.other_versions(version)}", path
            ) from error

    def other_versions(self, version: str = "") -> str:
        """The complete versions except one, for a message."""
        return ", ".join(name for name in self.versions() if name != version) or "none"

    def _run_folders(self) -> list[str]:
        return [entry.path for entry in self.storage.list("runs") if entry.is_folder]

    def _manifest(self, folder: str) -> RunManifest | None:
        return self._read_run(f"{folder}/manifest.json", RunManifest)

    def _start(self, folder: str) -> RunStart | None:
        return self._read_run(f"{folder}/started.json", RunStart)

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

    def _write_table(self, name: str, table: pa.Table) -> RowFile:
        sink = pa.BufferOutputStream()
        split = [f"{EMBEDDING}.list.element"] if EMBEDDING in table.column_names else False
        pq.write_table(
            table,
            sink,
            compression="zstd",
            write_page_checksum=True,
            # Vectors are all different, so a dictionary makes a file half as large again. Splitting their bytes by
            # significance makes it a tenth smaller. Without the one and with the other, reads and writes are faster.
            use_dictionary=[name for name in table.column_names if name != EMBEDDING],  # type: ignore[arg-type]
            use_byte_stream_split=split,  # type: ignore[arg-type]  # the stubs take neither for a list of columns
        )
        data = sink.getvalue().to_pybytes()
        digest = hashlib.sha256(data).hexdigest()
        path = f"{name}.{digest[:TOKEN]}.parquet"
        self.storage.write_atomic(path, data)
        return RowFile(path=path, rows=table.num_rows, size=len(data), sha256=digest)


def _version_named(content: bytes) -> str | None:
    """What CURRENT names; None where it cannot be read."""
    with suppress(ValueError):
        return Current.from_bytes(content).version
    return None


def _run_time(run_id: str) -> datetime | None:
    try:
        return datetime.strptime(run_id.partition("-")[0], _RUN_ID_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _lost_current(problem: str, versions: Sequence[str]) -> DamagedVersionError:
    return DamagedVersionError(
        f"CURRENT {problem}: it names the live version of {', '.join(versions) or 'none'}; `likeness index` makes "
        "the newest good one live, `likeness promote` another",
        "CURRENT",
    )
