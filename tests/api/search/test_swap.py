"""New index versions and models take over while queries go on."""

import gc
import logging
import shutil
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.problems import EmbedderUnavailable
from api.search.query import Part, Query, SearchResult
from api.search.service import SearchService
from benchmarks.common.waiting import eventually
from embedder.protocol import Embedder
from index.collection import Collection
from index.search import Searcher
from tests.support.collections.several import Loader, OtherFake
from tests.support.collections.small_collection import COLOURS, add_pictures, fake_service, make_collection, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import on_this_machine

RED = png(COLOURS["red.png"])


@pytest.fixture
def models() -> Loader:
    return Loader(FakeEmbedder())


@pytest.fixture
def other(models: Loader) -> OtherFake:
    """Another model, which can be loaded."""
    models.add(other := OtherFake())
    return other


@pytest.fixture
def service(collection: Collection, models: Loader) -> SearchService:
    return serving(collection, models)


def like_red(service: SearchService, k: int = 10) -> SearchResult:
    return service.search(Query(parts=(Part(data=RED),), options={"k": k}))


def serving(collection: Collection, models: Loader, interval_s: float = 0.02) -> SearchService:
    return fake_service(Searcher.open(collection), load_model=models.load, collection=collection, interval_s=interval_s)


def grow(collection: Collection, name: str, embedder: Embedder | None = None) -> None:
    """Add a version with one more picture; with `embedder`, all pictures are embedded again by it."""
    new = {name: png((5 * len(collection.runs()), 99, 50))}
    known = map(str, collection.live_rows(["image_id"]).column("image_id").to_pylist() if embedder else [])
    again = {name: png(COLOURS.get(name, (9, 9, 9))) for name in known}
    add_pictures(collection, new | again, embedder or FakeEmbedder())


def test_a_new_version_takes_over(service: SearchService, collection: Collection, models: Loader) -> None:
    before = service.engine
    grow(collection, "new.png")
    assert like_red(service).version == "000001"
    service.live.refresh()
    answer = like_red(service)
    assert (answer.version, answer.ntotal, len(answer.matches)) == ("000002", 4, 4)
    assert models.loaded == [FakeEmbedder().identity.fingerprint]
    assert service.engine.batcher is before.batcher
    assert like_red(service).timing_ms.keys() == {"embed", "search", "total"}


def test_a_collection_that_was_deleted_and_made_again_takes_over(
    service: SearchService, collection: Collection
) -> None:
    shutil.rmtree(collection.location)
    make_collection(Path(collection.location), {"new.png": RED}, FakeEmbedder())
    service.live.refresh()
    answer = like_red(service)
    assert (answer.version, [match.image_id for match in answer.matches]) == ("000001", ["new.png"])


def test_a_new_model_takes_over_and_the_old_one_is_freed_with_its_last_request(
    service: SearchService, collection: Collection, models: Loader, other: OtherFake
) -> None:
    engine = service.engine
    engine_ref, batcher_ref = weakref.ref(engine), weakref.ref(engine.batcher)
    grow(collection, "new.png", other)
    service.live.refresh()
    gc.collect()
    assert engine_ref() is engine
    del engine
    gc.collect()
    assert (engine_ref(), batcher_ref()) == (None, None)
    answer = like_red(service, k=1)
    assert (answer.version, answer.model) == ("000002", other.identity)
    assert answer.matches[0].image_id == "red.png"
    assert answer.matches[0].score == pytest.approx(1.0, abs=1e-6)
    assert models.loaded == [FakeEmbedder().identity.fingerprint, other.identity.fingerprint]


def damage(collection: Collection, version: str) -> Path:
    name = collection.read_version(version).segments[-1].name
    path = Path(collection.location) / "index" / "segments" / name / "vectors.faiss"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return path


def test_a_version_that_cannot_be_opened_is_reported_once_and_the_old_one_stays(
    service: SearchService, collection: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    grow(collection, "new.png")
    path = damage(collection, "000002")
    with caplog.at_level(logging.INFO, "api.search.engine"), on_this_machine(create_app(service)) as client:
        eventually(lambda: service.live.failure is not None, "it has failed")
        for _ in range(3):
            service.live.refresh(now=False)
        assert client.get("/readyz").json()["index"] == "000001"
        assert len(caplog.records) == 1
        message = caplog.records[0].getMessage()
        assert "index version 000002 cannot be served, 000001 stays: " in message
        assert "vectors.faiss has been altered" in message

        # If CURRENT names another version, that is opened at once.
        path.unlink()
        grow(collection, "more.png")
        eventually(lambda: service.engine.searcher.version == collection.current() != "000002", "another takes over")
        assert service.live.failure is None


def test_a_failed_version_is_tried_again_after_a_minute(
    service: SearchService, collection: Collection, models: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OtherFake()
    grow(collection, "new.png", other)
    for _ in range(3):
        service.live.refresh(now=False)
    assert models.loaded == [FakeEmbedder().identity.fingerprint, other.identity.fingerprint]
    assert service.live.failure == "there is no model 'fake'"
    models.add(other)
    service.live.refresh(now=False)
    assert service.engine.searcher.version == "000001"
    now = time.monotonic()
    monkeypatch.setattr("api.search.engine.time.monotonic", lambda: now + 61)
    service.live.refresh(now=False)
    assert service.engine.searcher.version == "000002"
    assert not service.live.failure
    # A model that is not the recorded one is refused.
    third = OtherFake(side=96)
    models.known[third.identity.fingerprint] = OtherFake(side=32)
    grow(collection, "more.png", third)
    service.live.refresh()
    assert service.engine.searcher.version == "000002"
    assert "serve with the model of the index" in str(service.live.failure)


def test_the_old_version_stays_if_current_cannot_be_read(
    service: SearchService, collection: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    current = Path(collection.location) / "CURRENT"
    good = current.read_bytes()
    current.write_text("nonsense")
    for _ in range(3):
        service.live.refresh(now=False)
    assert service.engine.searcher.version == "000001"
    assert [record.levelname for record in caplog.records if record.levelname != "INFO"] == ["ERROR"]
    current.unlink()
    service.live.refresh(now=False)
    assert service.engine.searcher.version == "000001"
    assert service.live.failure is not None
    assert "CURRENT is missing" in service.live.failure
    # As on a disk that is not mounted.
    away = Path(collection.location).rename(f"{collection.location}-away")
    service.live.refresh(now=False)
    assert service.engine.searcher.version == "000001"
    assert f"{collection.location} has no index version any more" in str(service.live.failure)
    away.rename(collection.location)
    current.write_bytes(good)
    service.live.refresh(now=False)
    assert service.live.failure is None


def test_no_request_fails_while_index_and_model_change(
    service: SearchService, collection: Collection, other: OtherFake
) -> None:
    """Each answer comes from one version: its size, its model, and the score that only this model gives."""
    fake = FakeEmbedder()
    expected = {"000001": (3, fake.identity.fingerprint)}
    seen: set[str] = set()
    failures: list[Any] = []
    done = threading.Event()

    def keep_searching(client: TestClient) -> None:
        while not done.wait(0.005) and not failures:
            answer = client.post("/search", files={"image": ("a.png", RED)}, data={"k": "100"}).json()
            try:
                version, best = answer["index"]["version"], answer["matches"][0]
                found = len(answer["matches"]), answer["model"]["fingerprint"]
                assert (*found, answer["index"]["ntotal"]) == (*expected[version], found[0])
                assert (best["image_id"], best["score"]) == ("red.png", pytest.approx(1.0, abs=1e-6))
                seen.add(version)
            except Exception as error:
                failures.append((error, answer))

    with on_this_machine(create_app(service)) as client:
        threads = [threading.Thread(target=keep_searching, args=(client,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(2, 5):
                model = other if number == 3 else fake
                expected[f"{number:06d}"] = number + 2, model.identity.fingerprint
                grow(collection, f"{number}.png", model if number >= 3 else None)
                eventually(lambda: f"{len(expected):06d}" in seen or bool(failures), "the new version answers")
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert failures == []
    assert seen == set(expected)


class FailingEmbedder(FakeEmbedder):
    """Raises `failure` while there is one, and otherwise fails until `is_well`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_well = False
        self.failure: Exception | None = None

    def embed_images(self, pixels: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        if not self.is_well:
            raise RuntimeError("no memory")
        return super().embed_images(pixels)


def is_ready(client: TestClient) -> bool:
    return client.get("/readyz").status_code == 200


def test_a_server_becomes_ready_after_a_failed_warm_up(
    collection: Collection, models: Loader, other: OtherFake
) -> None:
    """Though CURRENT cannot be served; and by a swap to another model."""
    models.add(embedder := FailingEmbedder())
    service = serving(collection, models)
    grow(collection, "new.png")
    damage(collection, "000002").unlink()
    with on_this_machine(create_app(service)) as client:
        eventually(lambda: service.live.failure is not None, "it has failed")
        assert client.get("/readyz").status_code == 503
        embedder.is_well = True
        eventually(lambda: is_ready(client), "it is ready")
        assert client.get("/readyz").json() == {"status": "ready", "index": "000001"}
        assert service.live.failure is not None
        embedder.is_well = False
        service.live.mark_unavailable(service.engine)
        assert client.get("/readyz").status_code == 503
        grow(collection, "more.png", other)
        eventually(lambda: is_ready(client), "it is ready again")
        assert client.get("/readyz").json() == {"status": "ready", "index": "000003"}


def test_a_server_whose_embedders_are_gone_is_not_ready_until_they_are_back(
    collection: Collection, models: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    models.add(embedder := FailingEmbedder())
    embedder.is_well = True
    service = serving(collection, models)
    with on_this_machine(create_app(service)) as client:
        assert is_ready(client)
        embedder.failure = EmbedderUnavailable("the model does not answer", retry_after_s=2)
        for _ in range(2):
            assert client.post("/search", files={"image": ("a.png", RED)}).status_code == 503
            service.live.refresh()  # asks too; the answer at the start does not count
            assert client.get("/readyz").status_code == 503
        assert [record.getMessage() for record in caplog.records if record.name == "api.search.engine"] == [
            "the model of index version 000001 does not answer: not ready until it does"
        ]
        embedder.failure = None
        eventually(lambda: is_ready(client), "it is ready again")
        assert client.post("/search", files={"image": ("a.png", RED)}).status_code == 200


def test_a_failure_of_a_replaced_model_does_not_count_against_the_new_one(
    service: SearchService, collection: Collection, other: OtherFake
) -> None:
    service.live.warm_up()
    before = service.engine
    grow(collection, "new.png")
    service.live.refresh()
    same_model = service.engine
    grow(collection, "more.png", other)
    service.live.refresh()
    assert service.engine.embedder.identity == other.identity
    service.live.mark_unavailable(before)
    service.live.mark_unavailable(same_model)
    assert service.live.has_answered
    service.live.mark_unavailable(service.engine)
    assert not service.live.has_answered


# Over HTTP


def test_versions_are_listed_promoted_and_rolled_back(collection: Collection, models: Loader) -> None:
    grow(collection, "2.png")
    grow(collection, "3.png")
    service = serving(collection, models, interval_s=60)
    with on_this_machine(create_app(service)) as client:
        found = client.get("/index/versions").json()["versions"]
        assert [(each["version"], each["live"], each["serving"], each["ntotal"]) for each in found] == [
            ("000001", False, False, 3),
            ("000002", False, False, 4),
            ("000003", True, True, 5),
        ]
        assert found[0]["model"]["fingerprint"] == FakeEmbedder().identity.fingerprint
        assert found[0]["recall"]["10"] == 1.0

        done = client.post("/index/promote", json={"version": "000001"}).json()
        assert done == {"live": "000001", "before": "000003", "serving": "000001", "failure": None, "skipped": {}}
        assert client.get("/index").json()["version"] == collection.current() == "000001"
        assert client.post("/search", json={"text": "star"}).json()["index"]["version"] == "000001"

        response = client.post("/index/rollback")
        assert (response.status_code, response.json()["type"]) == (409, "urn:likeness:problem:version-not-usable")
        assert "there is no older one" in response.json()["detail"]
        client.post("/index/promote", json={"version": "000003"})
        assert client.post("/index/rollback").json()["serving"] == "000002"

        damage(collection, "000003")
        response = client.post("/index/promote", json={"version": "000003"})
        assert response.json()["type"] == "urn:likeness:problem:version-not-usable"
        assert "has been altered" in response.json()["detail"]
        assert client.get("/index").json()["version"] == collection.current() == "000002"


def test_versions_that_cannot_be_promoted_or_served(service: SearchService, collection: Collection) -> None:
    client = on_this_machine(create_app(service))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"version": "000009"}, "one of 000001"),
        ({"version": "../../x"}, "text of the form"),
        ({}, "a value, as this field is required"),
        ({"version": 1}, "text"),
    ]
    for body, expected in wrong:
        response = client.post("/index/promote", json=body)
        assert response.status_code == 422
        assert response.json()["errors"][0]["field"] == "version"
        assert expected in response.json()["errors"][0]["expected"]
    grow(collection, "2.png", OtherFake())
    done = client.post("/index/promote", json={"version": "000002"}).json()
    assert (done["live"], done["serving"], done["failure"]) == ("000002", "000001", "there is no model 'fake'")
    without_a_collection = on_this_machine(create_app(fake_service(service.engine.searcher)))
    assert without_a_collection.get("/index/versions").status_code == 404
