"""Pages of a set over HTTP: cursors stay in one index version while others go live."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.search import engine
from api.search.service import SearchService
from api.settings import RequestLimits
from index.collection import Collection
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_version, rows, unit_vectors
from tests.support.collections.small_collection import followed_service
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import ids, pages, search

COUNT, DIM = 60, FakeEmbedder().identity.dim
VECTOR = unit_vectors(1, seed=5, dim=DIM)[0].tolist()


def add(location: Path, first: int, count: int, seed: int = 0) -> None:
    """A version with further images, numbered from the first."""
    ids = [f"{number:03}" for number in range(first, first + count)]
    metadata = {
        "label": pa.array([("cat", "dog", "owl")[number % 3] for number in range(first, first + count)]),
        "year": pa.array([2000 + number % 7 for number in range(first, first + count)], pa.int16()),
    }
    table = rows(ids, unit_vectors(count, seed=seed, dim=DIM), metadata=metadata)
    add_version(Collection.create_or_open(str(location)), table, model=model_record(FakeEmbedder().identity))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    add(folder := tmp_path_factory.mktemp("pages"), 0, COUNT)
    return folder


@pytest.fixture(scope="module")
def client(template: Path) -> Iterator[TestClient]:
    """Of a collection that tests must not change."""
    with TestClient(create_app(followed_service(template))) as client:
        yield client


@pytest.fixture
def service(collection: Collection) -> SearchService:
    return followed_service(Path(collection.location))


@pytest.fixture
def changing(service: SearchService) -> Iterator[TestClient]:
    """Of a collection of the test's own, in `collection`."""
    with TestClient(create_app(service)) as client:
        yield client


SEARCHES: tuple[dict[str, Any], ...] = (
    {"embedding": VECTOR},
    {"embedding": VECTOR, "min_score": -0.1, "sort": "-year"},
    {"embedding": VECTOR, "distinct": 0.9},
    {"filter": {"label": {"$ne": "owl"}}, "sort": "year"},
    {"sort": "-label", "group_by": "year"},
    {"text": "anything"},
)


def test_pages_are_of_one_version_while_others_go_live(
    service: SearchService, changing: TestClient, tmp_path: Path
) -> None:
    wholes = [search(changing, **body, k=COUNT) for body in SEARCHES]
    found = [[search(changing, **body, k=3)] for body in SEARCHES]
    for number in range(2):
        add(tmp_path / "collection", COUNT * (number + 1), COUNT, seed=number + 1)
        service.live.refresh()
        for body, each in zip(SEARCHES, found, strict=True):
            each.append(search(changing, **body, k=3, cursor=each[-1]["cursor"]))
    for body, whole, each in zip(SEARCHES, wholes, found, strict=True):
        if (cursor := each[-1]["cursor"]) is not None:
            each += pages(changing, **body, k=7, cursor=cursor)
        assert ids(*each) == ids(whole), body
        assert {page["index"]["version"] for page in each} == {"000001"}, body
        assert {page["total"] for page in each} == {whole["total"]}, body
        assert [page["first"] for page in each[:4]] == [1, 4, 7, 10][: len(each)], body
    assert search(changing, k=1)["index"]["version"] == "000003"


def test_a_version_is_gone_ten_minutes_after_its_last_page(
    service: SearchService, changing: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = search(changing, k=3)["cursor"]
    add(tmp_path / "collection", COUNT, 1)
    service.live.refresh()
    assert len(search(changing, k=3, cursor=cursor)["matches"]) == 3
    monkeypatch.setattr(engine, "_PAGES_S", 0.0)
    service.live.refresh()
    gone = changing.post("/search", json={"k": 3, "cursor": cursor})
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:likeness:problem:version-gone")
    assert "000002 answers now, and the cursor is of version" in gone.json()["detail"]


def test_a_cursor_of_another_collection_is_refused_as_such(client: TestClient, tmp_path: Path) -> None:
    add(tmp_path / "other", 0, COUNT)
    with TestClient(create_app(followed_service(tmp_path / "other"))) as other:
        cursor = search(other, k=3)["cursor"]
    refused = client.post("/search", json={"k": 3, "cursor": cursor})
    assert refused.status_code == 410
    assert "index version 000001 answers now, and the cursor is of another index" in refused.json()["detail"]


def test_a_newer_version_of_another_replica_is_opened(changing: TestClient, tmp_path: Path) -> None:
    add(tmp_path / "collection", COUNT, 5)
    other = followed_service(tmp_path / "collection")
    with TestClient(create_app(other)) as ahead:
        page = search(ahead, k=40)
    assert search(changing, k=1)["index"]["version"] == "000001"
    assert len(search(changing, k=40, cursor=page["cursor"])["matches"]) == 25


@pytest.mark.parametrize(
    "change",
    [
        {"cursor": "x"},
        {"cursor": "é" * 50},
        {"cursor": ""},
        {"sort": "label"},
        {"filter": {"year": 2001}},
        {"offset": 3},
    ],
    ids=str,
)
def test_a_cursor_of_another_search_is_refused(client: TestClient, change: dict[str, Any]) -> None:
    cursor = search(client, sort="year", k=3)["cursor"]
    answer = client.post("/search", json={"sort": "year", "k": 3, "cursor": cursor} | change)
    assert answer.status_code == 422
    assert ("offset" if "offset" in change else "cursor") in answer.json()["detail"]


def test_groups_and_facets(client: TestClient) -> None:
    answer = search(client, group_by="label", sort="-year", facets=["label", "year"], filter={"year": {"$gte": 2003}})
    assert (answer["groups"], answer["total"], answer["exact"]) == (3, 33, True)
    assert {match["group"]: match["group_size"] for match in answer["matches"]} == {
        value["value"]: value["count"] for value in answer["facets"]["label"]["values"]
    }
    assert {match["metadata"]["year"] for match in answer["matches"]} == {2006}
    assert sum(value["count"] for value in answer["facets"]["year"]["values"]) == 33
    assert [match["score"] for match in answer["matches"]] == [None] * 3


def test_hidden_columns_cannot_sort_or_group(template: Path) -> None:
    with TestClient(create_app(followed_service(template), limits=RequestLimits(show_locations=False))) as client:
        for option in ({"sort": "uri"}, {"sort": "-uri"}, {"group_by": "uri"}, {"facets": ["uri"]}):
            refused = client.post("/search", json=option)
            assert (refused.status_code, "columns that `GET /index` names" in refused.text) == (422, True)


def test_a_form_and_a_url_take_the_options_too(client: TestClient) -> None:
    answer = client.get("/search", params={"sort": "-year", "facets": '["label"]', "k": 2}).json()
    assert answer["matches"][0]["metadata"]["year"] == 2006
    assert answer["facets"]["label"]["others"] == 0
    assert client.get("/search").json()["total"] == COUNT


def test_a_time_beyond_pythons_years_is_sorted_too(tmp_path: Path) -> None:
    """Such as a database's infinity."""
    names = [f"{number:02}" for number in range(30)]
    ticks = [2**62 - number if number % 3 else number * 10**6 for number in range(30)]
    times = pa.array(ticks, pa.timestamp("us"))
    table = rows(names, unit_vectors(30, dim=DIM), metadata={"taken": times})
    add_version(Collection.create_or_open(str(tmp_path)), table, model=model_record(FakeEmbedder().identity))
    with TestClient(create_app(followed_service(tmp_path))) as client:
        for sort in ("taken", "-taken"):
            expected = sorted(names, key=lambda each: ticks[int(each)], reverse=sort[0] == "-")
            assert ids(*pages(client, sort=sort, k=4)) == expected
        groups = search(client, group_by="taken")
        assert {match["group"]: match["group_size"] for match in groups["matches"]} == {None: 20, "1970-01-01": 10}
        assert groups["groups"] == 2


def test_a_diverse_page_has_a_cursor_only_as_deep_as_the_option_goes(client: TestClient) -> None:
    assert search(client, embedding=VECTOR, diversity=0.3, k=20)["cursor"] is not None
    page = search(client, embedding=VECTOR, diversity=0.3, k=20, offset=20)
    assert len(search(client, embedding=VECTOR, diversity=0.3, k=20, cursor=page["cursor"])["matches"]) == 20
