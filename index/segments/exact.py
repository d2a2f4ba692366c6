"""Exact neighbours, by comparing with every vector, and the number of rows for which that is fast enough."""

from collections.abc import Iterable, Iterator

import faiss
import numpy as np
from faiss.contrib.exhaustive_search import knn_ground_truth

from index.arrays import Positions, Vectors
from index.collection.records.index_settings import IndexSettings
from index.segments.hits import Hits

SCAN_BYTES_PER_SECOND = 10e9  # of an exact scan for one query, on two cores of a common server
MIN_TRAINING_ROWS = 256  # for a quantizer
_FLOAT = 4  # bytes


def exact_neighbours(queries: Vectors, blocks: Iterable[tuple[Positions, Vectors]], k: int) -> Hits:
    """The k nearest among blocks of `(positions, vectors)`, reading one at a time; padded with -inf and -1."""
    seen: list[Positions] = []

    def vectors() -> Iterator[Vectors]:
        for positions, block in blocks:
            if len(block):
                seen.append(positions)
                yield block

    scores, rows = knn_ground_truth(queries, vectors(), k, metric_type=faiss.METRIC_INNER_PRODUCT, ngpu=0)
    found = rows >= 0
    scores = np.where(found, scores, -np.inf).astype(np.float32)
    return Hits.whole(scores, np.where(found, np.concatenate([*seen, [-1]])[np.where(found, rows, 0)], -1))


def max_exact_rows(settings: IndexSettings, dim: int) -> int:
    """How many vectors an exact scan reads within the target latency, and at least `MIN_TRAINING_ROWS`."""
    return max(MIN_TRAINING_ROWS, int(settings.latency_ms * 1e-3 * SCAN_BYTES_PER_SECOND / (dim * _FLOAT)))
