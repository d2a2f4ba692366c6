"""The batcher embeds concurrent queries together, and the same picture once."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from api.problems import Problem
from api.search.batcher import ContentKey, EmbeddingCache, QueryBatcher, Vector
from embedder.errors import ModelError
from tests.support.fake_embedder import FakeEmbedder


class SlowEmbedder(FakeEmbedder):
    """Waits for `go` before each pass, and records its size."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[tuple[str, int]] = []
        self.go = threading.Event()
        self.busy = threading.Event()

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        self._wait("images", len(pixels))
        return super().embed_images(pixels)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self._wait("texts", len(texts))
        if "bad" in texts:
            raise ModelError("no vector of this")
        return super().embed_texts(texts)

    def _wait(self, kind: str, count: int) -> None:
        self.busy.set()
        assert self.go.wait(10)
        self.passes.append((kind, count))


def picture(grey: int) -> NDArray[np.uint8]:
    return np.full((32, 32, 3), grey, np.uint8)


def ask(batcher: QueryBatcher, item: Any) -> "Future[Vector]":
    content = item if isinstance(item, str) else item.tobytes()
    return batcher.embed(ContentKey.of(content, "model"), lambda: item)


@pytest.fixture
def slow() -> SlowEmbedder:
    return SlowEmbedder()


def occupy(slow: SlowEmbedder, batcher: QueryBatcher) -> "Future[Vector]":
    """Keep the embedder busy, so that the next queries wait."""
    first = ask(batcher, picture(0))
    assert slow.busy.wait(10)
    return first


def test_waiting_queries_are_embedded_in_passes_of_at_most_max_batch(slow: SlowEmbedder) -> None:
    sizes: list[int] = []
    batcher = QueryBatcher(slow, EmbeddingCache(), max_batch=4, on_batch=[sizes.append])
    occupy(slow, batcher)
    futures = [ask(batcher, picture(grey)) for grey in range(1, 11)] + [ask(batcher, text) for text in ("red", "blue")]
    assert batcher.waiting == 12
    slow.go.set()
    expected = FakeEmbedder().embed_images(np.stack([picture(grey) for grey in range(1, 11)]))
    np.testing.assert_array_equal(np.stack([each.result(10) for each in futures[:10]]), expected)
    np.testing.assert_array_equal(futures[11].result(10), FakeEmbedder().embed_texts(["blue"])[0])
    assert slow.passes == [("images", 1), ("images", 4), ("images", 4), ("images", 2), ("texts", 2)]
    assert sizes == [1, 4, 4, 2, 2]


class TimedEmbedder(FakeEmbedder):
    """Each pass takes 0.05 s."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[int] = []

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        time.sleep(0.05)
        self.passes.append(len(pixels))
        return super().embed_images(pixels)


def answer_four_together(batcher: QueryBatcher) -> None:
    """One query, and three that wait for the end of its pass."""
    first = ask(batcher, picture(0))
    time.sleep(0.02)
    for each in [first, *(ask(batcher, picture(grey)) for grey in range(1, 4))]:
        each.result(10)


def test_callers_that_were_answered_together_are_embedded_together_again() -> None:
    embedder = TimedEmbedder()
    batcher = QueryBatcher(embedder, EmbeddingCache(), linger=100)  # 5 s
    answer_four_together(batcher)
    futures = []
    for grey in range(4, 7):
        time.sleep(0.02)
        futures.append(ask(batcher, picture(grey)))
    for each in futures:
        each.result(4)  # does not wait for a fourth
    assert embedder.passes == [1, 3, 3]


def test_a_lone_query_does_not_wait() -> None:
    embedder = TimedEmbedder()
    batcher = QueryBatcher(embedder, EmbeddingCache(), linger=1_000)  # 50 s
    for grey in (9, 10):
        ask(batcher, picture(grey)).result(10)
    assert embedder.passes == [1, 1]


def test_a_failing_query_does_not_affect_the_others(slow: SlowEmbedder) -> None:
    batcher = QueryBatcher(slow, EmbeddingCache())
    occupy(slow, batcher)
    good, bad, other = (ask(batcher, text) for text in ("good", "bad", "other"))
    slow.go.set()
    np.testing.assert_array_equal(good.result(10), FakeEmbedder().embed_texts(["good"])[0])
    np.testing.assert_array_equal(other.result(10), FakeEmbedder().embed_texts(["other"])[0])
    with pytest.raises(ModelError, match="no vector of this"):
        bad.result(10)
    with pytest.raises(ModelError, match="no vector of this"):
        ask(batcher, "bad").result(10)


def test_the_same_picture_is_embedded_once_while_it_waits_and_afterwards(slow: SlowEmbedder) -> None:
    cache = EmbeddingCache()
    batcher = QueryBatcher(slow, cache)
    occupy(slow, batcher)
    made = 0

    def make() -> NDArray[np.uint8]:
        nonlocal made
        made += 1
        return picture(9)

    key = ContentKey.of(b"nine", "model")
    futures = [batcher.embed(key, make) for _ in range(5)]
    slow.go.set()
    vectors = [each.result(10) for each in futures]
    vectors.append(batcher.embed(key, make).result(10))
    assert made == 1
    assert slow.passes == [("images", 1), ("images", 1)]
    assert all(np.array_equal(vector, vectors[0]) for vector in vectors)
    assert cache.hits == 1
    assert not vectors[-1].flags.writeable


def test_a_closed_batcher_finishes_its_pass_and_refuses_waiting_queries(slow: SlowEmbedder) -> None:
    batcher = QueryBatcher(slow, EmbeddingCache())
    first = occupy(slow, batcher)
    waiting = [ask(batcher, text) for text in ("red", "blue")]
    threading.Timer(0.1, slow.go.set).start()
    batcher.close()
    np.testing.assert_array_equal(first.result(0), FakeEmbedder().embed_images(picture(0)[None])[0])
    for refused in waiting:
        with pytest.raises(Problem, match="the model is closed"):
            refused.result(0)
    assert slow.passes == [("images", 1)]
    np.testing.assert_array_equal(ask(batcher, "late").result(10), FakeEmbedder().embed_texts(["late"])[0])
    batcher.close()
