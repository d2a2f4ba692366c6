"""Embeds the pictures and texts of concurrent queries together, and caches the vectors of recent ones."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final
from uuid import uuid4

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from api.problems import EmbedderUnavailable, Problem
from embedder.images import Region
from embedder.protocol import Embedder

Vector = NDArray[np.float32]
Item = NDArray[np.uint8] | str
"""A crop, `(side, side, 3)`, or a text."""
OnBatch = Sequence[Callable[[int], None]]

ENTRY_BYTES: Final = 512
"""Overhead of a cache entry: its key, the value's header, its slot in the dict."""


@dataclass(frozen=True)
class ContentKey:
    """Identifies a vector by its content and model. Pictures, parts of pictures and texts never share a key."""

    kind: str
    digest: bytes
    fingerprint: str
    region: Region | None = None

    @classmethod
    def of(cls, content: bytes | str, fingerprint: str, region: Region | None = None) -> "ContentKey":
        """The key of a picture's file, a part of the picture, or a text, under the model of this fingerprint."""
        kind, data = ("text", content.encode()) if isinstance(content, str) else ("image", content)
        return cls(kind, hashlib.sha256(data).digest(), fingerprint, region)

    @classmethod
    def unique(cls) -> "ContentKey":
        """A key that is never in the cache, to check that the model works."""
        return cls("probe", uuid4().bytes, "")


class EmbeddingCache:
    """The most recently used vectors, up to `max_bytes`. Counts `hits` and `misses`. Thread-safe."""

    def __init__(self, max_bytes: int = 32 * 2**20) -> None:
        self.hits = self.misses = 0
        self._vectors: LRUCache[ContentKey, Vector] = LRUCache(max_bytes, lambda vector: vector.nbytes + ENTRY_BYTES)
        self._lock = threading.Lock()

    def get(self, key: ContentKey) -> Vector | None:
        """The vector, read-only; or None."""
        with self._lock:
            vector = self._vectors.get(key)
            self.hits += vector is not None
            self.misses += vector is None
            return vector

    def put(self, key: ContentKey, vector: Vector) -> None:
        """Store a copy, as the vector may be a view into a whole batch."""
        copy = vector.copy()
        copy.flags.writeable = False
        with self._lock, suppress(ValueError):  # larger than the cache
            self._vectors[key] = copy


@dataclass(frozen=True, eq=False)
class _Job:
    key: ContentKey
    item: Item
    future: "Future[Vector]"


class QueryBatcher:
    """Embeds waiting queries together, up to `max_batch` in one forward pass, in a thread of its own. Thread-safe.

    There is one pass at a time, because two would compete for the same cores, and torch keeps a pool of threads for
    every thread that calls it. While one pass runs, the next batch gathers. A lone query never waits. Callers that are
    answered together tend to ask again together, so a batch waits until it has as many queries as the last one, if each
    arrives within `linger` times the last pass's duration of the one before. After that it takes only queries that
    follow within a tenth of this time; otherwise one caller could miss every batch.

    The thread ends with `close`, with the last reference to the batcher, or at the latest with the program, which waits
    for it: torch ends the process with SIGABRT if Python shuts down while a thread computes or frees tensors.
    The functions in `on_batch` are called with the size of each pass.
    """

    def __init__(
        self,
        embedder: Embedder,
        cache: EmbeddingCache,
        *,
        max_batch: int = 32,
        linger: float = 0.1,
        on_batch: OnBatch = (),
    ) -> None:
        self.embedder = embedder
        self._cache = cache
        self._on_batch = on_batch
        self._max_batch = max_batch
        self._linger = linger
        self._last_batch = 1
        self._max_wait_s = self._idle_since = 0.0
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        self._futures: dict[ContentKey, Future[Vector]] = {}
        self._lock = threading.Lock()
        # References the batcher only while it embeds, so that an idle one can be freed.
        self._thread = ThreadPoolExecutor(1, "likeness-embed")

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def embed(self, key: ContentKey, make: Callable[[], Item]) -> "Future[Vector]":
        """The vector of the item that `make` returns, `(dim,)` float32, unit norm; or what the embedder raises.

        `make` is not called, and nothing is embedded, if the vector of `key` is in the cache or is being made for
        another caller.
        """
        known = self._find(key)
        if known is not None:
            return known
        item = make()
        future, is_new = self._start(key)
        if is_new:
            self._queue.put(_Job(key, item, future))
            try:
                self._thread.submit(self._embed_next)
            except RuntimeError:  # the batcher is being closed, or the program ends
                self._refuse_waiting()
        return future

    def close(self) -> None:
        """End the thread after its current pass, and refuse the waiting queries. A later query starts a new thread."""
        ending, self._thread = self._thread, ThreadPoolExecutor(1, "likeness-embed")
        ending.shutdown(cancel_futures=True)
        self._refuse_waiting()

    def _find(self, key: ContentKey) -> "Future[Vector] | None":
        with self._lock:
            running = self._futures.get(key)
        if running is not None:
            return running
        vector = self._cache.get(key)
        if vector is None:
            return None
        done: Future[Vector] = Future()
        done.set_result(vector)
        return done

    def _start(self, key: ContentKey) -> "tuple[Future[Vector], bool]":
        """The future of `key`, and whether it is new."""
        with self._lock:
            known = self._futures.get(key)
            if known is not None:
                return known, False
            future = self._futures[key] = Future()
            # A caller that leaves must not cancel what others wait for.
            future.set_running_or_notify_cancel()
            return future, True

    def _embed_next(self) -> None:
        """Embed a batch of waiting queries. Called once for each job; an earlier batch may have taken them all."""
        try:
            first = self._queue.get_nowait()
        except Empty:
            return
        if time.perf_counter() - self._idle_since > self._max_wait_s:
            self._last_batch = 1  # the callers of the last pass have not come back
        batch = self._gather(first)
        started = time.perf_counter()
        pictures = [job for job in batch if not isinstance(job.item, str)]
        self._embed(pictures, lambda items: self.embedder.embed_images(np.stack(items)))
        self._embed([job for job in batch if isinstance(job.item, str)], self.embedder.embed_texts)
        self._idle_since = time.perf_counter()
        self._last_batch, self._max_wait_s = len(batch), self._linger * (self._idle_since - started)

    def _refuse_waiting(self) -> None:
        with suppress(Empty):
            while True:
                self._fail(self._queue.get_nowait(), EmbedderUnavailable("the model is closed: try again"))

    def _gather(self, first: _Job) -> list[_Job]:
        """`first` and all waiting queries; up to the size of the last batch, also those within `_max_wait_s`."""
        batch = [first]
        close_behind = self._max_wait_s / 10 if self._last_batch > 1 else 0
        with suppress(Empty):
            while len(batch) < self._max_batch:
                max_wait_s = self._max_wait_s if len(batch) < self._last_batch else close_behind
                batch.append(self._queue.get(timeout=max_wait_s))
        return batch

    def _embed(self, jobs: Sequence[_Job], embed: Callable[[list[Any]], NDArray[np.float32]]) -> None:
        if not jobs:
            return
        try:
            done = list(zip(jobs, embed([job.item for job in jobs]), strict=True))
        except Exception as error:
            for job in jobs:
                if len(jobs) == 1 or isinstance(error, Problem):  # a Problem is the embedder's fault, not the items'
                    self._fail(job, error)
                else:  # one of them is at fault: tried one by one, only that one fails
                    self._embed([job], embed)
            return
        for callback in self._on_batch:
            callback(len(jobs))
        for job, vector in done:
            self._cache.put(job.key, vector)  # before `_forget`, so that `_find` always sees it in one of the two
            self._forget(job)
            job.future.set_result(vector)

    def _fail(self, job: _Job, error: Exception) -> None:
        self._forget(job)
        job.future.set_exception(error)

    def _forget(self, job: _Job) -> None:
        with self._lock:
            del self._futures[job.key]
