"""How well a model's neighbours agree with labels: precision and mean average precision, by an exact scan of a sample.

The scan compares with every vector, so the figures depend on the model alone; the index's recall is given separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Positions, rounded
from index.errors import QueryError
from index.search import Searcher
from index.segments.vector_file import BLOCK_ROWS

DEPTHS: Final = (1, 5, 10)
_MAX_SCORES = 1 << 26  # in memory at once: 256 MB
_Z = 1.959964  # of a 95% interval


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over queries, with Wilson's 95% interval, which is wide enough for any values between 0 and 1."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> Estimate:
        mean, n = float(values.mean()), len(values)
        centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n**2))
        return cls(value=mean, low=max(0.0, centre - half), high=min(1.0, centre + half))


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """Figures of the queries with a label. `precision` has a key for each of DEPTHS, such as "10"."""

    label: str
    images: int
    queries: int
    precision: dict[str, Estimate]
    mean_average_precision: Estimate


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Two labels, and the share of the ten nearest to images of the first that have the other."""

    label: str
    neighbour: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`recall` is the index's recall@10, which does not affect the figures. `labelled` counts images with a label."""

    version: str
    model: str
    recall: float
    images: int
    labelled: int
    overall: ClassFigures
    classes: list[ClassFigures]
    confusions: list[Confusion]


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImages:
    """The images of a version that have a value in a column, ordered by id; `codes` index their labels in `names`."""

    searcher: Searcher
    ids: Ids
    positions: Positions
    codes: npt.NDArray[np.int64]
    names: list[str]

    @classmethod
    def of(cls, searcher: Searcher, column: str) -> LabelledImages:
        """QueryError if there is no such column, or if no two images have the same label."""
        positions = searcher.segments.live_positions()
        labels = labels_of(searcher, positions, column)
        labelled = np.flatnonzero(labels != None)  # noqa: E711 (of each element)
        ids = searcher.segments.ids(positions[labelled])
        order = np.argsort(ids, kind="stable")  # equal scores are ranked by id, as in a search
        names, codes = np.unique(labels[labelled][order].astype(str), return_inverse=True)
        if len(names) == len(codes):
            raise QueryError(f"no two images have the same value in column {column!r}: expected labels that are shared")
        return cls(
            searcher=searcher, ids=ids[order], positions=positions[labelled][order], codes=codes, names=names.tolist()
        )

    def queries(self) -> Ids:
        """Ids of the images that share their label with others."""
        return self.ids[np.bincount(self.codes)[self.codes] > 1]


def labels_of(searcher: Searcher, positions: Positions, column: str) -> npt.NDArray[np.object_]:
    """The column as texts, None where a value is null, blank or NaN. QueryError if there is no such column."""
    if column not in searcher.filterable:
        known = ", ".join(searcher.filterable) or "none"
        raise QueryError(f"index version {searcher.version} has no column {column!r}: expected one of {known}")
    labels = np.full(len(positions), None, object)
    for start in range(0, len(positions), BLOCK_ROWS):
        rows = searcher.segments.rows(positions[start : start + BLOCK_ROWS], [column])
        labels[start : start + BLOCK_ROWS] = [_label(row[column]) for row in rows]
    return labels


def _label(value: object) -> str | None:
    """None for null, NaN and blank cells of a CSV."""
    missing = value is None or (isinstance(value, float) and isnan(value)) or not str(value).strip()
    return None if missing else str(value)


def sample_queries(sides: Sequence[LabelledImages], count: int) -> Ids:
    """Up to `count` random ids, sorted, of those that are queries on every side. QueryError if there are none."""
    shared = sides[0].queries()
    for side in sides[1:]:
        shared = shared[np.isin(shared.astype(str), side.queries().astype(str))]
    if not len(shared):
        raise QueryError("no image has a label that others share on both sides: expected some of the same ids")
    chosen = np.random.default_rng(0).choice(len(shared), min(count, len(shared)), replace=False)
    return shared[np.sort(chosen)]


def evaluate(images: LabelledImages, queries: Ids) -> Evaluation:
    """Rank all other labelled images for each query, exactly. `queries` are some of `images.queries()`."""
    numbers = np.searchsorted(images.ids, queries)
    codes = images.codes[numbers]
    precision = np.empty((len(queries), len(DEPTHS)))
    average = np.empty(len(queries))
    pairs = []  # of each query with its ten nearest, as one number
    for block, ranked in _ranked(images, numbers):
        hits = ranked == codes[block, np.newaxis]
        for column, depth in enumerate(DEPTHS):
            precision[block, column] = hits[:, :depth].mean(axis=1)
        ranks = np.arange(1, hits.shape[1] + 1)
        average[block] = (hits * hits.cumsum(axis=1) / ranks).sum(axis=1) / hits.sum(axis=1)
        pairs.append(codes[block, np.newaxis] * len(images.names) + ranked[:, : DEPTHS[-1]])

    def figures(label: str, rows: npt.NDArray[np.intp], count: int) -> ClassFigures:
        return ClassFigures(
            label=label,
            images=count,
            queries=len(rows),
            precision={str(depth): Estimate.of(precision[rows, column]) for column, depth in enumerate(DEPTHS)},
            mean_average_precision=Estimate.of(average[rows]),
        )

    sizes = Counter(images.codes.tolist())
    searcher = images.searcher
    return Evaluation(
        version=searcher.version,
        model=searcher.model.id,
        recall=searcher.manifest.recall["10"],
        images=searcher.ntotal,
        labelled=len(images.ids),
        overall=figures("(all)", np.arange(len(queries)), len(images.ids)),
        classes=[
            figures(images.names[code], np.flatnonzero(codes == code), sizes[code])
            for code in np.unique(codes).tolist()
        ],
        confusions=_confusions(np.concatenate(pairs), images.names),
    )


def _ranked(images: LabelledImages, numbers: npt.NDArray[np.intp]) -> Iterator[tuple[slice, npt.NDArray[np.int64]]]:
    """Blocks of queries, each with the labels of all other images for each query, nearest first."""
    segments, count = images.searcher.segments, len(images.ids)
    step = max(1, min(256, _MAX_SCORES // count))
    for start in range(0, len(numbers), step):
        block = slice(start, start + step)
        own = numbers[block]
        vectors = segments.vectors(images.positions[own])
        scores = np.empty((len(own), count), np.float32)
        for low in range(0, count, BLOCK_ROWS):
            others = images.positions[low : low + BLOCK_ROWS]
            scores[:, low : low + BLOCK_ROWS] = rounded(vectors @ segments.vectors(others).T)
        scores[np.arange(len(own)), own] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :-1]
        yield block, images.codes[order]


def _confusions(pairs: npt.NDArray[np.int64], names: Sequence[str]) -> list[Confusion]:
    """The most frequent first. Counts only pairs that occur, since a table of all pairs may not fit into memory."""
    distinct, counts = np.unique(pairs, return_counts=True)
    labels, neighbours = np.divmod(distinct, len(names))
    shares = counts / np.bincount(labels, counts)[labels]
    return [
        Confusion(label=names[labels[n]], neighbour=names[neighbours[n]], share=float(shares[n]))
        for n in np.argsort(-shares, kind="stable").tolist()
        if labels[n] != neighbours[n]
    ]
