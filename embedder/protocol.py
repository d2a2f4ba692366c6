"""The project's interface of a model, without torch."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedder.identity import ModelIdentity as ModelIdentity
from embedder.images import CropSpec


class Embedder(Protocol):
    """A loaded model. Pictures must have been cut to `crop` before they are embedded."""

    @property
    def identity(self) -> ModelIdentity: ...

    @property
    def crop(self) -> CropSpec: ...

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 RGB to `(n, dim)` float32, unit norm; n may be 0. Raises ModelError, or EmbedError
        where one of the pictures has no vector.
        """
        ...

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`(n, dim)` float32, unit norm. Raises UnsupportedInputError if the model has no text side."""
        ...
