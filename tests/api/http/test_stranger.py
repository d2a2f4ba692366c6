"""A collection that was made to hurt, beside another one on the same server."""

import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.build_service import build_collections
from api.http.app import create_app
from api.settings import ServeSettings
from tests.support.collections.every_file import make_every_file, seal
from tests.support.collections.hurts import HURTS
from tests.support.collections.several import Loader, make_several, own_colour
from tests.support.collections.small_collection import png
from tests.support.servers.clients import on_this_machine, refusal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers")
    make_several(folder, ["good"])
    make_every_file(folder / "bad")
    return folder


@pytest.mark.parametrize(
    "hurt",
    [
        "a pipe for CURRENT",
        "a pipe for index/000005/manifest.json",
        "a link for index",
        "a manifest of a terabyte",
        "JSON nested 100,000 deep in CURRENT",
        "segments.0.parameters.rescore 10000000.0 in index/000005/manifest.json",
        "a tombstone at 10¹²",
        "ids that are null",
        "an index of rows that are not there",
        "a graph with links to nowhere",
    ],
)
def test_a_collection_made_to_hurt_does_not_affect_others(made: Path, tmp_path: Path, hurt: str) -> None:
    folder = shutil.copytree(made, tmp_path / "served")
    HURTS[hurt](folder / "bad")
    seal(folder / "bad")
    settings = ServeSettings(collection=str(folder), swap_interval_s=0.05)
    with on_this_machine(create_app(build_collections(settings, load_model=Loader().load))) as client:
        for _ in range(2):
            assert refusal(client.get("/collections/bad/index")) == (503, "collection-unavailable")
            assert search_good(client) == "good"
        listed = {each["name"]: each["state"] for each in client.get("/collections").json()["collections"]}
        assert listed == {"bad": "unavailable", "good": "open"}


def search_good(client: TestClient) -> str:
    files = {"image": ("query", png(own_colour("good", 0)))}
    found = client.post("/collections/good/search", files=files, data={"k": "1"}).json()
    return str(found["matches"][0]["metadata"]["collection"])
