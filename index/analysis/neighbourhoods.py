"""Looks up all images of a collection among the others, and finds those whose neighbours have other labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.arrays import Positions
from index.builder.recall import drop_own
from index.errors import QueryError
from index.search import Searcher
from index.segments.hits import Hits
from index.segments.segmented_index import SegmentedIndex

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbourhoods:
    """Each image with its nearest others: `ids` `(n,)`; `neighbours` `(n, k)` are positions in them, best first, and
    `scores` `(n, k)` their cosines; -1 and -inf where there are fewer.
    """

    ids: npt.NDArray[np.object_]
    neighbours: npt.NDArray[np.int64]
    scores: Floats


def nearest_others(segments: SegmentedIndex, k: int) -> Iterator[tuple[Positions, Hits]]:
    """Looks up every live row in the index: its position, `(n,)`, and its k nearest others, block by block."""
    if k < 1:
        raise QueryError(f"k is {k!r}: expected a whole number from 1")
    for positions, vectors in segments.live_blocks():
        if len(positions):
            yield positions, drop_own(segments.search(vectors, k + 1), positions)


def neighbourhoods(searcher: Searcher, k: int = 10) -> Neighbourhoods:
    """Look up every image; their vectors are read block by block."""
    segments = searcher.segments
    live = segments.live_positions()
    order = np.full(segments.ntotal + 1, -1, np.int64)  # the last one is for "no neighbour", which is -1
    order[live] = np.arange(len(live))
    neighbours, scores = np.empty((len(live), k), np.int64), np.empty((len(live), k), np.float32)
    for positions, hits in nearest_others(segments, k):
        rows = order[positions]
        neighbours[rows], scores[rows] = order[hits.positions], hits.scores
    return Neighbourhoods(ids=segments.ids(live), neighbours=neighbours, scores=scores)


def label_votes(images: Neighbourhoods, labels: Sequence[str | None]) -> pa.Table:
    """Whether neighbours share an image's label: one row for each image, lowest agreement first.

    `labels` are those of `images.ids`; None is no vote. Columns: image_id, label, agreement (the share of its
    neighbours' votes for its own label), suggestion (the label with most votes) and support (its share). A wrong label
    is likely where agreement is low and support high (Brodley and Friedl, 1999). Images without votes are left out.
    """
    if len(labels) != len(images.ids):
        raise QueryError(
            f"got {len(labels)} labels for {len(images.ids)} images: expected one for each, in their order"
        )
    names = sorted({label for label in labels if label is not None}) or [""]
    code = {name: number for number, name in enumerate(names)}
    codes = np.array([*(-1 if label is None else code[label] for label in labels), -1])  # the last: no neighbour
    votes = np.zeros((len(images.ids), len(names) + 1), np.int64)  # the last column: neighbours without a label
    np.add.at(votes, (np.arange(len(images.ids))[:, np.newaxis], codes[images.neighbours]), 1)
    votes = votes[:, :-1]
    total = votes.sum(axis=1)
    judged = np.flatnonzero((total > 0) & (codes[:-1] >= 0))
    shares = votes[judged] / total[judged, np.newaxis]
    agreement, best = shares[np.arange(len(judged)), codes[judged]], shares.argmax(axis=1)
    support = shares.max(axis=1)
    order = np.lexsort((-support, agreement))
    return pa.table(
        {
            "image_id": pa.array(images.ids[judged][order], pa.string()),
            "label": pa.array([names[n] for n in codes[judged][order]], pa.string()),
            "agreement": agreement[order],
            "suggestion": pa.array([names[n] for n in best[order]], pa.string()),
            "support": support[order],
        }
    )
