"""Follows the collection's live index version: opened, warmed, and swapped in while queries go on."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from api.engine import Engine
from api.errors import ApiError
from embedder.errors import EmbedderError
from embedder.protocol import Embedder
from index.collection import Collection
from index.errors import CollectionError
from index.records import ModelRecord
from index.search import Searcher
from index.versions import OpenVersion

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 60.0
# A thread that loads a model computes in Python for a tenth of a second, and each time that a search needs the
# interpreter it waits so long for it: a dozen times by default 5 ms.
_SWITCH_S: Final = 0.0005
_EXPECTED: Final = (CollectionError, EmbedderError, ApiError, OSError)


@dataclass(frozen=True, kw_only=True)
class IndexSource:
    """Where index versions come from, and the models that made their vectors. CURRENT is read every `interval_s`.

    `open_version` opens the named one.
    """

    collection: Collection
    load_model: Callable[[ModelRecord], Embedder]
    open_version: OpenVersion = Searcher.open
    interval_s: float = 2.0


class LiveEngine:
    """`engine` is what answers now. Read it once for a request, and finish the request on it.

    With a source the engine follows CURRENT. A version that cannot be opened is reported once and the engine stays;
    it is tried again after a minute, and at once when CURRENT names another. An engine that was followed by
    another goes with the last request that holds it. `failure` is why CURRENT is not what answers. `has_answered`:
    the engine was asked a query and answered, and has not been `lost` since. One that failed to is asked again whenever
    CURRENT is read.
    """

    def __init__(self, engine: Engine, source: IndexSource | None = None) -> None:
        self.engine = engine
        self.source = source
        self.failure: str | None = None
        self.has_answered = False
        self.swaps = self.failed_swaps = 0
        self._failed_version: str | None = None
        self._failed_at = 0.0
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow CURRENT from a thread, where there is a source."""
        if self.source is not None and self._thread is None:
            self._stop.clear()
            follow = threading.Thread(target=self._follow, args=(self.source,), name="likeness-swap", daemon=True)
            self._thread = follow
            self._thread.start()

    def stop(self) -> None:
        """Follow no longer."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def warm_up(self) -> None:
        """Let the engine answer one query. Raises what it raises."""
        self.engine.warm_up()
        self.has_answered = True

    def lost(self, engine: Engine) -> None:
        """The model of `engine` answers no longer."""
        if self.has_answered and engine.batcher is self.engine.batcher:
            self.has_answered = False
            logger.warning("the model of index version %s does not answer: not ready until it does", engine.version)

    def look(self, *, now: bool = True) -> None:
        """Serve what CURRENT names. Without `now` a version that failed within the last minute is left alone."""
        if self.source is None:
            return
        with self._looking:
            version = None
            try:
                version = self.source.collection.current()
                if version is None or version == self.engine.version:
                    self.failure = self._failed_version = None
                elif now or version != self._failed_version or time.monotonic() - self._failed_at >= _AGAIN_S:
                    self._swap(self.source, version)
            except Exception as error:
                self._failed(version, error)
            if not self.has_answered:
                self._warm_up_again()

    def _follow(self, source: IndexSource) -> None:
        while not self._stop.wait(source.interval_s):
            self.look(now=False)

    def _swap(self, source: IndexSource, version: str) -> None:
        before, started = self.engine, time.monotonic()
        with _letting_others_run():
            engine = before.successor(source.open_version(source.collection, version), source.load_model)
            engine.warm_up()
        self.engine, self.has_answered = engine, True
        self.swaps += 1
        self.failure = self._failed_version = None
        model = "" if engine.model == before.model else f", model {engine.model.model_id}"
        took = time.monotonic() - started
        logger.info("index version %s answers after %s%s; opened in %.1f s", version, before.version, model, took)

    def _warm_up_again(self) -> None:
        try:
            self.warm_up()
        except Exception:
            logger.debug("index version %s still answers nothing", self.engine.version, exc_info=True)
        else:
            logger.info("index version %s answers now", self.engine.version)

    def _failed(self, version: str | None, error: Exception) -> None:
        known = self.failure is not None and version == self._failed_version
        self.failure, self._failed_version, self._failed_at = str(error), version, time.monotonic()
        if not known:
            self.failed_swaps += 1
            unexpected = None if isinstance(error, _EXPECTED) else error
            logger.error(
                "index version %s cannot be served, %s stays: %s",
                version or "of CURRENT",
                self.engine.version,
                error,
                exc_info=unexpected,
            )


@contextmanager
def _letting_others_run() -> Iterator[None]:
    """Searches get the interpreter from this thread soon, wherever they need it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
