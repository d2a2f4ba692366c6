"""Held-out queries of a collection with their exact neighbours, against which recall is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Positions, Scores, Vectors, merged
from index.segments.exact import exact_neighbours
from index.segments.segmented_index import SegmentedIndex

QUERY_COUNT = 1_000
DEEPEST = 100  # recall is measured at 1, 10 and 100
_DEPTH = 130  # neighbours are kept, so that deleting some does not require another pass over all rows
_BLOCK_ROWS = 16_384
_EQUAL = 1e-6  # rounding difference of a sum in another order


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Images of the collection as queries, taken from `sampled_from` rows, and those nearest to each but itself.

    `ids` `(n,)`, `vectors` `(n, dim)`; `neighbours` (ids) and `scores` `(n, depth)`, best first, null and -inf where
    there are fewer.
    """

    ids: pa.Array[Any]
    vectors: Vectors
    neighbours: npt.NDArray[np.object_]
    scores: Scores
    sampled_from: int

    @classmethod
    def sample(cls, segments: SegmentedIndex, count: int = QUERY_COUNT) -> GroundTruth:
        """Take `count` evenly spaced live rows, and find their neighbours in one pass over all rows."""
        total = segments.live_count
        numbers = np.linspace(0, total, min(count, total), endpoint=False).astype(np.int64)
        positions = segments.live_positions(numbers)
        ids = pa.array(segments.ids(positions), pa.string())
        empty = {"neighbours": np.empty((0, 0), object), "scores": np.empty((0, 0), np.float32)}
        return cls(ids=ids, vectors=segments.vectors(positions), sampled_from=total, **empty).exact(segments)

    def fits(self, rows: int) -> bool:
        """Whether the queries still represent the live rows: their number has neither doubled nor halved since."""
        return self.sampled_from <= 2 * rows and rows <= 2 * self.sampled_from

    def exact(self, segments: SegmentedIndex) -> GroundTruth:
        """The same queries, with neighbours computed block by block from all live rows."""
        return self._among(segments, segments.live_blocks())

    def _among(self, segments: SegmentedIndex, blocks: Iterable[tuple[Positions, Vectors]]) -> GroundTruth:
        # One more than is kept: the image itself may be among them.
        scores, positions = exact_neighbours(self.vectors, blocks, _DEPTH + 1)
        scores, positions = drop_own(scores, positions, segments.positions(self.ids))
        neighbours = np.full(positions.shape, None, object)
        neighbours[positions >= 0] = segments.ids(positions[positions >= 0])
        return replace(self, neighbours=neighbours, scores=scores)

    def updated(self, touched: pa.Array[Any], segments: SegmentedIndex) -> GroundTruth:
        """The same queries after these ids were replaced or deleted. All rows are read only if neighbours run short."""
        gone = pc.is_in(pa.array(self.neighbours.ravel(), touched.type), value_set=touched)
        old = np.where(gone.to_numpy(zero_copy_only=False).reshape(self.scores.shape), -np.inf, self.scores)
        positions = segments.positions(touched)
        positions = np.sort(positions[positions >= 0])
        blocks = np.split(positions, range(_BLOCK_ROWS, len(positions), _BLOCK_ROWS))
        new = self._among(segments, ((block, segments.vectors(block)) for block in blocks))
        # Rows beyond the end of a list were never compared: a new row that scores below it need not be the next one.
        ends = np.where(np.isfinite(self.scores), self.scores, np.inf).min(axis=1, keepdims=True)
        good = np.where(new.scores < ends, -np.inf, new.scores)
        scores, neighbours = merged([(old, self.neighbours), (good, new.neighbours)], _DEPTH)
        others = segments.live_count - (segments.positions(self.ids) >= 0)
        needed = np.minimum(DEEPEST, others)
        if (np.isfinite(scores).sum(axis=1) < needed).any():
            return self.exact(segments)
        return replace(self, neighbours=neighbours, scores=scores)

    def write(self, path: Path) -> None:
        depth = self.scores.shape[1]
        table = pa.table(
            {
                "image_id": self.ids,
                "vector": _lists(pa.array(self.vectors.ravel()), self.vectors.shape[1]),
                "neighbours": _lists(pa.array(self.neighbours.ravel(), pa.string()), depth),
                "scores": _lists(pa.array(self.scores.ravel()), depth),
            },
            metadata={"sampled_from": str(self.sampled_from)},
        )
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def read(cls, path: Path) -> GroundTruth:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()

        def matrix(name: str) -> npt.NDArray[Any]:
            values = pc.list_flatten(table.column(name)).to_numpy()
            return values.reshape(table.num_rows, -1)

        return cls(
            ids=table.column("image_id").combine_chunks(),
            vectors=matrix("vector").copy(),
            neighbours=matrix("neighbours"),
            scores=matrix("scores").copy(),
            sampled_from=int((table.schema.metadata or {}).get(b"sampled_from", 0)),
        )


def drop_own(scores: Scores, positions: Positions, own: Positions) -> tuple[Scores, Positions]:
    """Drop each query's own position, `(n,)`, or the last column if it was not found: one column fewer."""
    drop = positions == own[:, np.newaxis]
    drop[~drop.any(axis=1), -1] = True
    kept = np.argsort(drop, axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(scores, kept, axis=1), np.take_along_axis(positions, kept, axis=1)


def recall(found: Scores, exact: Scores, k: int) -> npt.NDArray[np.float64]:
    """For each query, the share of its k nearest that were found, `(n,)`; others at the same distance count too, as in
    ann-benchmarks. Scores are `(n, k or more)`, best first, -inf where there are fewer.
    """
    k = min(k, exact.shape[1])
    if k == 0:
        return np.ones(len(exact))
    there = np.isfinite(exact[:, :k]).sum(axis=1)
    bar = np.take_along_axis(exact, np.maximum(there - 1, 0)[:, np.newaxis], axis=1) - _EQUAL
    hits = (np.isfinite(found[:, :k]) & (found[:, :k] >= bar)).sum(axis=1)
    return np.where(there > 0, np.minimum(hits, there) / np.maximum(there, 1), 1.0)


def _lists(values: pa.Array[Any], size: int) -> pa.Array[Any]:
    return pa.FixedSizeListArray.from_arrays(values, size)
