"""What the server says of searches and of its index: metrics, log lines and readiness while versions change."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from api.access.keys import KeyRing, KeyScope, add_key
from api.http.app import create_app
from api.search.service import SearchService
from api.settings import Access
from embedder.errors import FetchError
from embedder.fake import FakeEmbedder
from index.build.build_index import build_index
from index.collection import Collection
from tests.support.collections.small_collection import (
    COLOURS,
    PLAIN,
    RecordingFetcher,
    add_pictures,
    followed_service,
    make_collection,
    png,
)

RED = png(COLOURS["red.png"])
SECRET_URL = "https://pictures.example/cat.png?signature=abc"


class Host(RecordingFetcher):
    def fetch(self, uri: str) -> bytes:
        if uri not in self.files:
            raise FetchError("http_404", f"{uri}: the server answered 404, expected 200")
        return super().fetch(uri)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    make_collection(tmp_path / "c", PLAIN, FakeEmbedder())
    return Collection.open(str(tmp_path / "c"))


@pytest.fixture
def service(collection: Collection) -> SearchService:
    pages = Host({SECRET_URL: RED, "https://pictures.example/page": b"<html>"})
    return followed_service(Path(collection.location), queries=pages)


@pytest.fixture
def client(service: SearchService) -> Iterator[TestClient]:
    with TestClient(create_app(service)) as client:
        yield client


def line_of(log: io.StringIO) -> dict[str, Any]:
    [line] = [json.loads(line) for line in log.getvalue().splitlines()]
    assert isinstance(line, dict)
    return line


def measured(client: TestClient, name: str) -> dict[tuple[str, ...], float]:
    """Label values → value, of the samples of this name."""
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in found}


def grow(collection: Collection, name: str) -> None:
    add_pictures(collection, {name: png((5 * len(collection.runs()), 99, 50))}, FakeEmbedder())
    build_index(collection)


def test_a_search_by_url_is_seen_in_every_stage(client: TestClient, log: io.StringIO) -> None:
    answer = client.post("/search", json={"url": SECRET_URL, "k": 1})
    assert answer.status_code == 200, answer.text
    stages = measured(client, "likeness_stage_duration_seconds_count")
    assert stages == {("fetch",): 1, ("decode",): 1, ("embed",): 1, ("search",): 1}
    assert measured(client, "likeness_fetches_total") == {("ok",): 1}
    assert measured(client, "likeness_rejected_pictures_total") == {}
    line = line_of(log)
    assert (line["route"], line["status"], line["index"]) == ("/search", 200, "000001")
    assert line["request_id"] == answer.headers["x-request-id"]
    told = answer.json()["timing_ms"]
    assert line["stages_ms"] == pytest.approx({name: told[name] for name in line["stages_ms"]}, abs=0.01)
    assert list(line["stages_ms"]) == ["fetch", "decode", "embed", "search"]
    assert line["milliseconds"] >= told["total"]


def test_a_url_that_fails_is_counted_by_reason_and_not_logged(client: TestClient, log: io.StringIO) -> None:
    client.post("/search", json={"url": "https://me:word@pictures.example/none?key=abc"})
    assert measured(client, "likeness_fetches_total") == {("http_4xx",): 1}
    assert measured(client, "likeness_problems_total")[("url-not-usable",)] == 1
    assert line_of(log)["problems"] == ["url-not-usable"]
    assert "pictures.example" not in log.getvalue()


def test_a_picture_that_does_not_decode_is_counted_by_reason(client: TestClient, log: io.StringIO) -> None:
    client.post("/search", json={"url": "https://pictures.example/page"})
    client.post("/search", files={"image": ("a.png", b"no picture")})
    assert measured(client, "likeness_fetches_total") == {("ok",): 1}
    assert measured(client, "likeness_rejected_pictures_total") == {("not_an_image",): 2}
    assert measured(client, "likeness_problems_total")[("unusable-image",)] == 2


def test_the_same_picture_is_a_hit_in_the_cache_and_no_batch(client: TestClient) -> None:
    batches = measured(client, "likeness_embedding_batch_queries_count")[()]
    lookups = measured(client, "likeness_embedding_cache_lookups_total")
    for _ in range(3):
        client.post("/search", files={"image": ("a.png", RED)})
    after = measured(client, "likeness_embedding_cache_lookups_total")
    assert {name: after[name] - lookups[name] for name in after} == {("hit",): 2, ("miss",): 1}
    assert measured(client, "likeness_embedding_batch_queries_count")[()] == batches + 1
    assert measured(client, "likeness_embedding_queue_queries") == {(): 0}


def test_problems_within_a_batch_are_counted(client: TestClient, log: io.StringIO) -> None:
    searches = [{"text": "star"}, {"text": ""}, {"nothing": 1}, {"image": base64.b64encode(b"no picture").decode()}]
    assert client.post("/search/batch", json={"searches": searches}).status_code == 200
    problems = measured(client, "likeness_problems_total")
    assert {slug: number for (slug,), number in problems.items() if number} == {
        "invalid-request": 2,
        "unusable-image": 1,
    }
    line = line_of(log)
    assert (line["status"], line["problems"]) == (200, ["invalid-request", "unusable-image"])


def test_whoever_is_sent_away_is_counted_and_keys_are_named(
    service: SearchService, tmp_path: Path, log: io.StringIO
) -> None:
    key = add_key(tmp_path / "keys.json", "alice", KeyScope.search)
    access = Access(keys=KeyRing(str(tmp_path / "keys.json")))
    with TestClient(create_app(service, access=access)) as client:
        refused = client.post("/search", json={"text": "star"})
        assert (refused.status_code, len(refused.headers["x-request-id"])) == (401, 32)
        for path in ("/picture?id=a/b.png", "/picture?id=c.png", "/no-such-page", "/nor-this"):
            assert client.get(path).status_code == 401
        client.headers["X-API-Key"] = key
        client.post("/search", json={"text": "star"})
        counted = measured(client, "likeness_request_duration_seconds_count")
        assert counted == {
            ("POST", "/search", "401"): 1,
            ("GET", "/picture", "401"): 2,
            ("GET", "none", "401"): 2,
            ("POST", "/search", "200"): 1,
        }
        assert measured(client, "likeness_problems_total")[("unauthorized",)] == 5
    first, *_, last = (json.loads(line) for line in log.getvalue().splitlines())
    assert (first["route"], first["problems"], "key" in first) == ("/search", ["unauthorized"], False)
    assert last["key"] == "alice"
    assert key not in log.getvalue()


def test_what_was_asked_for_is_in_no_line(client: TestClient, log: io.StringIO) -> None:
    picture = base64.b64encode(RED).decode()
    client.post("/search", json={"text": "private words"})
    client.post("/search", json={"image": picture, "filter": {"label": "private label"}})
    client.post("/search?text=private", json={"text": "", "private": "private"})
    client.get("/image?id=private.png")
    assert len(log.getvalue().splitlines()) == 4
    assert "private" not in log.getvalue()
    assert picture[:20] not in log.getvalue()


def test_the_index_is_told_and_followed(client: TestClient, service: SearchService, collection: Collection) -> None:
    assert {frozenset(labels) for labels in measured(client, "likeness_index_info")} == {frozenset({"000001", "fake"})}
    assert measured(client, "likeness_index_rows") == {(): 3}
    assert 0 <= measured(client, "likeness_index_age_seconds")[()] < 300
    assert measured(client, "likeness_index_swaps_total") == {("ok",): 0, ("failed",): 0}
    grow(collection, "new.png")
    service.live.refresh()
    assert {frozenset(labels) for labels in measured(client, "likeness_index_info")} == {frozenset({"000002", "fake"})}
    assert measured(client, "likeness_index_rows") == {(): 4}
    assert measured(client, "likeness_index_swaps_total") == {("ok",): 1, ("failed",): 0}
    assert measured(client, "likeness_index_behind") == {(): 0}


def test_a_version_that_fails_to_open_is_told_and_the_server_stays_ready(
    client: TestClient, service: SearchService, collection: Collection, tmp_path: Path
) -> None:
    grow(collection, "new.png")
    manifest = tmp_path / "c" / "index" / "000002" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    service.live.refresh()
    assert measured(client, "likeness_index_swaps_total") == {("ok",): 0, ("failed",): 1}
    assert measured(client, "likeness_index_behind") == {(): 1}
    assert client.get("/readyz").json() == {"status": "ready", "index": "000001"}
    manifest.write_bytes(whole)
    service.live.refresh()
    assert measured(client, "likeness_index_swaps_total") == {("ok",): 1, ("failed",): 1}
    assert measured(client, "likeness_index_behind") == {(): 0}
    assert client.get("/readyz").json() == {"status": "ready", "index": "000002"}
