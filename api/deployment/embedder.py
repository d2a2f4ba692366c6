"""The model in replicas of its own, and the Embedder that calls them. Uses Ray."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from ray.serve.handle import DeploymentHandle

from api.build_service import first_model, served_collections
from api.deployment.replica_cache import ReplicaCache
from api.deployment.replica_calls import answer, cancel, replica_errors
from api.observe.log import configure_logs
from api.problems import EmbedderUnavailable
from api.search.batcher import ContentKey, EmbeddingCache, QueryBatcher
from api.search.engine import EXPECTED_ERRORS, Batchers, LoadModel
from api.settings import ServeSettings
from embedder.images import CropSpec
from embedder.protocol import ModelIdentity
from index.collection.records.model_record import ModelRecord

logger = logging.getLogger(__name__)

Items = NDArray[np.uint8] | Sequence[str]
"""Crops, `(n, side, side, 3)`, or texts."""

# Small enough to spread concurrent queries over the replicas, and large enough not to pay a hop for each query.
_ITEMS_PER_CALL: Final = 8
# A model may have to be downloaded first.
_LOAD_TIMEOUT_S: Final = 900.0


class EmbedderReplica:
    """Embeds with the model that each call names, and loads it first if necessary.

    So a replica that is new, or has missed a change of models, answers like the others. The live index's model is
    loaded at the start, so that a replica is not ready before it can embed. If that fails, an older version may still
    be served: the first call that names its model loads it.
    """

    def __init__(self, settings: ServeSettings, load_model: LoadModel) -> None:
        configure_logs(settings.log_format)
        self._load_model = load_model
        self._batchers = Batchers(EmbeddingCache(settings.embedding_cache_bytes))
        self._models = ReplicaCache[QueryBatcher]()  # by fingerprint
        try:
            first = first_model(served_collections(settings))
            if first is not None:
                self._models.put(first.fingerprint, self._batchers.of(first, load_model))
        except EXPECTED_ERRORS as error:
            logger.warning("the model of the live index version cannot be loaded: %s", error)

    async def describe(self, record: ModelRecord) -> tuple[ModelIdentity, CropSpec]:
        """Load the model if necessary; returns its identity and crop. Raises ModelError, OtherModelError."""
        batcher = await self._models.make(record.fingerprint, partial(self._batchers.of, record, self._load_model))
        return batcher.embedder.identity, batcher.embedder.crop

    async def embed(self, record: ModelRecord, items: Items) -> NDArray[np.float32]:
        """`(n, dim)` float32, unit norm; n is at least 1. Raises ModelError, OtherModelError."""
        batcher = await self._models.call(record.fingerprint, partial(self._batchers.of, record, self._load_model))
        contents = [item if isinstance(item, str) else item.tobytes() for item in items]
        futures = [
            batcher.embed(ContentKey.of(content, record.fingerprint), lambda item=item: item)  # type: ignore[misc]
            for content, item in zip(contents, items, strict=True)
        ]
        return np.stack(await asyncio.gather(*map(asyncio.wrap_future, futures)))


@dataclass(frozen=True)
class RemoteEmbedder:
    """An Embedder whose model EmbedderReplicas hold. Thread-safe; not for an event loop's thread.

    If a replica dies, its calls are repeated at another one. Raises EmbedderUnavailable if a batch is
    not answered within `timeout_s`, however many calls it takes.
    """

    handle: DeploymentHandle[Any]
    record: ModelRecord
    identity: ModelIdentity
    crop: CropSpec
    timeout_s: float

    @classmethod
    def connect(cls, handle: DeploymentHandle[Any], record: ModelRecord, *, timeout_s: float) -> Self:
        """Returns once every replica holds the model. Raises ModelError, OtherModelError, EmbedderUnavailable."""
        with replica_errors(EmbedderUnavailable, "the model does not answer"):
            # The first answer waits for a replica, if none is up yet.
            identity, crop = handle.describe.remote(record).result(timeout_s=_LOAD_TIMEOUT_S)
            handle.broadcast("describe", record).results(timeout_s=_LOAD_TIMEOUT_S)
        return cls(handle, record, identity, crop, timeout_s)

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._embed(pixels)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._embed(list(texts))

    def _embed(self, items: Items) -> NDArray[np.float32]:
        deadline = monotonic() + self.timeout_s
        parts = [items[start : start + _ITEMS_PER_CALL] for start in range(0, len(items), _ITEMS_PER_CALL)]
        with replica_errors(EmbedderUnavailable, "the model does not answer"), ExitStack() as unanswered:
            calls = [partial(self._call, part, unanswered) for part in parts]
            responses = [call() for call in calls]
            vectors = [answer(call, response, deadline) for call, response in zip(calls, responses, strict=True)]
            unanswered.pop_all()
        return np.concatenate(vectors) if vectors else np.empty((0, self.identity.dim), np.float32)

    def _call(self, part: Items, unanswered: ExitStack) -> Any:
        response = self.handle.embed.remote(self.record, part)
        unanswered.callback(cancel, response)
        return response
