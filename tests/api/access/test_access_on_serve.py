"""Keys and bounds on Ray Serve, where they are the same as under uvicorn alone."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.access.keys import KeyScope, add_key
from api.compose import LoadModel
from api.deployment.application import Models, run
from api.errors import KeysError
from api.settings import ServeSettings
from embedder.fake import FakeEmbedder
from index.collection.records import ModelRecord
from tests.support.collections.small_collection import PLAIN, make_collection
from tests.support.servers.clients import told


def slow() -> Models:
    """A fake model that takes its time. Nested, so that it pickles by value."""

    class SlowEmbedder(FakeEmbedder):
        def embed_texts(self, texts: Any) -> Any:
            if texts != ["a picture"]:  # which is asked when it is loaded
                time.sleep(0.5)
            return super().embed_texts(texts)

    def models(settings: ServeSettings, first: ModelRecord | None) -> LoadModel:
        return lambda record: SlowEmbedder()

    return models


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = tmp_path_factory.mktemp("served") / "collection"
    make_collection(location, PLAIN, FakeEmbedder())
    return str(location)


@pytest.mark.ray
@pytest.mark.slow
def test_keys_and_bounds_on_ray_serve(
    collection: str, cluster: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    search, admin = (add_key("keys.json", f"{scope}er", KeyScope(scope)) for scope in ("search", "admin"))
    settings = ServeSettings(collection=collection, port=cluster, keys_file="keys.json", max_ongoing_requests=2)
    url = run(settings, blocking=False, models=slow())
    with httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/healthz").status_code == 200
        assert told(client.get("/index")) == (401, "unauthorized")
        refused = client.post("/index/promote", headers={"X-API-Key": search})
        assert told(refused) == (403, "forbidden")
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert client.get("/index", headers={"X-API-Key": admin}).status_code == 200

        client.headers["Authorization"] = f"Bearer {search}"
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n: client.post("/search", json={"text": f"star {n}"}), range(8)))
        statuses = [response.status_code for response in found]
        assert statuses.count(200) >= 2
        assert statuses.count(200) + statuses.count(429) == 8
        busy = next(response for response in found if response.status_code == 429)
        assert told(busy) == (429, "overloaded")
        assert busy.headers["retry-after"] == "1"
        assert client.post("/search", json={"text": "star"}).status_code == 200


@pytest.mark.ray
@pytest.mark.slow
def test_without_keys_admin_is_for_this_machine_on_ray_serve(collection: str, cluster: int) -> None:
    url = run(ServeSettings(collection=collection, port=cluster), blocking=False, models=slow())
    with httpx.Client(base_url=url, timeout=30) as client:
        assert client.post("/index/promote", json={"version": "000001"}).json()["serving"] == "000001"
        assert told(client.post("/index/promote", headers={"Origin": "https://evil.example"})) == (403, "forbidden")


def test_wrong_keys_are_said_before_a_cluster_is_started(
    collection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.init", None)
    with pytest.raises(KeysError, match="no key file"):
        run(ServeSettings(collection=collection, keys_file=str(tmp_path / "none.json")), models=slow())
