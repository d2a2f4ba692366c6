"""A model and the index of its vectors: what answers a query."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self
from uuid import uuid4

import numpy as np

from api.errors import OtherModelError
from api.search.batcher import OnBatch, QueryBatcher
from api.search.cache import ContentKey, EmbeddingCache
from embedder.errors import ModelError
from embedder.images import CropSpec
from embedder.protocol import Embedder, ModelIdentity
from index.collection.records import ModelRecord
from index.search import Searcher


@dataclass(frozen=True, kw_only=True, eq=False)
class Engine:
    """A model and an index version that belong together. Immutable: a request holds one from beginning to end.

    `text_refusal` says why the model takes no text; None: it does.
    """

    model: ModelIdentity
    crop: CropSpec
    batcher: QueryBatcher
    searcher: Searcher
    text_refusal: str | None

    @classmethod
    def of(cls, embedder: Embedder, searcher: Searcher, cache: EmbeddingCache, on_batch: OnBatch = ()) -> Self:
        """OtherModelError when the searcher's vectors come from another model than `embedder`."""
        require_same_model(embedder.identity, searcher.model)
        batcher = QueryBatcher(embedder, cache, on_batch=on_batch)
        return cls(
            model=embedder.identity,
            crop=embedder.crop,
            batcher=batcher,
            searcher=searcher,
            # Found out once: later on, a ModelError is a defect, not a message for callers.
            text_refusal=_text_refusal(batcher, embedder.identity),
        )

    @property
    def version(self) -> str:
        """Name of the index version."""
        return self.searcher.version

    def successor(self, searcher: Searcher, load_model: Callable[[ModelRecord], Embedder]) -> Self:
        """The engine of another version: with the same model if that made its vectors, else with the version's own."""
        if searcher.model.fingerprint == self.model.fingerprint:
            return replace(self, searcher=searcher)
        return self.of(load_model(searcher.model), searcher, self.batcher.cache, self.batcher.on_batch)

    def warm_up(self) -> None:
        """Answer one query, so that the first caller does not wait for lazy loading."""
        grey = np.full((self.crop.side, self.crop.side, 3), 127, np.uint8)
        vector = self.batcher.embed(_key_of_nothing(self.model), lambda: grey).result()
        self.searcher.search(vector[np.newaxis], 10)


def _key_of_nothing(model: ModelIdentity) -> ContentKey:
    """A key that is never in the cache: a cached vector would not show that the model works."""
    return ContentKey(kind="warm-up", digest=uuid4().bytes, fingerprint=model.fingerprint)


def _text_refusal(batcher: QueryBatcher, model: ModelIdentity) -> str | None:
    """Why the model takes no text, or None when it does."""
    try:
        batcher.embed(_key_of_nothing(model), lambda: "a picture").result()
    except ModelError as error:
        return str(error)
    return None


def require_same_model(ours: ModelIdentity, theirs: ModelRecord) -> None:
    """OtherModelError when the vectors of the index come from another model than ours."""
    if ours.fingerprint != theirs.fingerprint:
        raise OtherModelError(
            f"expected model {theirs.id!r} (fingerprint {theirs.fingerprint}), which made the vectors of the "
            f"index, got {ours.model_id!r} (fingerprint {ours.fingerprint}): serve with the model of the index, or "
            "embed the collection again with this one"
        )
