"""Exact neighbours, by comparing with every vector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import faiss
import numpy as np
import numpy.typing as npt
from faiss.contrib.exhaustive_search import knn_ground_truth

Vectors = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]


def exact_neighbours(queries: Vectors, blocks: Iterable[tuple[Positions, Vectors]], k: int) -> tuple[Scores, Positions]:
    """The k nearest by comparing with every vector, one block of `(positions, vectors)` in memory at a time.

    Scores -inf and positions -1 where there are fewer.
    """
    seen: list[Positions] = []

    def vectors() -> Iterator[Vectors]:
        for positions, block in blocks:
            if len(block):
                seen.append(positions)
                yield block

    scores, rows = knn_ground_truth(queries, vectors(), k, metric_type=faiss.METRIC_INNER_PRODUCT, ngpu=0)
    found = rows >= 0
    scores = np.where(found, scores, -np.inf).astype(np.float32)
    return scores, np.where(found, np.concatenate([*seen, [-1]])[np.where(found, rows, 0)], -1)
