"""The plan of duplicates over HTTP: pages of groups, without locations if these are hidden."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.settings import RequestLimits
from index.analysis.duplicate_plan import write_plan
from index.collection import Collection
from index.search import Searcher
from tests.support.collections.duplicate_plans import duplicate_plan_of
from tests.support.collections.small_collection import followed_service
from tests.support.servers.clients import refusal


def client_of(collection: Collection, **limits: Any) -> TestClient:
    return TestClient(create_app(followed_service(Path(collection.location)), limits=RequestLimits(**limits)))


@pytest.fixture
def planned(collection: Collection) -> Collection:
    plan = duplicate_plan_of(
        Searcher.open(collection), ("red.png", "green.png", "cropped"), ("blue.png", "red.png", "similar")
    )
    write_plan(collection, plan)
    return collection


def test_without_a_plan(collection: Collection) -> None:
    document = client_of(collection).get("/duplicates/plan").json()
    assert document == {"plan": None, "serving": "000001", "groups": []}


def test_a_page_of_the_plan(planned: Collection) -> None:
    client = client_of(planned)
    document = client.get("/duplicates/plan?offset=1&limit=1").json()
    assert (document["plan"]["groups"], document["plan"]["duplicates"]) == (2, {"cropped": 1, "similar": 1})
    (group,) = document["groups"]
    assert group["keep"]["image_id"] == "blue.png"
    assert [(each["image_id"], each["kind"]) for each in group["duplicates"]] == [("red.png", "similar")]
    assert client.get("/duplicates/plan?offset=2").json()["groups"] == []


def test_locations_are_included_only_if_shown(planned: Collection) -> None:
    for show in (True, False):
        text = client_of(planned, show_locations=show).get("/duplicates/plan").text
        assert ("memory:red.png" in text) is show


def test_a_damaged_plan_affects_only_its_route(planned: Collection) -> None:
    (Path(planned.location) / "duplicates.jsonl").write_text("no plan")
    client = client_of(planned)
    assert refusal(client.get("/duplicates/plan")) == (500, "internal")
    assert client.get("/index").status_code == 200
