"""An embedder without a model."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedder.images import CropSpec
from embedder.protocol import ModelIdentity, require_crops

# Pictures are reduced to the mean colours of this many cells along each edge.
_CELLS = 4


class FakeEmbedder:
    """A fixed random projection of a picture's 4×4 mean colours, so similar pictures have similar vectors.

    A text's vector is random, seeded with its hash. `side` must be a multiple of 4.
    """

    def __init__(self, *, side: int = 32, dim: int = 16) -> None:
        self.crop = CropSpec(side=side, shortest_edge=side)
        fingerprint = hashlib.sha256(f"fake {side} {dim}".encode()).hexdigest()
        self.identity = ModelIdentity(model_id="fake", revision=None, fingerprint=fingerprint, dim=dim)
        rng = np.random.default_rng(20261121)
        self._projection = rng.standard_normal((_CELLS * _CELLS * 3 + 1, dim)).astype(np.float32)

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        require_crops(pixels, self.crop)
        count, step = len(pixels), self.crop.side // _CELLS
        cells = pixels.reshape(count, _CELLS, step, _CELLS, step, 3).mean(axis=(2, 4)).reshape(count, _CELLS**2 * 3)
        # The constant 1 keeps a mid-grey picture from having the zero vector. einsum instead of @, because the order in
        # which BLAS adds may depend on the batch size, and a fake's vectors should not.
        features = np.concatenate([cells / 127.5 - 1, np.ones((count, 1))], axis=1).astype(np.float32)
        return _unit(np.einsum("nf,fd->nd", features, self._projection))

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.empty((len(texts), self.identity.dim), np.float32)
        for row, text in enumerate(texts):
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
            vectors[row] = np.random.default_rng(seed).standard_normal(self.identity.dim)
        return _unit(vectors)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit
