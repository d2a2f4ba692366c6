"""The model of an index, loaded by the first query that needs it."""

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from api.errors import OtherModelError
from api.search.engine import require_same_model
from embedder.errors import ModelError
from embedder.images import CropSpec
from embedder.protocol import Embedder, ModelIdentity
from index.collection.records.model_record import ModelRecord


class LazyModel:
    """An Embedder that `load` loads when it is needed. Its identity, the index's, is known before."""

    def __init__(self, record: ModelRecord, load: Callable[[], Embedder]) -> None:
        self.identity = ModelIdentity(
            model_id=record.id, revision=record.revision, fingerprint=record.fingerprint, dim=record.dim
        )
        self._record = record
        self._load = load
        self._lock = Lock()

    @property
    def loaded(self) -> Embedder:
        """The model, loaded once for all threads. Raises ModelError, OtherModelError."""
        with self._lock:  # since Python 3.12 a cached property has none
            return self._loaded

    @cached_property
    def _loaded(self) -> Embedder:
        alternative = 'Searches by id, by vector and for words="only" work without a model'
        try:
            embedder = self._load()
            require_same_model(embedder.identity, self._record)
        except (ModelError, OtherModelError) as error:
            raise type(error)(f"{error}. {alternative}") from error
        return embedder

    @property
    def crop(self) -> CropSpec:
        return self.loaded.crop

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.loaded.embed_images(pixels)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.loaded.embed_texts(texts)
