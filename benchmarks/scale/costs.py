"""What a unit of each kind of work costs: the record that `benchmarks.scale` measures and `docs/scale.json` holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

MILLION = 1_000_000


class Record(BaseModel):
    """Figures that were measured together. A name or a figure too many is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Machine(Record):
    """Where and when. `quick`: with few rows, so that nothing of it should be published; `kept`: what could not be
    measured, so that its figures are those of the run before.
    """

    date: str
    cpu: str
    cores: int
    memory_bytes: int
    python: str
    quick: bool
    kept: list[str] = []


class Decoding(Record):
    """Fetching from a local disk, hashing, decoding and cropping one picture, in ms of one core."""

    picture: str
    width: int
    height: int
    draft: bool
    file_bytes: int
    cpu_ms: float

    @property
    def megapixels(self) -> float:
        return self.width * self.height / MILLION


class Model(Record):
    """One image's share of a forward pass in batches on all cores, in ms of one core; `side` pixels of its crop."""

    name: str
    side: int
    core_ms: float


class RowBytes(Record):
    """Bytes of a row in Parquet files of `block` rows."""

    dim: int
    block: int
    bytes: float


class Listing(Record):
    """Of one row: listing a folder; comparing a list with as many live rows, nothing having changed.

    `listing_bytes` and `comparing_bytes` are what the most that the process held grows by with each.
    """

    listed: int
    listing_s: float
    listing_bytes: float
    compared: int
    comparing_s: float
    comparing_bytes: float
    manifest_bytes_per_file: float


class Index(Record):
    """One segment of `rows` vectors.

    `core_ms` is a query's share of a batch on one core; `p50_ms` is of single queries on one core with their rows'
    columns; `candidates` are the vectors that it reads from the file of the exact ones. `truth_core_s` is the
    exact pass over all rows that recall is measured against, `check_s` the checksums of all files, `lookup_ms` finding
    a row by its id. `ann_bytes`, `vectors_bytes` and `rows_bytes` are its files'; `own_bytes` and `mapped_bytes` what a
    server gains in memory: its own, and the approximate index; `peak_bytes` is what building held, `peak_own_bytes`
    that without pages of files.
    """

    kind: str
    rows: int
    dim: int
    factory: str
    recall: float
    build_s: float
    build_core_s: float
    peak_bytes: float
    peak_own_bytes: float
    truth_core_s: float
    check_s: float
    ann_bytes: float
    vectors_bytes: float
    rows_bytes: float
    own_bytes: float
    mapped_bytes: float
    core_ms: float
    p50_ms: float
    candidates: int
    lookup_ms: float

    @property
    def memory_bytes(self) -> float:
        """That should be in memory to search."""
        return self.own_bytes + self.mapped_bytes

    @property
    def disk_bytes(self) -> float:
        """Of all files of a segment."""
        return self.ann_bytes + self.vectors_bytes + self.rows_bytes


@dataclass(frozen=True)
class Line:
    """A cost that grows with rows: what there is for none, and for each."""

    constant: float
    slope: float

    def at(self, rows: float) -> float:
        return self.constant + self.slope * rows


class Scan(Record):
    """An exact scan of so many vectors in memory: a query's share of a batch, and a single query, both on one core."""

    rows: int
    dim: int
    core_ms: float
    p50_ms: float


class Requests(Record):
    """What a step asks of an object store: requests for each of `unit`, by HTTP method, listings apart."""

    step: str
    unit: str
    put: float
    get: float
    head: float
    list: float
    other: float

    @property
    def total(self) -> float:
        return self.put + self.get + self.head + self.list + self.other


class Costs(Record):
    """Everything. `crop_bytes` of one picture on its way from decoding to the model, in a table as Ray carries it."""

    machine: Machine
    decoding: list[Decoding]
    crop_bytes: float
    models: list[Model]
    rows: list[RowBytes]
    listing: Listing
    indexes: list[Index]
    scan: Scan
    requests: list[Requests]

    @classmethod
    def read(cls, path: Path) -> Costs:
        """What `write` wrote."""
        return cls.model_validate_json(path.read_text())

    def write(self, path: Path) -> None:
        """As indented JSON, numbers in four significant digits: a measurement has no more."""
        rounded = type(self).model_validate(_rounded(self.model_dump()))
        path.write_text(rounded.model_dump_json(indent=1) + "\n")

    def decoding_of(self, megapixels: float, *, draft: bool = True) -> Decoding:
        """The JPEG whose size is nearest."""
        jpegs = [each for each in self.decoding if each.picture.startswith("JPEG") and each.draft == draft]
        return min(jpegs, key=lambda each: abs(each.megapixels - megapixels))

    def row_of(self, dim: int, block: int) -> RowBytes:
        return next(each for each in self.rows if (each.dim, each.block) == (dim, block))

    def index_of(self, kind: str) -> Index:
        """The largest of a kind."""
        return self._ends(kind)[1]

    def line(self, kind: str, figure: Callable[[Index], float]) -> Line:
        """A figure of a kind through its smallest and its largest index, neither part of it below zero."""
        small, large = self._ends(kind)
        slope = (figure(large) - figure(small)) / (large.rows - small.rows)
        slope = min(max(slope, 0.0), figure(large) / large.rows)
        return Line(constant=figure(large) - slope * large.rows, slope=slope)

    def growth(self, kind: str) -> float:
        """The power of a segment's rows with which the cost of a query grows, between the smallest and the largest."""
        small, large = self._ends(kind)
        return math.log(large.core_ms / small.core_ms) / math.log(large.rows / small.rows)

    def _ends(self, kind: str) -> tuple[Index, Index]:
        of_kind = sorted((each for each in self.indexes if each.kind == kind), key=lambda each: each.rows)
        return of_kind[0], of_kind[-1]

    def requests_of(self, step: str, unit: str) -> Requests:
        return next(each for each in self.requests if (each.step, each.unit) == (step, unit))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(part) for part in value]
    return value
