"""Any number of seeded, clustered vectors, and a collection written from them: for measuring an index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.records.model_record import ModelRecord
from index.collection.records.version_manifest import VersionManifest
from index.queries import QueryKind

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

DIM = 512
INTRINSIC_DIM = 48
GROUPS = 1_000
"""Number of clusters, and of buckets that vectors fall into at random."""
BLOCK = 10_000  # rows that are made from one state of the random generator
_SPREAD, _NOISE = 0.6, 0.02
_QUERIES = 1 << 40  # number of the block that queries come from: far beyond those of any set
MODEL = ModelRecord(id="clustered", revision="1", fingerprint="0" * 64, dim=DIM)


@dataclass(frozen=True)
class Clustered:
    """An endless sequence of unit vectors; the first n of them are a set of n.

    Normal clusters around normal centres in 48 dimensions, projected to 512 at random, with a little noise in all of
    them. A row's number is its id.
    """

    seed: int = 0

    def array(self, stop: int) -> Vectors:
        """The first rows, `(stop, 512)` float32; needs memory for them and one block."""
        vectors = np.empty((stop, DIM), np.float32)
        for first in range(0, stop, BLOCK):
            vectors[first : first + BLOCK] = self._block(first // BLOCK)[0][: stop - first]
        return vectors

    def queries(self, count: int) -> Vectors:
        """Vectors of the same distribution that are in no set, `(count, 512)`; at most 10,000."""
        return self._block(_QUERIES)[0][:count]

    def kind(self, kind: QueryKind, count: int, start: int = 0) -> Vectors:
        """Queries of a kind, `(count, 512)`, made of vectors that are in no set; another `start` gives others.

        Texts are a third of a vector's content and noise, beside an offset that all texts share (Liang et al., 2022).
        """
        one, two, three = np.split(self.queries(start + 3 * count)[start:], 3)
        if kind == "text":
            rng = np.random.default_rng([self.seed, 3])
            offset = rng.standard_normal(DIM)
            noise = np.random.default_rng([self.seed, 4, start]).standard_normal((count, DIM))
            mixed = 0.3 * one + offset / np.linalg.norm(offset) + 0.3 * noise / DIM**0.5
            return _unit(mixed)
        return mixed_queries(kind, one, two, three)

    def buckets(self, stop: int) -> Rows:
        """The column `bucket` of the first rows."""
        return np.concatenate([self._columns(number)[0] for number in range(-(-stop // BLOCK))])[:stop]

    def clusters(self, stop: int) -> Rows:
        """The column `cluster` of the first rows: the number of a row's cluster, 0 … 999."""
        return np.concatenate([self._block(number)[1] for number in range(-(-stop // BLOCK))])[:stop]

    def table(self, start: int, stop: int, dim: int = DIM) -> pa.Table:
        """Rows of a collection, all from one block: `bucket` is uniform in 0 … 999, `label` names the `cluster`, `year`
        is one of 26. A smaller `dim` cuts the vectors to their first dimensions, at unit norm.
        """
        first = start - start % BLOCK
        vectors, labels = self._block(start // BLOCK)
        bucket, year = self._columns(start // BLOCK)
        here = slice(start - first, stop - first)
        cut = vectors[here, :dim]
        if dim < DIM:
            cut = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        ids = [str(row) for row in range(start, stop)]
        return pa.table(
            {
                "image_id": pa.array(ids, pa.string()),
                "uri": pa.array([f"memory:{row}" for row in ids], pa.string()),
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(cut.ravel()), dim),
                "bucket": pa.array(bucket[here], pa.int32()),
                "cluster": pa.array(labels[here], pa.int32()),
                "label": pa.array([f"cluster {label}" for label in labels[here]], pa.string()),
                "year": pa.array(year[here], pa.int16()),
            }
        )

    def _columns(self, number: int) -> tuple[Rows, Rows]:
        """`bucket` and `year` of a block."""
        rng = np.random.default_rng([self.seed, 2, number])
        return rng.integers(0, GROUPS, BLOCK), rng.integers(2000, 2026, BLOCK)

    def _block(self, number: int) -> tuple[Vectors, Rows]:
        """Vectors of a block, and the numbers of their clusters."""
        shape = np.random.default_rng([self.seed, 0])
        centres = shape.standard_normal((GROUPS, INTRINSIC_DIM), np.float32)
        projection = shape.standard_normal((INTRINSIC_DIM, DIM), np.float32) / np.float32(INTRINSIC_DIM**0.5)
        rng = np.random.default_rng([self.seed, 1, number])
        clusters = rng.integers(0, GROUPS, BLOCK)
        inner = centres[clusters] + np.float32(_SPREAD) * rng.standard_normal((BLOCK, INTRINSIC_DIM), np.float32)
        vectors: Vectors = inner @ projection
        vectors += np.float32(_NOISE) * rng.standard_normal((BLOCK, DIM), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors, clusters


def mixed_queries(kind: QueryKind, one: Vectors, two: Vectors, three: Vectors) -> Vectors:
    """Queries of any kind but text, made of vectors of images, all `(n, dim)`."""
    return _unit({"image": one, "mix": one + two, "contrast": one - 0.7 * two + 0.7 * three}[kind])


def _unit(vectors: Vectors) -> Vectors:
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def add_rows(
    collection: Collection,
    data: Clustered,
    rows: range,
    deletes: list[int] | None = None,
    *,
    model: ModelRecord = MODEL,
) -> None:
    """Commit a run of these rows, one file per block. `model` is recorded as theirs, and gives their dim."""
    blocks = range(rows.start - rows.start % BLOCK, rows.stop, BLOCK)
    tables = (data.table(max(first, rows.start), min(first + BLOCK, rows.stop), model.dim) for first in blocks)
    collection.add_run("memory:", model, tables, deletes=[str(row) for row in deletes or []])


def index_rows(
    location: str,
    rows: range,
    data: Clustered | None = None,
    settings: IndexSettings | None = None,
    *,
    model: ModelRecord = MODEL,
) -> VersionManifest:
    """Add these rows to a collection, and index them."""
    collection = Collection.create_or_open(location)
    add_rows(collection, data or Clustered(), rows, model=model)
    return build_index(collection, settings)
