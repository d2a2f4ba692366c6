"""The outcomes of a collection's latest jobs, stored in the collection itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from index.collection import Collection
from index.collection.layout import HISTORY
from index.collection.lease import current_writer
from index.collection.records.bounds import EntryId, Pid, Time
from index.collection.records.record import Record
from index.errors import LeaseError
from index.storage import Storage
from index.storage.bucket_address import without_secrets
from jobs.embedding.report import Report

MAX_ENTRIES = 200
"""Entries to keep, besides the last success of each source: half a year of nights."""

Outcome = Literal["running", "succeeded", "failed", "busy", "stopped"]


class HistoryEntry(Record):
    """The outcome of a job. `index` was live at its end; `busy` means that another job was writing."""

    id: EntryId
    started_at: Time
    ended_at: Time | None = None
    outcome: Outcome = "running"
    message: str | None = None
    source: str
    collection: str
    host: str
    pid: Pid
    counts: dict[str, int] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    index: str | None = None
    recall: float | None = None

    @classmethod
    def begin(cls, source: str, collection: str) -> HistoryEntry:
        """A job of this process that starts now. Credentials in the addresses are left out."""
        now = datetime.now(UTC)
        return cls(
            # The history is in the order of its ids, and small jobs take less than a second.
            id=f"{now:%Y%m%dT%H%M%SZ}-{now.microsecond >> 4:04x}",
            started_at=now,
            source=without_secrets(source),
            collection=without_secrets(collection),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def end(self, outcome: Outcome, message: str | None = None, report: Report | None = None) -> HistoryEntry:
        """The same job with its outcome, and what its report says."""
        changes: dict[str, Any] = {"ended_at": datetime.now(UTC), "outcome": outcome, "message": message}
        if report:
            done = {"counts": report.known_counts(), "seconds": report.seconds}
            changes |= {**done, "index": report.index_after, "recall": report.recall}
        return self.model_copy(update=changes)

    @property
    def text(self) -> str:
        default = {"succeeded": f"index {self.index}", "busy": "another job is writing"}.get(self.outcome, "")
        details = self.message or default
        return f"likeness: {self.collection} {self.outcome}{f': {details}' if details else ''}"


def outcome_of(error: BaseException) -> tuple[Outcome, str]:
    """The outcome of a job that ended with an error, and its message, without credentials."""
    message = without_secrets(str(error)) or type(error).__name__
    if isinstance(error, LeaseError):
        return "busy", message
    return "failed" if isinstance(error, Exception) else "stopped", message


def save(storage: Storage, entry: HistoryEntry) -> None:
    """Record a job, replacing its earlier record, and remove the oldest entries.

    The last success of each source stays, to show for how long a job has failed.
    """
    storage.write_atomic(f"{HISTORY}/{entry.id}.json", entry.to_bytes())
    for old in _ids(storage)[:-MAX_ENTRIES]:
        record = _read(storage, old)
        if record and record.outcome == "succeeded" and last_success(storage, record.source) == record:
            continue
        storage.delete(f"{HISTORY}/{old}.json")
        storage.delete(f"{HISTORY}/{old}.log")


def save_output(storage: Storage, entry_id: str, output: str) -> None:
    storage.write_atomic(f"{HISTORY}/{entry_id}.log", output.encode())


def read_output(storage: Storage, entry_id: str) -> str:
    """The output of a job. FileNotFoundError if it was not stored: only `likeness schedule` stores it."""
    return storage.read(f"{HISTORY}/{entry_id}.log").decode(errors="replace")


def last_entries(collection: Collection, count: int) -> list[HistoryEntry]:
    """The newest `count` entries, oldest first, without unreadable ones."""
    entries = [_read(collection.storage, entry_id) for entry_id in _ids(collection.storage)[-count:]]
    return [entry for entry in entries if entry]


def last_success(storage: Storage, source: str) -> HistoryEntry | None:
    entries = (_read(storage, entry_id) for entry_id in reversed(_ids(storage)))
    return next((each for each in entries if each and (each.source, each.outcome) == (source, "succeeded")), None)


def history_facts(collection: Collection, entries: Sequence[HistoryEntry]) -> list[dict[str, Any]]:
    """Entries for programs. A job without an end or a lease is `unfinished`: it is still listing or waiting for another
    job, or has crashed.
    """
    writer = current_writer(collection.storage)
    facts = []
    for entry in entries:
        content = entry.model_dump(mode="json")
        if entry.outcome == "running" and (writer is None or (writer.host, writer.pid) != (entry.host, entry.pid)):
            content["outcome"] = "unfinished"
        facts.append(content)
    return facts


def _read(storage: Storage, entry_id: str) -> HistoryEntry | None:
    """The entry; None if another process is removing it, or if it is damaged, so that the others are still shown."""
    try:
        entry = HistoryEntry.from_bytes(storage.read(f"{HISTORY}/{entry_id}.json"))
    except (FileNotFoundError, ValueError):
        return None
    return entry if entry.id == entry_id else None


def _ids(storage: Storage) -> list[str]:
    return [entry.name.removesuffix(".json") for entry in storage.list(HISTORY) if entry.name.endswith(".json")]
