"""Clustered vectors with near-copies, and with content hashes, as annotations need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.annotate import Hashed
from benchmarks.common.clustered import BLOCK, DIM, Clustered, Rows, Vectors

CUT: Final = 0.95
_COPIES = BLOCK // 10
_NOISE = 0.6  # maximum length of a near-copy's noise beside that of a vector: cosines from 0.86


@dataclass(frozen=True)
class Copied(Hashed):
    """Of each block but the first, the first rows are near-copies of rows of the block with half its number."""

    def _block(self, number: int) -> tuple[Vectors, Rows]:
        vectors, clusters = super()._block(number)
        if not 0 < number < 1 << 39:  # not that of queries
            return vectors, clusters
        rng = np.random.default_rng([self.seed, 6, number])
        lengths = rng.uniform(0, _NOISE, (_COPIES, 1)).astype(np.float32)
        noise = lengths / np.float32(DIM**0.5) * rng.standard_normal((_COPIES, DIM), np.float32)
        vectors[:_COPIES] = Clustered(self.seed)._block(number // 2)[0][self.originals(number) % BLOCK] + noise
        vectors[:_COPIES] /= np.linalg.norm(vectors[:_COPIES], axis=1, keepdims=True)
        return vectors, clusters

    def originals(self, number: int) -> Rows:
        """The rows that those at the start of a block are near-copies of; they are no near-copies themselves."""
        rng = np.random.default_rng([self.seed, 7, number])
        return number // 2 * BLOCK + rng.integers(_COPIES, BLOCK, _COPIES)

    def pairs(self, rows: int) -> Iterator[tuple[int, int]]:
        """The near-copies among the first `rows` that reach the cut, each with its original."""
        for number in range(1, rows // BLOCK):
            originals = self.originals(number)
            copies, sources = self._block(number)[0], Clustered(self.seed)._block(number // 2)[0]
            cosines = np.einsum("nd,nd->n", copies[:_COPIES], sources[originals % BLOCK])
            here = np.flatnonzero(cosines >= CUT)
            yield from zip((number * BLOCK + here).tolist(), originals[here].tolist(), strict=True)
