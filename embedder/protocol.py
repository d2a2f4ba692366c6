"""The interface of a model, and the checks of its input; imports no torch."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedder.errors import ModelError
from embedder.identity import ModelIdentity as ModelIdentity
from embedder.images import CropSpec


class Embedder(Protocol):
    """A loaded model. It embeds pictures that have been cropped to `crop`."""

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def crop(self) -> CropSpec: ...

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 RGB to `(n, dim)` float32, unit norm; n may be 0. Raises ModelError, or EmbedError
        if one of the pictures has no vector.
        """
        ...

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`(n, dim)` float32, unit norm. Raises UnsupportedInputError if the model cannot embed texts."""
        ...


def require_crops(pixels: NDArray[np.uint8], crop: CropSpec) -> None:
    """Raises ModelError unless the pixels are `(n, side, side, 3)` uint8."""
    side = crop.side
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (side, side, 3):
        raise ModelError(f"expected uint8 (n, {side}, {side}, 3), got {pixels.dtype} {pixels.shape}")


def require_texts(texts: Sequence[str]) -> None:
    """Raises ModelError for a single string, whose letters would be embedded."""
    if isinstance(texts, str):
        raise ModelError(f"expected a sequence of texts, got one text: pass [{texts!r}]")


def unit_vectors(vectors: NDArray[np.float32], model_id: str, advice: str) -> NDArray[np.float32]:
    """The vectors at unit norm. Raises ModelError, which ends with the advice, if one is zero or not finite."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(bad):
        raise ModelError(
            f"{model_id} gave {len(bad)} of {len(vectors)} inputs a vector that is zero or not finite (the first is "
            f"number {bad[0]}) {advice}; if that fails too, the weights are damaged"
        )
    return vectors / norms  # type: ignore[no-any-return]
