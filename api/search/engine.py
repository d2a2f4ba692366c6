"""A model and the index of its vectors, and how they follow the collection's live version while queries go on."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from api.errors import ApiError, OtherModelError
from api.problems import VersionGone, abbreviate
from api.search.batcher import ContentKey, EmbeddingCache, QueryBatcher
from embedder.errors import EmbedderError, Rejected, UnsupportedInputError
from embedder.images import CropSpec
from embedder.protocol import Embedder, ModelIdentity
from embedder.python_class import what_changed
from index.collection import Collection
from index.collection.records.model_record import UNKNOWN_MODEL_MESSAGE, ModelRecord
from index.errors import CollectionError, EmptyCollectionError
from index.search import Searcher, VersionSearcher
from index.search.joined_index import JoinedSearcher
from index.search.searcher import OpenVersion

logger = logging.getLogger(__name__)

LoadModel = Callable[[ModelRecord], Embedder]
"""Loads the model that an index version records."""

_RETRY_S: Final = 60.0
_PAGES_S: Final = 600.0
_PAGED: Final = 3  # versions that pages are answered from
EXPECTED_ERRORS: Final = (CollectionError, EmbedderError, ApiError, OSError)
"""A version or model that cannot be opened; other errors are defects of ours and logged with a traceback."""


class Batchers:
    """One batcher for each model in use, which all its engines share. It is freed with the last of them.

    The functions in `on_batch` are called with the size of each batch. Thread-safe.
    """

    def __init__(self, cache: EmbeddingCache | None = None) -> None:
        self.cache = cache or EmbeddingCache()
        self.on_batch: list[Callable[[int], None]] = []
        self._by_model: WeakValueDictionary[str, QueryBatcher] = WeakValueDictionary()
        # One for each model, so that a slow download does not delay the others.
        self._loading: dict[str, threading.Lock] = {}

    def of(self, record: ModelRecord, load_model: LoadModel) -> QueryBatcher:
        """The batcher of a model, which is loaded unless it is in use. Raises OtherModelError, and as `load_model`."""
        with self._loading.setdefault(record.fingerprint, threading.Lock()):
            batcher = self._by_model.get(record.fingerprint)
            if batcher is None:
                embedder = load_model(record)
                require_same_model(embedder.identity, record)
                batcher = QueryBatcher(embedder, self.cache, on_batch=self.on_batch)
                self._by_model[record.fingerprint] = batcher
            return batcher

    @property
    def waiting(self) -> int:
        """How many queries wait to be embedded."""
        batchers = [reference() for reference in self._by_model.valuerefs()]
        return sum(batcher.waiting for batcher in batchers if batcher is not None)


@dataclass(frozen=True, eq=False)
class Engine:
    """A model and an index version that belong together. Immutable: a request holds one from beginning to end."""

    batcher: QueryBatcher
    searcher: VersionSearcher

    @classmethod
    def joined(cls, engines: Sequence["Engine"]) -> "Engine":
        """One that searches the images of all; if their models differ, without vectors."""
        if len(engines) == 1:
            return engines[0]
        searchers = [engine.searcher for engine in engines if isinstance(engine.searcher, Searcher)]
        if len(searchers) < len(engines):
            raise ApiError("expected several collections in this process, got one whose index is in shards")
        return cls(engines[0].batcher, JoinedSearcher(searchers))

    @property
    def embedder(self) -> Embedder:
        return self.batcher.embedder

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self.embedder.identity.fingerprint

    def warm_up(self) -> bool:
        """Answer one query, so that the first caller does not wait for lazy loading. Whether the model embeds texts."""
        side = self.embedder.crop.side
        grey = np.full((side, side, 3), 127, np.uint8)
        vector = np.ones(self.searcher.dim, np.float32)
        with suppress(UnsupportedInputError, Rejected):  # a user's own class may have no vector for grey
            vector = self.batcher.embed(ContentKey.unique(), lambda: grey).result()
        self.searcher.search(vector[np.newaxis], 10)
        try:
            self.batcher.embed(ContentKey.unique(), lambda: "a picture").result()
        except UnsupportedInputError:
            return False
        return True


def require_same_model(ours: ModelIdentity, theirs: ModelRecord) -> None:
    """Raises OtherModelError if the vectors of the index come from another model than ours."""
    if ours.fingerprint != theirs.fingerprint:
        changed = what_changed(ours.model_id, theirs.id)
        raise OtherModelError(
            f"expected model {theirs.id!r} (fingerprint {theirs.fingerprint}), which made the vectors of the "
            f"index, got {ours.model_id!r} (fingerprint {ours.fingerprint}){changed}: serve with the model of the "
            "index, or embed the collection again with this one"
        )


class UnknownModel:
    """Stands for the model of imported vectors if nobody named it; queries by id and by vector need no model."""

    crop = CropSpec(side=1, shortest_edge=None)

    def __init__(self, record: ModelRecord) -> None:
        self.identity = ModelIdentity(model_id=record.id, revision=None, fingerprint=record.fingerprint, dim=record.dim)
        self._refusal = UNKNOWN_MODEL_MESSAGE

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        raise UnsupportedInputError(self._refusal)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise UnsupportedInputError(self._refusal)


class LiveEngine:
    """Holds the current `engine`. Read it once for a request, and keep it to the request's end.

    The first one has this `searcher`. With a `collection` the engine then follows its CURRENT, which is read every
    `interval_s`. If a version cannot be opened, this is reported once and the engine stays; that version is tried again
    after a minute, another one at once. A replaced engine is freed with the last request that holds it, or ten minutes
    after the last of several pages that it answered, as further ones have to be of the same version. `failure` says why
    the engine is not that of CURRENT. `has_answered`: the engine has answered a query, and was not marked
    unavailable since. If not, it is sent a query whenever CURRENT is read. `embeds_texts`: whether its model did so
    then.

    Raises OtherModelError, and as `load_model`.
    """

    def __init__(
        self,
        searcher: VersionSearcher,
        load_model: LoadModel,
        *,
        batchers: Batchers | None = None,
        collection: Collection | None = None,
        open_version: OpenVersion = Searcher.open,
        interval_s: float = 2.0,
    ) -> None:
        self.batchers = batchers or Batchers()
        self.collection = collection
        self._load_model = load_model
        self._open_version = open_version
        self._interval_s = interval_s
        self.engine = self._engine(searcher)
        self.failure: str | None = None
        self.has_answered = False
        self.embeds_texts = True
        self.swaps = self.failed_swaps = 0
        self._paged: dict[str, tuple[Engine, float]] = {}
        self._paging = threading.Lock()
        self._failed_version: str | None = None
        self._failed_at = 0.0
        self._refreshing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow CURRENT from a thread, if there is a collection."""
        if self.collection is not None and self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._follow, name="likeness-swap")
            self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread: at once, unless it is opening a version. Without `wait` it ends by itself."""
        if self._thread is not None:
            self._stop.set()
            if wait:
                self._thread.join()
            self._thread = None

    def warm_up(self) -> None:
        self.embeds_texts = self.engine.warm_up()
        self.has_answered = True

    def engine_of(self, edition: str) -> Engine:
        """The engine of an index version from which a page was answered, for the next page. Raises VersionGone."""
        for _ in range(2):
            for engine in (self.engine, *(engine for engine, _ in list(self._paged.values()))):
                if engine.searcher.manifest.edition == edition:
                    return engine
            self.refresh(now=False)  # another process of the server may have a newer version
        version, other = self.engine.searcher.version, edition.partition(" ")[0]
        raise VersionGone(
            f"index version {version} answers now, and the cursor is of "
            f"{'another index' if other in ('', version) else f'version {abbreviate(other)}'}: search again without it"
        )

    def keep_for_pages(self, engine: Engine) -> None:
        """Keep the engine until ten minutes after this, as long as its model is in use anyway; the latest few."""
        with self._paging:
            self._paged.pop(engine.searcher.manifest.edition, None)
            self._paged[engine.searcher.manifest.edition] = engine, time.monotonic()
            for edition in list(self._paged)[:-_PAGED]:
                del self._paged[edition]

    def _forget_pages(self) -> None:
        oldest = time.monotonic() - _PAGES_S
        with self._paging:
            for edition, (engine, last) in list(self._paged.items()):
                if last < oldest or engine.batcher is not self.engine.batcher:
                    del self._paged[edition]

    def mark_unavailable(self, engine: Engine) -> None:
        """Record that the model of `engine` no longer answers."""
        if self.has_answered and engine.batcher is self.engine.batcher:
            self.has_answered = False
            logger.warning(
                "the model of index version %s does not answer: not ready until it does", engine.searcher.version
            )

    def refresh(self, *, now: bool = True) -> None:
        """Serve the version that CURRENT names. Without `now`, skip one that failed within the last minute."""
        if self.collection is None:
            return
        with self._refreshing:
            version = None
            try:
                version = self.collection.current()
                if version is None:
                    raise EmptyCollectionError(
                        f"{self.collection.location} has no index version any more: is a disk not mounted, or was the "
                        "collection deleted?"
                    )
                if self._is_served(self.collection, version):
                    self.failure = self._failed_version = None
                elif now or version != self._failed_version or time.monotonic() - self._failed_at >= _RETRY_S:
                    self._swap(self.collection, version)
            except Exception as error:
                self._record_failure(version, error)
            if not self.has_answered:
                self._warm_up_again()
            self._forget_pages()

    def _follow(self) -> None:
        while not self._stop.wait(self._interval_s):
            if not threading.main_thread().is_alive():
                return  # nobody called `stop`, and the program waits for this thread
            self.refresh(now=False)

    def _is_served(self, collection: Collection, version: str) -> bool:
        served = self.engine.searcher.manifest
        # A collection that was deleted and made again has the same versions.
        return version == served.version and collection.read_version(version).edition == served.edition

    def _engine(self, searcher: VersionSearcher) -> Engine:
        return Engine(self.batchers.of(searcher.model, self._load_model), searcher)

    def _swap(self, collection: Collection, version: str) -> None:
        before, started = self.engine, time.monotonic()
        engine = self._engine(self._open_version(collection, version))
        self.embeds_texts = engine.warm_up()
        self.engine, self.has_answered = engine, True
        self.swaps += 1
        self.failure = self._failed_version = None
        model = engine.embedder.identity
        new_model = "" if model == before.embedder.identity else f", with model {model.model_id}"
        seconds = time.monotonic() - started
        logger.info(
            "index version %s replaces %s%s; opened in %.1f s", version, before.searcher.version, new_model, seconds
        )

    def _warm_up_again(self) -> None:
        try:
            self.warm_up()
        except Exception:
            logger.debug("index version %s still does not answer", self.engine.searcher.version, exc_info=True)
        else:
            logger.info("index version %s answers now", self.engine.searcher.version)

    def _record_failure(self, version: str | None, error: Exception) -> None:
        is_known = self.failure is not None and version == self._failed_version
        self.failure, self._failed_version, self._failed_at = str(error), version, time.monotonic()
        if not is_known:
            self.failed_swaps += 1
            unexpected = None if isinstance(error, EXPECTED_ERRORS) else error
            logger.error(
                "index version %s cannot be served, %s stays: %s",
                version or "of CURRENT",
                self.engine.searcher.version,
                error,
                exc_info=unexpected,
            )
