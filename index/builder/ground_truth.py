"""Held-out queries of each kind with their exact neighbours, against which recall is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Ids, Positions, Scores, Vectors
from index.builder.recall import drop_own, near_equal_recall, nearer, recall
from index.queries import QueryKind
from index.segments.exact import exact_neighbours
from index.segments.hits import Hits
from index.segments.nearest import Part, nearest
from index.segments.segment import Segment
from index.segments.segmented_index import SegmentedIndex

RECALL_KS = (1, 10, 100)
"""The k for which recall is measured."""
MAX_PARENTS = 3

_QUERY_COUNT = 1_000
_WEIGHTS: dict[QueryKind, tuple[float, ...]] = {"mix": (1.0, 1.0), "contrast": (1.0, -0.7, 0.7)}
_PARENTS: dict[QueryKind, int] = {"image": 1, "mix": 2, "contrast": 3, "text": 0}
_STABLE = 10  # while so many nearest neighbours of a query stay the same, its recall is not measured again
_FEW = 8  # times as many older rows
_TRIED = 8  # every so many queries are searched for rows that newer ones crowd out
_NEIGHBOURS = 130  # of each query are stored, so that deleting some does not require another pass over all rows
_BLOCK_ROWS = 4_096


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Queries made when there were `sampled_from` rows, and the rows nearest to each, except its parents.

    `kinds` `(n,)` are of `QueryKind`. `parents` `(n, 3)` are ids of the images that a query is or is mixed from, None
    where there are fewer. `vectors` is `(n, dim)`. `nearest` `(n, depth)` are indices into `ids`, best first, and
    `scores` `(n, depth)` their cosines; -1 and -inf where there are fewer. `recalls` `(n, 3)` are the shares of the
    nearest 1, 10 and 100 that the index finds; NaN if not measured since the nearest ten changed.
    """

    kinds: npt.NDArray[np.object_]
    parents: Ids
    vectors: Vectors
    ids: pa.Array[Any]
    nearest: npt.NDArray[np.int32]
    scores: Scores
    recalls: npt.NDArray[np.float64]
    sampled_from: int

    @classmethod
    def sample(cls, segments: SegmentedIndex, count: int = _QUERY_COUNT, texts: Vectors | None = None) -> GroundTruth:
        """Queries of `count` evenly spaced live rows, half as many mixes and contrasts of random rows, and the vectors
        of texts, `(n, dim)`; their neighbours are found in one pass over all rows.
        """
        total = segments.live_count
        numbers = np.linspace(0, total, min(count, total), endpoint=False).astype(np.int64)
        parts = [_mixed(segments, "image", numbers[:, np.newaxis], (1.0,))]
        rng = np.random.default_rng(total)
        for kind, weights in _WEIGHTS.items():
            chosen = rng.integers(0, total, (min(count // 2, total), len(weights)))
            parts.append(_mixed(segments, kind, chosen, weights))
        if texts is not None and len(texts):
            parts.append(("text", np.full((len(texts), MAX_PARENTS), None, object), texts))
        kinds = np.concatenate([np.full(len(vectors), kind, object) for kind, _, vectors in parts])
        return cls(
            kinds=kinds,
            parents=np.concatenate([parents for _, parents, _ in parts]),
            vectors=np.concatenate([vectors for _, _, vectors in parts]),
            ids=pa.array([], pa.string()),
            nearest=np.empty((0, 0), np.int32),
            scores=np.empty((0, 0), np.float32),
            recalls=np.full((len(kinds), len(RECALL_KS)), np.nan),
            sampled_from=total,
        ).exact(segments)

    def __len__(self) -> int:
        return len(self.kinds)

    def of(self, kind: QueryKind) -> GroundTruth:
        """The queries of one kind, with as many columns of parents as the kind has."""
        chosen = self.rows(np.flatnonzero(self.kinds == kind))
        return replace(chosen, parents=chosen.parents[:, : _PARENTS[kind]])

    def recalls_of(self, kind: QueryKind, k: int) -> npt.NDArray[np.float64]:
        """The recalls@k of a kind's queries."""
        recalls: npt.NDArray[np.float64] = self.recalls[self.kinds == kind, RECALL_KS.index(k)]
        return recalls

    def rows(self, rows: slice | npt.NDArray[np.intp]) -> GroundTruth:
        """Some of the queries."""
        names = ("kinds", "parents", "vectors", "nearest", "scores", "recalls")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def parent_positions(self, segments: SegmentedIndex) -> Positions:
        """Positions of the parents, in the shape of `parents`; -1 where one was deleted, or there are fewer."""
        positions = np.full(self.parents.shape, -1, np.int64)
        present = self.parents != None  # noqa: E711
        positions[present] = segments.positions(pa.array(self.parents[present], pa.string()))
        return positions

    def fits(self, rows: int) -> bool:
        """Whether the queries still represent the live rows: their number has neither doubled nor halved since."""
        return self.sampled_from <= 2 * rows and rows <= 2 * self.sampled_from

    def exact(self, segments: SegmentedIndex) -> GroundTruth:
        """The same queries, with neighbours computed block by block from all live rows."""
        own = self.parent_positions(segments)
        # More than are stored, as the parents may be among them.
        hits = exact_neighbours(self.vectors, segments.live_blocks(), _NEIGHBOURS + own.shape[1])
        hits = drop_own(hits, own)
        valid, nearest = hits.positions >= 0, np.full(hits.positions.shape, -1, np.int32)
        rows, nearest[valid] = np.unique(hits.positions[valid], return_inverse=True)
        ids = pa.array(segments.ids(rows), pa.string())
        return replace(self, ids=ids, nearest=nearest, scores=hits.scores).unmeasured()

    def updated(self, touched: pa.Array[Any], segments: SegmentedIndex) -> GroundTruth:
        """The same queries after these ids were replaced or deleted. All rows are read only if neighbours run short.

        Recalls are right if all new rows are searched exactly.
        """
        gone = pc.is_in(self.ids, value_set=touched.cast(pa.string())).to_numpy(zero_copy_only=False)
        hidden = np.append(gone, True)[self.nearest]
        known = Hits.whole(np.where(hidden, -np.inf, self.scores), self.nearest.astype(np.int64))
        lost = np.flatnonzero((hidden & (self.nearest >= 0)).any(axis=1))
        # Rows beyond the end of a list are unknown, so a new row that scores below it may not be the next one.
        ends = np.where(np.isfinite(self.scores), self.scores, np.inf).min(axis=1, keepdims=True)
        positions = segments.positions(touched)
        positions = np.unique(positions[positions >= 0])  # an id may be both deleted and new
        new = pa.array(segments.ids(positions), pa.string())
        parents = pc.index_in(pa.array(self.parents.ravel(), pa.string()), value_set=new)
        own = np.asarray(parents.fill_null(-1)).reshape(self.parents.shape)
        for first in range(0, max(1, len(positions)), _BLOCK_ROWS):
            block = positions[first : first + _BLOCK_ROWS]
            more = nearer(self.vectors @ segments.vectors(block).T, ends, own - first).shifted(len(self.ids) + first)
            # Most lists neither lose nor gain a row.
            lists = np.union1d(lost, np.flatnonzero((more.positions >= 0).any(axis=1)))
            known.put(lists, Hits.joined([known.of(lists), more.of(lists)]).best(self.scores.shape[1]))
            lost = lost[:0]
        valid = np.isfinite(known.scores)
        if self._runs_short(valid.sum(axis=1), segments):
            return self.exact(segments)
        nearest = np.where(valid, known.positions, -1)
        changed = (nearest[:, :_STABLE] != self.nearest[:, :_STABLE]).any(axis=1, keepdims=True)
        # A new neighbour takes the place of one that was found. That it is found too is left to `unmeasured_near`.
        only_gained = ~hidden[:, :_STABLE].any(axis=1, keepdims=True) & (self.recalls == 1)
        ids = pa.concat_arrays([self.ids, new])
        used = np.bincount(nearest[valid], minlength=len(ids)) > 0
        nearest = np.append(np.cumsum(used) - 1, -1)[nearest].astype(np.int32)
        return replace(self, ids=ids.filter(pa.array(used)), nearest=nearest, scores=known.scores).unmeasured(
            changed & ~only_gained
        )

    def _runs_short(self, counts: npt.NDArray[np.intp], segments: SegmentedIndex) -> bool:
        """Whether a query has fewer neighbours, by these counts, than recall is measured with, although there are."""
        if (counts >= min(RECALL_KS[-1], segments.live_count)).all():
            return False
        # An image may be more than one parent of a mix.
        parents = np.sort(self.parent_positions(segments), axis=1)
        distinct = (parents >= 0) & (np.diff(parents, axis=1, prepend=-1) != 0)
        others = segments.live_count - distinct.sum(axis=1)
        return bool((counts < np.minimum(RECALL_KS[-1], others)).any())

    def unmeasured(self, rows: slice | npt.NDArray[np.bool_] = slice(None)) -> GroundTruth:
        """The same queries, without the recalls of these rows, or those that are true in an array of their shape."""
        recalls = self.recalls.copy()
        recalls[rows] = np.nan
        return replace(self, recalls=recalls)

    def unmeasured_near(
        self, segments: SegmentedIndex, gained: Mapping[int, int], widths: Mapping[QueryKind, float]
    ) -> GroundTruth:
        """The same queries, without each recall for which a neighbour is in an approximate segment that has `gained`
        rows: those from a position on, by its number. A recall of 1 stays if the segment finds those of the nearest ten
        that it has, by searches as wide as a kind's: the other segments find the same candidates as before, and all but
        a few of the worst are still ranked exactly.

        If it gained few, its older rows are found as before, unless newer ones crowd them out. Of the queries without a
        newer neighbour only some are searched for that; if one of them misses a neighbour, so are all others.
        """
        recalls = self.recalls.copy()
        for number, first in gained.items():
            segment = segments.parts[number]
            inside = np.append(segment.positions(self.ids), -1)[self.nearest]
            missed_by = partial(self._missed_by, segment, inside[:, :_STABLE], widths)
            newest = first if _FEW * (segment.ntotal - first) <= first else 0
            newer = (inside[:, :_STABLE] >= newest).any(axis=1)
            chosen = newer | (np.arange(len(self)) % _TRIED == 0)
            missed = missed_by(chosen)
            if missed[~newer].any():
                missed |= missed_by(~chosen)
            for column, k in enumerate(RECALL_KS):
                near = (inside[:, : max(k, _STABLE)] >= 0).any(axis=1)
                certain = ~missed & (recalls[:, column] == 1) & (k <= _STABLE)
                recalls[near & ~certain, column] = np.nan
        return replace(self, recalls=recalls)

    def _missed_by(
        self,
        segment: Segment,
        neighbours: Positions,
        widths: Mapping[QueryKind, float],
        chosen: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """The chosen queries with a recall of 1 for which a segment by itself does not find all `neighbours` in it,
        `(n, 10)`, -1 for those elsewhere.
        """
        missed = np.zeros(len(self), bool)
        known = chosen & (neighbours >= 0).any(axis=1) & (self.recalls[:, RECALL_KS.index(_STABLE)] == 1)
        for kind, width in widths.items():
            rows = np.flatnonzero(known & (self.kinds == kind))
            k = _STABLE + _PARENTS[kind]
            positions = nearest([Part(segment)], self.vectors[rows], k, width=width).positions
            among = (neighbours[rows, :, np.newaxis] == positions[:, np.newaxis]).any(axis=2)
            missed[rows] = ~(among | (neighbours[rows] < 0)).all(axis=1)
        return missed

    def measured(
        self, segments: SegmentedIndex, kind: QueryKind, ks: Sequence[int], *, width: float = 1.0, step: int = 1
    ) -> GroundTruth:
        """The same queries with the recalls@k of every `step`-th query of a kind, measured where they are not known.

        A known recall may be too low: a change that leaves a query's nearest ten as they are hides none of them.
        """
        columns = [RECALL_KS.index(k) for k in ks]
        rows = np.flatnonzero(self.kinds == kind)[::step]
        rows = rows[np.isnan(self.recalls[rows][:, columns]).any(axis=1)]
        if not len(rows):
            return self
        queries, recalls = self.rows(rows).of(kind), self.recalls.copy()
        hits = segments.search(queries.vectors, max(ks) + queries.parents.shape[1], width=width)
        hits = drop_own(hits, queries._own_among(hits.positions, segments))
        for column, k in zip(columns, ks, strict=True):
            reached = recall(hits.scores, queries.scores, k)
            recalls[rows, column] = (
                queries._or_near_equal(segments, reached, hits.positions, k) if k <= _STABLE else reached
            )
        return replace(self, recalls=recalls)

    def _own_among(self, positions: Positions, segments: SegmentedIndex) -> Positions:
        """The parents of each query among the positions found for it, in the shape of `parents`; -1 for the others."""
        ids = np.full((*positions.shape, 1), "", object)
        ids[positions >= 0, 0] = segments.ids(positions[positions >= 0])
        is_own = ids == self.parents[:, np.newaxis, :]
        found = np.take_along_axis(positions, is_own.argmax(axis=1), axis=1)
        return np.where(is_own.any(axis=1), found, -1)

    def _or_near_equal(
        self, segments: SegmentedIndex, recalls: npt.NDArray[np.float64], found: Positions, k: int
    ) -> npt.NDArray[np.float64]:
        """The recalls@k, or higher ones where `near_equal_recall` is."""
        nearest, found = self.nearest[:, :k], found[:, :k]
        short = np.flatnonzero((recalls < 1) & (nearest >= 0).all(axis=1) & (found >= 0).all(axis=1))
        if not len(short):
            return recalls
        numbers, slots = np.unique(nearest[short], return_inverse=True)
        true = segments.vectors(segments.positions(self.ids.take(numbers)))[slots.ravel()]
        shape = len(short), k, self.vectors.shape[1]
        images = segments.vectors(found[short].ravel()).reshape(shape)
        result = recalls.copy()
        result[short] = np.maximum(recalls[short], near_equal_recall(images, true.reshape(shape)))
        return result


def _mixed(
    segments: SegmentedIndex, kind: QueryKind, numbers: npt.NDArray[np.int64], weights: tuple[float, ...]
) -> tuple[QueryKind, Ids, Vectors]:
    """Queries of a kind, each the weighted sum of some live rows; `numbers` `(n, len(weights))` count live rows."""
    rows, slots = np.unique(numbers, return_inverse=True)
    positions, slots = segments.live_positions(rows), slots.reshape(numbers.shape)
    parts = segments.vectors(positions)[slots]
    sums = np.einsum("npd,p->nd", parts, np.array(weights, np.float32))
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    cancelled = norms[:, 0] < 1e-4  # opposite vectors leave nothing to look for
    sums[cancelled], norms[cancelled] = parts[cancelled, 0], 1
    parents = np.full((len(numbers), MAX_PARENTS), None, object)
    parents[:, : len(weights)] = segments.ids(positions)[slots]
    return kind, parents, sums / norms
