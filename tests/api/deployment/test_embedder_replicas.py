"""EmbedderReplica, RemoteEmbedder and ReplicaCache, without a cluster."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ray.exceptions import ActorDiedError, NodeDiedError, ObjectLostError, RaySystemError
from ray.serve.exceptions import RequestCancelledError

from api.deployment.embedder import EmbedderReplica, RemoteEmbedder
from api.deployment.replica_cache import ReplicaCache
from api.errors import OtherModelError
from api.problems import EmbedderUnavailable
from api.search.engine import LoadModel
from api.settings import ServeSettings
from benchmarks.common.waiting import eventually
from embedder.errors import ModelError
from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from jobs.embedding.model_source import model_record
from tests.support.collections.several import Loader
from tests.support.collections.small_collection import PLAIN, add_pictures
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.serve_handles import Clock, Handle, task_error

FAKES = {side: FakeEmbedder(side=side) for side in (32, 64, 96)}
RECORDS = {side: model_record(fake.identity) for side, fake in FAKES.items()}
SIDE_OF = {record.fingerprint: side for side, record in RECORDS.items()}


def replica(collection: Collection, load: LoadModel) -> EmbedderReplica:
    return EmbedderReplica(ServeSettings(collection=collection.location), load)


# EmbedderReplica


def test_a_replica_loads_the_live_model_at_the_start_or_later_the_one_that_a_call_names(
    collection: Collection,
) -> None:
    models = Loader(FAKES[64])
    started = replica(collection, models.load)
    models.add(FAKES[32])
    vectors = asyncio.run(started.embed(RECORDS[32], ["star"]))
    np.testing.assert_array_equal(vectors, FakeEmbedder().embed_texts(["star"]))
    add_pictures(collection, PLAIN, FakeEmbedder(side=64))
    asyncio.run(replica(collection, models.load).describe(RECORDS[64]))
    assert [SIDE_OF[fingerprint] for fingerprint in models.loaded] == [32, 32, 64]  # the first attempt failed


def test_a_replica_never_holds_three_models_and_refuses_a_wrong_one(collection: Collection) -> None:
    made: list[weakref.ref[FakeEmbedder]] = []
    counts: list[int] = []

    def others() -> int:
        gc.collect()
        return sum(each() is not None for each in made)

    def load(record: ModelRecord) -> FakeEmbedder:
        # A dropped one is freed with its thread, which takes a moment.
        eventually(lambda: others() < 2, "at most one is left")
        counts.append(others())
        made.append(weakref.ref(embedder := FakeEmbedder(side=SIDE_OF[record.fingerprint])))
        return embedder

    async def describe_all() -> None:
        for record in RECORDS.values():
            assert (await started.describe(record))[0].fingerprint == record.fingerprint

    started = replica(collection, load)
    asyncio.run(describe_all())
    assert counts == [0, 1, 1]
    other = replica(collection, lambda record: FakeEmbedder(side=64))
    with pytest.raises(OtherModelError, match="serve with the model of the index"):
        asyncio.run(other.describe(RECORDS[32]))


# RemoteEmbedder


class Model:
    async def embed(self, record: ModelRecord, texts: Sequence[str]) -> NDArray[np.float32]:
        return FakeEmbedder().embed_texts(texts)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def embed(handle: Handle, texts: Sequence[str]) -> None:
    """Within ten seconds."""
    fake: Any = FakeEmbedder()
    vectors = RemoteEmbedder(handle, RECORDS[32], fake.identity, fake.crop, 10.0).embed_texts(texts)  # type: ignore[arg-type]
    np.testing.assert_array_equal(vectors, fake.embed_texts(texts))


TEXTS = [f"star {number}" for number in range(20)]
NO_ANSWER = "the model does not answer"


def test_a_batch_is_split_into_calls_of_eight(clock: Clock) -> None:
    handle = Handle(Model(), clock, (1, None), (1, None), (1, None))
    embed(handle, TEXTS)
    assert [len(each.args[1]) for each in handle.responses] == [8, 8, 4]
    assert not any(each.is_cancelled for each in handle.responses)


def test_all_calls_of_a_batch_share_one_deadline(clock: Clock) -> None:
    handle = Handle(Model(), clock, (6, None), (99, None), (99, None))
    with pytest.raises(EmbedderUnavailable, match=NO_ANSWER):
        embed(handle, TEXTS)
    assert clock.now == 110.0
    assert handle.waits == [10.0, 4.0, -1.0]
    assert all(each.is_cancelled for each in handle.responses)


def test_a_dead_replicas_calls_are_repeated_until_the_deadline(clock: Clock) -> None:
    handle = Handle(Model(), clock, (7, ActorDiedError()), (1, None))
    embed(handle, ["star"])
    assert handle.waits == pytest.approx([10.0, 3.0], abs=0.1)

    clock.now = 100.0
    with pytest.raises(EmbedderUnavailable, match=NO_ANSWER):
        embed(Handle(Model(), clock, (7, ActorDiedError()), (99, None)), ["star"])
    assert clock.now == pytest.approx(110.0)


def test_any_failure_of_the_cluster_is_a_problem_with_retry_after(clock: Clock) -> None:
    for error in (
        NodeDiedError("the node is gone"),  # type: ignore[no-untyped-call]
        ObjectLostError("00" * 28, None, ""),
        RaySystemError(OSError("no raylet")),  # type: ignore[no-untyped-call]
        RequestCancelledError("1"),
    ):
        with pytest.raises(EmbedderUnavailable) as caught:
            embed(Handle(Model(), clock, (1, error)), ["star"])
        assert caught.value.extensions == {"retry_after_s": 2}
    with pytest.raises(ModelError, match="no vector of this"):  # the model's own error is raised here
        embed(Handle(Model(), clock, (1, task_error(ModelError("no vector of this")))), ["star"])


class Maker:
    """Makes a value of each key, after waiting for `go`, and records the keys in `made`."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def of(self, key: str) -> Callable[[], str]:
        def make() -> str:
            self.made.append(key)
            assert self.go.wait(10)
            if key == "broken":
                raise OSError("damaged")
            return key.upper()

        return make


async def calls(cache: ReplicaCache[str], maker: Maker, *keys: str) -> list[str]:
    return [await cache.call(key, maker.of(key)) for key in keys]


def test_a_value_is_still_made_after_its_callers_have_left() -> None:
    """If opening a shard takes longer than a search may, a later search finds it."""
    maker, cache = Maker(), ReplicaCache[str]()
    maker.go.clear()

    async def ask() -> str:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(cache.call("a", maker.of("a")), 0.05)
        maker.go.set()
        return await cache.call("a", maker.of("a"))

    assert asyncio.run(ask()) == "A"
    assert maker.made == ["a"]


def test_all_callers_that_wait_share_one_value_or_error() -> None:
    maker, cache = Maker(), ReplicaCache[str]()

    async def ask() -> list[str | BaseException]:
        pending = [cache.call(key, maker.of(key)) for key in ("a", "broken", "a", "broken")]
        return await asyncio.gather(*pending, return_exceptions=True)

    assert list(map(str, asyncio.run(ask()))) == ["A", "damaged", "A", "damaged"]
    with pytest.raises(OSError, match="damaged"):
        asyncio.run(calls(cache, maker, "broken"))
    assert maker.made == ["a", "broken", "broken"]


def test_the_two_values_called_last_stay_while_others_are_made_in_advance() -> None:
    maker, cache = Maker(), ReplicaCache[str]()
    assert asyncio.run(calls(cache, maker, "a", "b", "a", "c", "a", "b")) == ["A", "B", "A", "C", "A", "B"]
    assert maker.made == ["a", "b", "c", "b"]

    async def swaps_that_fail() -> None:
        for key in ("d", "e", "f"):
            await cache.make(key, maker.of(key))
        await calls(cache, maker, "b")

    asyncio.run(swaps_that_fail())
    assert maker.made == ["a", "b", "c", "b", "d", "e", "f"]


def test_a_value_that_is_not_called_for_a_quarter_of_an_hour_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("api.deployment.replica_cache.monotonic", lambda: now)
    maker, cache = Maker(), ReplicaCache[str]()
    asyncio.run(calls(cache, maker, "old", "new"))
    now += 899
    asyncio.run(calls(cache, maker, "new", "old"))
    now += 901
    asyncio.run(calls(cache, maker, "new", "old"))
    assert maker.made == ["old", "new", "old"]
