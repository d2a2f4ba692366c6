"""Properties of sets of vectors and recall, computed independently of the code under test."""

from __future__ import annotations

import faiss
import numpy as np

from benchmarks.common.clustered import Rows, Vectors


def intrinsic_dimension(vectors: Vectors) -> float:
    """The participation ratio of the covariance: (Σλ)² ÷ Σλ² over its eigenvalues λ."""
    covariance = np.cov(vectors, rowvar=False)
    return float(np.trace(covariance) ** 2 / np.square(covariance).sum())


def local_dimension(scores: Vectors) -> float:
    """The dimension around a point, from the distances of its first two neighbours (Facco et al., 2017).

    `scores` are cosines with the exact neighbours, `(n, 2 or more)`, best first.
    """
    first, second = np.sqrt(2 - 2 * scores[:, 0].astype(np.float64)), np.sqrt(2 - 2 * scores[:, 1].astype(np.float64))
    return float(1 / np.log(second / first).mean())


def exact(queries: Vectors, vectors: Vectors, k: int) -> tuple[Vectors, Rows]:
    """Scores and rows of the k nearest, by brute force."""
    scores, rows = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    return scores, rows


def recall(found: Rows, truth: Rows) -> float:
    """Share of the true neighbours, `(n, k)`, among those found."""
    hits = [len(np.intersect1d(mine, true)) for mine, true in zip(found, truth, strict=True)]
    return float(np.sum(hits) / truth.size)
