"""Keys and limits on Ray Serve, where they are the same as with uvicorn alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from api.access.keys import KeyScope, add_key
from api.deployment.application import run
from api.settings import ServeSettings
from benchmarks.common.waiting import eventually
from index.collection import Collection
from tests.support.servers.clients import refusal
from tests.support.servers.fake_models import fakes, one_fake

pytestmark = pytest.mark.ray


def test_keys_and_limits_on_ray_serve(
    collection: Collection, cluster: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    search, admin = (add_key("keys.json", f"{scope}er", KeyScope(scope)) for scope in ("search", "admin"))
    settings = ServeSettings(
        collection=collection.location, port=cluster, keys_file="keys.json", max_ongoing_requests=2
    )
    url = run(settings, blocking=False, load_model=fakes(tmp_path / "notes"))
    with httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/healthz").status_code == 200
        assert refusal(client.get("/index")) == (401, "unauthorized")
        refused = client.post("/index/promote", headers={"X-API-Key": search})
        assert refusal(refused) == (403, "forbidden")
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert client.get("/index", headers={"X-API-Key": admin}).status_code == 200

        client.headers["Authorization"] = f"Bearer {search}"
        with ThreadPoolExecutor(8) as pool:
            searches = [pool.submit(client.post, "/search", json={"text": "slow"}) for _ in range(8)]
            eventually(lambda: sum(each.done() for each in searches) == 6, "all but two are refused")
            (tmp_path / "go").touch()
        busy = [each.result() for each in searches if each.result().status_code != 200]
        assert [refusal(each) for each in busy] == [(429, "overloaded")] * 6
        assert {each.headers["retry-after"] for each in busy} == {"1"}
        assert client.post("/search", json={"text": "star"}).status_code == 200


def test_without_keys_admin_is_for_this_machine_on_ray_serve(collection: Collection, cluster: int) -> None:
    url = run(ServeSettings(collection=collection.location, port=cluster), blocking=False, load_model=one_fake())
    with httpx.Client(base_url=url, timeout=30) as client:
        assert client.post("/index/promote", json={"version": "000001"}).json()["serving"] == "000001"
        assert refusal(client.post("/index/promote", headers={"Origin": "https://evil.example"})) == (403, "forbidden")
