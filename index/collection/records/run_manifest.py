"""`started.json` and `manifest.json` of a run: what it was made from, and what it has."""

from typing import Literal, Self

from pydantic import Field, model_validator
from typing_extensions import TypedDict  # pydantic refuses `typing.TypedDict` before Python 3.12

from index.collection.records.bounds import Count, RowFilePath, RunId, Time
from index.collection.records.model_record import ModelRecord
from index.collection.records.record import FileRecord, Record

_ROWS_PER_BYTE = 4
"""Maximum rows of a row file in relation to its size: each row has an id of its own."""


class RowFile(FileRecord):
    """A Parquet file of a run. `path` is relative to the collection."""

    path: RowFilePath
    rows: Count

    @model_validator(mode="after")
    def _holds_its_rows(self) -> Self:
        if self.rows > _ROWS_PER_BYTE * self.size:
            raise ValueError(f"{self.path} has {self.rows:,} rows in {self.size:,} bytes: expected fewer")
        return self


class RunSettings(Record):
    """What the rows of a run were made with, besides its model; rows that were made otherwise are written again.

    `keep` is the filter for images, as canonical JSON; None: all were embedded. `exif` is the version of the columns
    from EXIF that they have; 0: none.
    """

    keep: str | None = None
    exif: Count = 0

    def differing(self, other: "RunSettings") -> list[str]:
        """The names of the settings in which both differ."""
        return [name for name in RunSettings.model_fields if getattr(self, name) != getattr(other, name)]


class RunStart(RunSettings):
    """`started.json`: a run that has begun. Run ids sort by start time.

    In a run of an annotation, `model` is the predictor.
    """

    format: Literal[4] = 4
    run_id: RunId
    source: str
    model: ModelRecord
    started_at: Time


class RunCounts(TypedDict, total=False):
    """How many images were listed, already had a row, and were deleted; and how many rows have each outcome. A run that
    was not made from a source has no counts.
    """

    listed: int
    already_there: int
    deleted: int
    embedded: int
    filtered: int
    rejected: int


class RunManifest(RunStart):
    """`manifest.json` of a run. `files` lists its row files (see `FileList`), of which there may be millions; `facts`
    has all columns of their rows but vectors, and the ids of images that left the source. `finished_at` and `counts`
    are informative.
    """

    finished_at: Time
    files: RowFile
    facts: list[RowFile]
    counts: RunCounts = Field(default_factory=RunCounts)
