"""The outcomes of a job's runs, kept in the job's collection."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from index.collection import Collection
from index.collection.layout import HISTORY
from index.collection.lease import holder
from index.collection.records import Record
from index.errors import LeaseError
from index.storage import Storage
from index.storage.bucket import without_secrets
from jobs.text_table import TextTable

KEPT = 200
"""Runs that are kept, besides the last success of each source: half a year of nights."""

_SHOWN = ("new", "changed", "retried", "other_model", "deleted", "rejected", "failed")

Outcome = Literal["running", "succeeded", "failed", "busy", "stopped"]


class JobRun(Record):
    """One run of a job. `counts` and `seconds` are those of the report; `busy` means that another job was writing.

    `index` is the version that was live at its end.
    """

    id: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: Outcome = "running"
    message: str | None = None
    source: str
    collection: str
    host: str
    pid: int
    counts: dict[str, int] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    index: str | None = None
    recall: float | None = None

    @classmethod
    def begin(cls, source: str, collection: str) -> JobRun:
        """A run of this process that starts now. Credentials in the addresses are left out."""
        now = datetime.now(UTC)
        run_id = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        return cls(
            id=run_id,
            started_at=now,
            source=without_secrets(source),
            collection=without_secrets(collection),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def end(self, outcome: Outcome, message: str | None = None, **fields: Any) -> JobRun:
        """The same run with its outcome."""
        changes = {"ended_at": datetime.now(UTC), "outcome": outcome, "message": message, **fields}
        return self.model_copy(update=changes)

    @property
    def text(self) -> str:
        """One line for people."""
        what = {"succeeded": f"index {self.index}", "busy": "another job writes"}.get(self.outcome, "")
        details = self.message or what
        return f"likeness: {self.collection} {self.outcome}{f': {details}' if details else ''}"


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome of a job that ended with an error, and its message, without credentials."""
    message = without_secrets(str(error)) or type(error).__name__
    if isinstance(error, LeaseError):
        return "busy", message
    return "failed" if isinstance(error, Exception) else "stopped", message


def save(storage: Storage, run: JobRun) -> None:
    """Record a run, replacing its earlier record, and remove the oldest runs.

    The last success of each source stays, to show for how long a job has failed, no matter how long that is.
    """
    storage.write_atomic(f"{HISTORY}/{run.id}.json", run.to_bytes())
    for old in _ids(storage)[:-KEPT]:
        record = _read(storage, old)
        if record and record.outcome == "succeeded" and last_success(storage, record.source) == record:
            continue
        storage.delete(f"{HISTORY}/{old}.json")
        storage.delete(f"{HISTORY}/{old}.log")


def save_output(storage: Storage, run_id: str, output: str) -> None:
    """Keep what a run printed."""
    storage.write_atomic(f"{HISTORY}/{run_id}.log", output.encode())


def read_output(storage: Storage, run_id: str) -> str:
    """The output of a run. FileNotFoundError if it was not kept: only `likeness schedule` keeps it."""
    return storage.read(f"{HISTORY}/{run_id}.log").decode(errors="replace")


def last_runs(collection: Collection, count: int) -> list[JobRun]:
    """The newest `count` runs, oldest first, without unreadable ones."""
    runs = [_read(collection.storage, run_id) for run_id in _ids(collection.storage)[-count:]]
    return [run for run in runs if run]


def last_success(storage: Storage, source: str) -> JobRun | None:
    """The newest run of a source that succeeded."""
    runs = (_read(storage, run_id) for run_id in reversed(_ids(storage)))
    return next((run for run in runs if run and (run.source, run.outcome) == (source, "succeeded")), None)


def facts(collection: Collection, runs: Sequence[JobRun]) -> list[dict[str, Any]]:
    """Runs for programs. A run without an end or a lease is `unfinished`: it is still listing, or has crashed."""
    writer = holder(collection.storage)
    shown = []
    for run in runs:
        content = run.model_dump(mode="json")
        if run.outcome == "running" and (writer is None or (writer.host, writer.pid) != (run.host, run.pid)):
            content["outcome"] = "unfinished"
        shown.append(content)
    return shown


def runs_table(shown: Sequence[dict[str, Any]]) -> TextTable:
    """`facts` for people. A run's id says when it began, in UTC."""
    rows = []
    for run in shown:
        counts = [f"{run['counts'].get(name, 0):,} {name}" for name in _SHOWN if run["counts"].get(name)]
        took = ""
        if run["ended_at"]:
            took = str(datetime.fromisoformat(run["ended_at"]) - datetime.fromisoformat(run["started_at"]))
        row = (run["id"], took.partition(".")[0], run["outcome"], ", ".join(counts), run["index"], run["message"])
        rows.append([value or "" for value in row])
    header = ("run", "took", "outcome", "images", "index", "message")
    return TextTable(header, rows, right={1}, unfolded={0, 1, 2, 4})


def _read(storage: Storage, run_id: str) -> JobRun | None:
    """The run; None if another process is removing it, or if it was altered: the others are still shown."""
    try:
        return JobRun.from_bytes(storage.read(f"{HISTORY}/{run_id}.json"))
    except (FileNotFoundError, ValueError):
        return None


def _ids(storage: Storage) -> list[str]:
    return [entry.name.removesuffix(".json") for entry in storage.list(HISTORY) if entry.name.endswith(".json")]
