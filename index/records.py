"""The JSON files of a collection: what a run wrote, what an index version holds.

Each file carries a checksum of its own content, so that an altered one is refused rather than believed.
"""

import hashlib
import json
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen record that travels as one JSON file."""

    # Fields that a later release adds must not stop this one from reading.
    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_bytes(self) -> bytes:
        """Indented JSON with a `checksum` of everything else."""
        content = self.model_dump(mode="json")
        return (json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. ValueError when it is not JSON, not this record, or altered."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("its content does not agree with its own checksum")
        return cls.model_validate(content)


class ModelRecord(Record):
    """The model whose vectors these are. `fingerprint` covers weights, configuration and preprocessing."""

    id: str
    revision: str | None
    fingerprint: str
    dim: int

    def __str__(self) -> str:
        return f"{self.id}{f'@{self.revision}' if self.revision else ''} (fingerprint {self.fingerprint[:12]})"


class FileRecord(Record):
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


class RowFile(Record):
    """A Parquet file of a run. `path` is relative to the collection, `size` in bytes."""

    path: str
    rows: int
    size: int


class RunStart(Record):
    """`started.json`: a run that has begun. Run ids sort by the time of their start."""

    format: Literal[1] = 1
    run_id: str
    source: str
    model: ModelRecord
    started_at: datetime


class RunManifest(Record):
    """`manifest.json` of a run: its presence is the commit, and only the files that it names are read.

    `deletes` names a Parquet file with a column `image_id`: images that have left the source.
    """

    format: Literal[1] = 1
    run_id: str
    source: str
    model: ModelRecord
    started_at: datetime
    finished_at: datetime
    files: list[RowFile]
    deletes: RowFile | None = None
    counts: dict[str, int] = {}


class SegmentRecord(Record):
    """A segment of an index version. `files` are named relative to the version's folder."""

    name: str
    ntotal: int
    factory: str
    files: dict[str, FileRecord]


class VersionManifest(Record):
    """`manifest.json` of an index version, written last.

    `recall` maps k to recall@k against exact search; `exact` says that it is so by construction.
    """

    format: Literal[1] = 1
    version: str
    model: ModelRecord
    created_at: datetime
    runs: list[str]
    segments: list[SegmentRecord]
    ntotal: int
    recall: dict[str, float]
    exact: bool
    self_check: dict[str, float]
    seconds: float

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.model.dim


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
