"""Vectors shaped like those of CLIP, which are harder to index than plain clusters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.common.clustered import BLOCK, DIM, GROUPS, Clustered, Rows, Vectors

_KNEE, _DECAY = 11, 1.65  # the i-th widest dimension has a variance of (i + _KNEE) ** -_DECAY
_SPREAD = 1.3  # spread of a cluster ÷ spread of the centres
_SHAPES = 0.5  # how much clusters differ in the dimensions they extend in
_MEAN = 1.4  # length of the part that all vectors share


@dataclass(frozen=True)
class Cone(Clustered):
    """An endless sequence of unit vectors around a common mean, whose variances follow a power law.

    Clusters overlap, and each extends in different dimensions, so the dimension around a vector is lower than overall:
    a participation ratio of 55, and a local dimension of 31.
    """

    def _block(self, number: int) -> tuple[Vectors, Rows]:
        centres, spreads, rotation, mean = _shape(self.seed)
        rng = np.random.default_rng([self.seed, 1, number])
        clusters = rng.integers(0, GROUPS, BLOCK)
        inner = centres[clusters] + spreads[clusters] * rng.standard_normal((BLOCK, DIM), np.float32)
        vectors: Vectors = inner @ rotation + mean
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors, clusters


@cache
def _shape(seed: int) -> tuple[Vectors, Vectors, Vectors, Vectors]:
    """Centres and spreads of the clusters along the principal axes, `(1000, 512)`; the axes; and the mean."""
    rng = np.random.default_rng([seed, 0])
    widths = np.arange(_KNEE + 1, _KNEE + DIM + 1, dtype=np.float32) ** np.float32(-_DECAY / 2)
    widths /= np.linalg.norm(widths)
    centres = widths * rng.standard_normal((GROUPS, DIM), np.float32)
    shapes = np.exp(np.float32(_SHAPES) * rng.standard_normal((GROUPS, DIM), np.float32) - np.float32(_SHAPES**2))
    rotation = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0].astype(np.float32)
    mean = rng.standard_normal(DIM, np.float32)
    return centres, np.float32(_SPREAD) * widths * shapes, rotation, np.float32(_MEAN) * mean / np.linalg.norm(mean)
