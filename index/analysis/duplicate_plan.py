"""The plan of a collection's duplicates: which image of each group to keep. A command writes it, the server shows it.

It is a file of JSON lines: a summary, then the groups, so that a page of groups can be read alone.
"""

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, SkipValidation

from index.analysis.duplicate_kinds import KINDS, Kind
from index.collection import Collection
from index.collection.catalog.catalog import Catalog
from index.collection.catalog.sql import parquet
from index.collection.layout import DUPLICATES, INDEX
from index.collection.records.bounds import parse_json
from index.collection.rows import TEXT
from index.errors import CollectionError

_MAX_BYTES: Final = 1 << 30
_GROUPS: Final = 1024  # in memory
_READ: Final = 1 << 20  # bytes: a few thousand groups


class PlannedImage(BaseModel):
    """An image and what the choice depends on. `exif` is None if its file was not read, `uri` if it is hidden."""

    image_id: str
    uri: str | None
    content_hash: str | None
    width: int | None
    height: int | None
    format: str | None
    size: int | None
    modified: datetime | None
    exif: bool | None = None


class Duplicate(PlannedImage):
    """A copy of the picture to keep; one of kind `similar` only shows the same things.

    `difference` of the pixels is 0 … 1. `score` is the cosine of a similar picture with the nearest of its group.
    """

    kind: Kind
    why: str
    difference: float | None = None
    score: float | None = None


class PlannedGroup(BaseModel):
    keep: PlannedImage
    duplicates: tuple[Duplicate, ...]

    def without_locations(self) -> Self:
        hidden = {"uri": None}
        duplicates = tuple(duplicate.model_copy(update=hidden) for duplicate in self.duplicates)
        return self.model_copy(update={"keep": self.keep.model_copy(update=hidden), "duplicates": duplicates})


class PlanSummary(BaseModel):
    """What was looked for in which index version, and what was found.

    `unread` counts unread files by reason, `second_paths` links and other names of files that have another path.
    """

    version: str
    created_at: datetime
    looked_for: tuple[Kind, ...]
    min_score: float
    max_difference: float
    groups: int
    duplicates: dict[Kind, int]
    unread: dict[str, int]
    second_paths: int = 0


class DuplicatePlan(PlanSummary):
    found: SkipValidation[Iterable[PlannedGroup]]


@dataclass(frozen=True)
class GroupFile:
    """Groups in a file, one JSON object per line."""

    path: Path
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[PlannedGroup]:
        with self.path.open("rb") as lines:
            yield from map(PlannedGroup.model_validate_json, lines)


def sort_groups(groups: Iterator[PlannedGroup], folder: Path, catalog: Catalog) -> tuple[GroupFile, dict[Kind, int]]:
    """The groups in a file in `folder`, largest first, and the number of duplicates of each kind that occurs."""
    counts, count, unsorted, path = Counter[Kind](), 0, folder / "groups.parquet", folder / "groups.jsonl"
    types: dict[str, pa.DataType] = {"size": pa.int64(), "keep": TEXT, "line": TEXT}
    schema = pa.schema(types)
    with pq.ParquetWriter(unsorted, schema) as writer:
        while part := list(islice(groups, _GROUPS)):
            count += len(part)
            counts.update(duplicate.kind for group in part for duplicate in group.duplicates)
            columns = (
                [len(each.duplicates) for each in part],
                [each.keep.image_id for each in part],
                [each.model_dump_json() for each in part],
            )
            writer.write_table(pa.table(dict(zip(types, columns, strict=True)), schema=schema))
    sql = f"SELECT line FROM {parquet([unsorted], 'file_row_number')} ORDER BY size DESC, keep, file_row_number"
    with catalog.query(sql, _GROUPS) as batches, path.open("w", encoding="utf-8") as lines:
        for batch in batches:
            lines.writelines(f"{line}\n" for line in batch["line"].to_pylist())
    return GroupFile(path, count), {kind: counts[kind] for kind in KINDS if counts[kind]}


def write_plan(collection: Collection, plan: DuplicatePlan) -> None:
    """Replace the collection's plan."""
    with collection.storage.scratch(INDEX) as folder:
        path = folder / DUPLICATES
        with path.open("w", encoding="utf-8") as lines:
            lines.write(plan.model_dump_json(exclude={"found"}))
            lines.writelines(f"\n{group.model_dump_json()}" for group in plan.found)
        collection.storage.put_file(path, DUPLICATES)


def read_plan(collection: Collection, offset: int, limit: int) -> tuple[PlanSummary, list[PlannedGroup]] | None:
    """The plan with `limit` of its groups after the first `offset`, or None if there is none.

    CollectionError if its file is damaged.
    """
    try:
        with collection.storage.open_input(DUPLICATES, min_read=_READ) as source:
            if source.size() > _MAX_BYTES:
                raise ValueError(f"more than {_MAX_BYTES:,} bytes")
            # Only up to the page, and mostly the first ones are looked at.
            lines = io.BufferedReader(source, _READ)  # type: ignore[type-var]  # it has what is needed
            summary = PlanSummary.model_validate(parse_json(next(lines, b"")))
            groups = islice(lines, offset, offset + limit)
            return summary, [PlannedGroup.model_validate(parse_json(group)) for group in groups]
    except FileNotFoundError:
        return None
    except ValueError as error:
        path = f"{collection.location}/{DUPLICATES}"
        raise CollectionError(f"{path} is damaged: run `likeness duplicates` to write it again") from error
