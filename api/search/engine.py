"""A model and the index of its vectors: what answers a query."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from api.errors import OtherModelError
from api.search.batcher import OnBatch, QueryBatcher
from api.search.cache import ContentKey, EmbeddingCache
from embedder.images import CropSpec
from embedder.protocol import Embedder, ModelIdentity
from index.collection.records import ModelRecord
from index.search import Searcher


@dataclass(frozen=True, eq=False)
class Engine:
    """A model and an index version that belong together. Immutable: a request holds one from beginning to end."""

    batcher: QueryBatcher
    searcher: Searcher

    @classmethod
    def of(cls, embedder: Embedder, searcher: Searcher, cache: EmbeddingCache, on_batch: OnBatch = ()) -> Self:
        """OtherModelError when the searcher's vectors come from another model than `embedder`."""
        require_same_model(embedder.identity, searcher.model)
        return cls(QueryBatcher(embedder, cache, on_batch=on_batch), searcher)

    @property
    def version(self) -> str:
        return self.searcher.version

    @property
    def model(self) -> ModelIdentity:
        return self.batcher.embedder.identity

    @property
    def crop(self) -> CropSpec:
        return self.batcher.embedder.crop

    def successor(self, searcher: Searcher, load_model: Callable[[ModelRecord], Embedder]) -> Self:
        """The engine of another version: with the same model if that made its vectors, else with the version's own."""
        if searcher.model.fingerprint == self.model.fingerprint:
            return replace(self, searcher=searcher)
        return self.of(load_model(searcher.model), searcher, self.batcher.cache, self.batcher.on_batch)

    def warm_up(self) -> None:
        """Answer one query, so that the first caller does not wait for lazy loading."""
        grey = np.full((self.crop.side, self.crop.side, 3), 127, np.uint8)
        vector = self.batcher.embed(ContentKey.unique(), lambda: grey).result()
        self.searcher.search(vector[np.newaxis], 10)
        _ = self.batcher.text_refusal


def require_same_model(ours: ModelIdentity, theirs: ModelRecord) -> None:
    """OtherModelError when the vectors of the index come from another model than ours."""
    if ours.fingerprint != theirs.fingerprint:
        raise OtherModelError(
            f"expected model {theirs.id!r} (fingerprint {theirs.fingerprint}), which made the vectors of the "
            f"index, got {ours.model_id!r} (fingerprint {ours.fingerprint}): serve with the model of the index, or "
            "embed the collection again with this one"
        )
