"""The user's own embedders: any class with `dim` and `embed_images`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from embedder.errors import EmbedError, ModelError, UnsupportedInputError
from embedder.identity import ModelIdentity
from embedder.images import CropSpec
from embedder.protocol import require_texts
from embedder.python_class import PythonClass

_MIN_NORM = 1e-12  # float32 vectors with a smaller norm have no direction


@dataclass(frozen=True)
class OwnModel:
    """A class that embeds, not constructed yet; the counterpart of `Checkpoint`. See docs/embedders.md."""

    source: PythonClass
    weights: ClassVar[tuple[Path, ...]] = ()

    @property
    def identity(self) -> ModelIdentity:
        """Raises ModelError if the class cannot be imported, or does not embed."""
        user_class = self.source.find()
        dim = getattr(user_class, "dim", None)
        embeds = callable(getattr(user_class, "embed_images", None))
        if type(dim) is not int or dim < 1 or not embeds:
            problem = f"has dim = {dim!r}" if embeds else "has no embed_images"
            raise ModelError(
                f"{self.source.name} {problem}: expected a class with `dim`, an int attribute of the class with the "
                "length of its vectors, and the method `embed_images`, from (n, side, side, 3) uint8 to (n, dim) "
                f"float32. Its `side` is {self.crop.side}"
            )
        fingerprint = self.source.fingerprint((dim, self.crop))
        return ModelIdentity(model_id=self.source.name, revision=None, fingerprint=fingerprint, dim=dim)

    @property
    def crop(self) -> CropSpec:
        return self.source.crop()


class OwnEmbedder:
    """Wraps an instance of the class as an Embedder: checks and normalises its vectors."""

    def __init__(self, model: OwnModel, batch_size: int) -> None:
        self.identity = model.identity
        self.crop = model.crop
        self._instance = model.source.construct()
        self._batch_size = batch_size

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 RGB to `(n, dim)` float32, unit norm.

        Raises EmbedError for the whole batch if the class raises or a vector has no direction: any of the pictures may
        be at fault. Raises ModelError if the class returns anything but an array of vectors.
        """
        vectors = np.empty((len(pixels), self.identity.dim), np.float32)
        for rows in np.array_split(np.arange(len(pixels)), max(1, ceil(len(pixels) / self._batch_size))):
            if not len(rows):
                continue
            batch = pixels[rows]  # a copy: the pixels may be read-only
            try:
                output = self._instance.embed_images(batch)
            except (Exception, SystemExit) as error:
                message = f"{self.identity.model_id} failed ({type(error).__name__}: {error})"[:500]
                raise EmbedError("embedder_failed", message) from error
            vectors[rows], bad = self._normalise("embed_images", output, len(batch))
            if bad is not None:
                raise EmbedError("no_direction", f"{self.identity.model_id} returned {bad[1]}")
        return vectors

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`(n, dim)` float32, unit norm. Raises UnsupportedInputError if the class has no `embed_texts`, or no vector
        for a text; ModelError if it fails.
        """
        require_texts(texts)
        embed = getattr(self._instance, "embed_texts", None)
        if embed is None:
            raise UnsupportedInputError(
                f"{self.identity.model_id} knows pictures only (the class has no embed_texts): search by a picture, by "
                "the id of an image or by a vector"
            )
        try:
            output = embed(list(texts))
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{self.identity.model_id}.embed_texts failed ({type(error).__name__}: {error})"
            ) from error
        vectors, bad = self._normalise("embed_texts", output, len(texts))
        if bad is not None:
            row, problem = bad
            raise UnsupportedInputError(
                f"{self.identity.model_id} returned {problem} for {texts[row]!r}: try other words"
            )
        return vectors

    def _normalise(self, method: str, output: Any, count: int) -> tuple[NDArray[np.float32], tuple[int, str] | None]:
        """The vectors with unit norm, and the row and problem of the first one without a direction."""
        expected = f"expected an array of float32, ({count}, {self.identity.dim}): a vector for each of {count}"
        try:
            vectors = np.asarray(output)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{self.identity.model_id}.{method} returned a {type(output).__name__} that is not an array ({error}): "
                f"{expected}"
            ) from error
        if vectors.dtype.kind != "f" or vectors.shape != (count, self.identity.dim):
            raise ModelError(
                f"{self.identity.model_id}.{method} returned an array of {vectors.dtype}, {vectors.shape}: {expected}"
            )
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        bad = np.flatnonzero(~(np.isfinite(norms) & (norms > _MIN_NORM)))
        if len(bad):
            problem = "a vector of zeros" if np.isfinite(norms[bad[0]]) else "a vector with values that are not finite"
            return np.zeros(vectors.shape, np.float32), (int(bad[0]), problem)
        return (vectors / norms).astype(np.float32), None
