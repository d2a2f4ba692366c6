"""Indexes around another: one ranks its candidates again, by finer codes; one transforms vectors before."""

from typing import Any

import faiss
import numpy as np

from index.arrays import Vectors
from index.segments.kinds.kind import IndexKind, Parameters, steps

_SAMPLE = 5_000  # vectors for a covariance


class Refine(IndexKind):
    """Refine(SQ8) and its like."""

    wraps = ("base_index", "refine_index")
    parameter = "k_factor"

    def search_parameters(self, selector: faiss.IDSelector | None, breadth: float, deeper: float = 1.0) -> Any:
        base = self.parts[0].search_parameters(selector, breadth)
        return faiss.IndexRefineSearchParameters(k_factor=self.index.k_factor * deeper, base_index_params=base)

    @property
    def depths(self) -> list[list[Parameters]]:  # ranked by these codes, and then by the exact vectors
        return [
            [{"k_factor": factor, "rescore": exact} for factor in steps(2, deepest, per_octave=2)]
            for exact, deepest in ((1.5, 32), (4.0, 128))
        ]


class Transform(IndexKind):
    """PCA, whose principal dimensions alone are searched, or a rotation (OPQ)."""

    wraps = ("index",)

    @property
    def _steps(self) -> list[Any]:
        return [faiss.downcast_VectorTransform(self.index.chain.at(n)) for n in range(self.index.chain.size())]

    def prepare_training(self, sample: Vectors) -> None:
        super().prepare_training(sample)
        if isinstance(self._steps[0], faiss.PCAMatrix):
            _set_components(self._steps[0], _thinned(sample))

    @property
    def fixed_bytes(self) -> int:
        return super().fixed_bytes + sum(4 * int(step.d_in) * int(step.d_out) for step in self._steps)

    def search_parameters(self, selector: faiss.IDSelector | None, breadth: float, deeper: float = 1.0) -> Any:
        return faiss.SearchParametersPreTransform(index_params=self.parts[0].search_parameters(selector, breadth))

    def require_sound(self, ntotal: int, dim: int) -> None:
        self._require_size(ntotal, dim)
        for step in self._steps:
            if step.d_in != dim or not step.is_trained:
                raise ValueError(f"a transformation takes {step.d_in} dimensions: expected {dim}")
            dim = step.d_out
        self.parts[0].require_sound(ntotal, dim)


def principal_dims(sample: Vectors, share: float) -> int:
    """How many principal dimensions, largest first, have `share` of the variance of `(n, dim)` vectors."""
    variances = np.linalg.eigvalsh(np.cov(_thinned(sample), rowvar=False).reshape(sample.shape[1], -1))[::-1]
    return int(np.searchsorted(np.cumsum(variances), share * variances.sum()) + 1)


def _thinned(sample: Vectors) -> Vectors:
    """Evenly spaced, because the sample has the order of the rows."""
    return sample[:: max(1, len(sample) // _SAMPLE)]


def _set_components(transform: faiss.PCAMatrix, sample: Vectors) -> None:
    """Train on uncentred vectors: faiss would centre them, which changes the ranking by inner product."""
    variances, components = np.linalg.eigh(sample.T @ sample / len(sample))
    faiss.copy_array_to_vector(np.ascontiguousarray(components[:, ::-1].T).ravel(), transform.PCAMat)
    faiss.copy_array_to_vector(variances[::-1].copy(), transform.eigenvalues)
    faiss.copy_array_to_vector(np.zeros(sample.shape[1], np.float32), transform.mean)
    transform.prepare_Ab()
    transform.is_trained = True
