"""Held-out queries of each kind with their exact neighbours, against which recall is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Ids, Positions, Scores, Vectors, merged
from index.queries import QueryKind
from index.segments.exact import exact_neighbours
from index.segments.segmented_index import SegmentedIndex

QUERY_COUNT = 1_000
_WEIGHTS: dict[QueryKind, tuple[float, ...]] = {"mix": (1.0, 1.0), "contrast": (1.0, -0.7, 0.7)}
_PARENTS: dict[QueryKind, int] = {"image": 1, "mix": 2, "contrast": 3, "text": 0}
_MOST_PARENTS = 3
DEEPEST = 100  # recall is measured at 1, 10 and 100
_DEPTH = 130  # neighbours are kept, so that deleting some does not require another pass over all rows
_BLOCK_ROWS = 16_384
_EQUAL = 1e-6  # rounding difference of a sum in another order


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Queries made when there were `sampled_from` rows, and the rows nearest to each but those that it was made of.

    `kinds` `(n,)` of `QueryKind`; `parents` `(n, 3)`: ids of the images that a query is or is mixed from, None where
    there are fewer; `vectors` `(n, dim)`; `neighbours` (ids) and `scores` `(n, depth)`, best first, None and -inf where
    there are fewer.
    """

    kinds: npt.NDArray[np.object_]
    parents: Ids
    vectors: Vectors
    neighbours: Ids
    scores: Scores
    sampled_from: int

    @classmethod
    def sample(cls, segments: SegmentedIndex, count: int = QUERY_COUNT, texts: Vectors | None = None) -> GroundTruth:
        """Take `count` evenly spaced live rows, half as many mixes and contrasts of rows at random, and the vectors of
        texts, `(n, dim)`; and find their neighbours in one pass over all rows.
        """
        total = segments.live_count
        numbers = np.linspace(0, total, min(count, total), endpoint=False).astype(np.int64)
        parts = [_mixed(segments, "image", numbers[:, np.newaxis], (1.0,))]
        rng = np.random.default_rng(total)
        for kind, weights in _WEIGHTS.items():
            chosen = rng.integers(0, total, (min(count // 2, total), len(weights)))
            parts.append(_mixed(segments, kind, chosen, weights))
        if texts is not None and len(texts):
            parts.append(("text", np.full((len(texts), _MOST_PARENTS), None, object), texts))
        return cls(
            kinds=np.concatenate([np.full(len(vectors), kind, object) for kind, _, vectors in parts]),
            parents=np.concatenate([parents for _, parents, _ in parts]),
            vectors=np.concatenate([vectors for _, _, vectors in parts]),
            neighbours=np.empty((0, 0), object),
            scores=np.empty((0, 0), np.float32),
            sampled_from=total,
        ).exact(segments)

    def __len__(self) -> int:
        return len(self.kinds)

    def of(self, kind: QueryKind) -> GroundTruth:
        """The queries of one kind, with no more columns of parents than they have."""
        chosen = self._rows(np.flatnonzero(self.kinds == kind))
        return replace(chosen, parents=chosen.parents[:, : _PARENTS[kind]])

    def every(self, step: int) -> GroundTruth:
        """Every `step`-th query."""
        return self._rows(slice(None, None, step))

    def last(self, count: int) -> GroundTruth:
        """The last `count` queries, or all."""
        return self._rows(slice(-count, None))

    def _rows(self, rows: slice | npt.NDArray[np.intp]) -> GroundTruth:
        names = ("kinds", "parents", "vectors", "neighbours", "scores")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def parent_positions(self, segments: SegmentedIndex) -> Positions:
        """Where the parents are, of the shape of `parents`; -1 where they are no longer, or there are fewer."""
        positions = np.full(self.parents.shape, -1, np.int64)
        there = self.parents != None  # noqa: E711
        positions[there] = segments.positions(pa.array(self.parents[there], pa.string()))
        return positions

    def fits(self, rows: int) -> bool:
        """Whether the queries still represent the live rows: their number has neither doubled nor halved since."""
        return self.sampled_from <= 2 * rows and rows <= 2 * self.sampled_from

    def exact(self, segments: SegmentedIndex) -> GroundTruth:
        """The same queries, with neighbours computed block by block from all live rows."""
        return self._among(segments, segments.live_blocks())

    def _among(self, segments: SegmentedIndex, blocks: Iterable[tuple[Positions, Vectors]]) -> GroundTruth:
        # More than are kept: the parents may be among them.
        own = self.parent_positions(segments)
        scores, positions = drop_own(*exact_neighbours(self.vectors, blocks, _DEPTH + own.shape[1]), own)
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
        # An image may be more than one parent of a mix.
        own = np.sort(self.parent_positions(segments), axis=1)
        distinct = (own >= 0) & (np.diff(own, axis=1, prepend=-1) != 0)
        others = segments.live_count - distinct.sum(axis=1)
        needed = np.minimum(DEEPEST, others)
        if (np.isfinite(scores).sum(axis=1) < needed).any():
            return self.exact(segments)
        return replace(self, neighbours=neighbours, scores=scores)

    def write(self, path: Path) -> None:
        depth = self.scores.shape[1]
        table = pa.table(
            {
                "kind": pa.array(self.kinds, pa.string()),
                "parents": _lists(pa.array(self.parents.ravel(), pa.string()), _MOST_PARENTS),
                "vector": _lists(pa.array(self.vectors.ravel()), self.vectors.shape[1]),
                # An image is a neighbour of many queries: without a dictionary its ids were most of the file.
                "neighbours": _lists(pa.array(self.neighbours.ravel(), pa.string()).dictionary_encode(), depth),
                "scores": _lists(pa.array(self.scores.ravel()), depth),
            },
            metadata={"sampled_from": str(self.sampled_from)},
        )
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def read(cls, source: Path | bytes) -> GroundTruth:
        """From a file, or from the bytes of one."""
        with pa.memory_map(str(source)) if isinstance(source, Path) else pa.BufferReader(source) as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()

        def matrix(name: str) -> npt.NDArray[Any]:
            values = pc.list_flatten(table.column(name)).to_numpy()
            return values.reshape(table.num_rows, -1)

        return cls(
            kinds=table.column("kind").to_numpy(),
            parents=matrix("parents"),
            vectors=matrix("vector").copy(),
            neighbours=_decoded(pc.list_flatten(table.column("neighbours").chunk(0))).reshape(table.num_rows, -1),
            scores=matrix("scores").copy(),
            sampled_from=int((table.schema.metadata or {}).get(b"sampled_from", 0)),
        )


def _mixed(
    segments: SegmentedIndex, kind: QueryKind, numbers: npt.NDArray[np.int64], weights: tuple[float, ...]
) -> tuple[QueryKind, Ids, Vectors]:
    """Queries of a kind, each the weighted sum of some live rows, `(n, len(weights))` by their number among them."""
    rows, at = np.unique(numbers, return_inverse=True)
    positions, at = segments.live_positions(rows), at.reshape(numbers.shape)
    parts = segments.vectors(positions)[at]
    sums = np.einsum("npd,p->nd", parts, np.array(weights, np.float32))
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    cancelled = norms[:, 0] < 1e-4  # opposite vectors leave nothing to look for
    sums[cancelled], norms[cancelled] = parts[cancelled, 0], 1
    parents = np.full((len(numbers), _MOST_PARENTS), None, object)
    parents[:, : len(weights)] = segments.ids(positions)[at]
    return kind, parents, sums / norms


def drop_own(scores: Scores, positions: Positions, own: Positions) -> tuple[Scores, Positions]:
    """Drop the `own` positions of each query, `(n,)` or `(n, p)`, and as many of the last columns as it has fewer:
    one column less, or p.
    """
    own = own.reshape(len(positions), -1)
    drop = (positions[:, :, np.newaxis] == own[:, np.newaxis, :]).any(axis=2) & (positions >= 0)
    kept = np.argsort(drop, axis=1, kind="stable")[:, : positions.shape[1] - own.shape[1]]
    return np.take_along_axis(scores, kept, axis=1), np.take_along_axis(positions, kept, axis=1)


def found_scores(segments: SegmentedIndex, queries: GroundTruth, k: int, width: float = 1.0) -> Scores:
    """What the index finds for some queries, `(n, k)`, without what they were made of."""
    own = queries.parent_positions(segments)
    scores, positions = segments.search(queries.vectors, k + own.shape[1], width=width)
    return drop_own(scores, positions, own)[0]


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


def _decoded(values: Any) -> Ids:
    """The texts of a dictionary array, `(n,)`, of which equals are one object; None for null."""
    texts = np.array([*values.dictionary.to_pylist(), None], object)
    decoded: Ids = texts[values.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)]
    return decoded


def _lists(values: pa.Array[Any], size: int) -> pa.Array[Any]:
    return pa.FixedSizeListArray.from_arrays(values, size)
