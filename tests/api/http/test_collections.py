"""Several collections on one server: each answers for itself, opens and closes on demand, and fails alone."""

import asyncio
import gc
import shutil
import threading
import time
import weakref
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from api.access.keys import KeyRing, KeyScope, add_key
from api.build_service import build_collections
from api.client import LikenessClient
from api.errors import RequestRefused
from api.http.app import create_app
from api.http.query_runner import all_of
from api.local import running
from api.problems import Problem
from api.search.collections import Collections
from api.settings import Access, RequestLimits, ServeSettings
from benchmarks.common.waiting import eventually
from embedder.protocol import Embedder
from index.collection import Collection
from index.collection.find import find_collections
from index.collection.records.model_record import ModelRecord
from index.errors import CollectionError, NotACollectionError
from tests.support.collections.every_file import make_every_file, seal
from tests.support.collections.hurts import HURTS
from tests.support.collections.several import Loader, damage, make_several, own_colour, picture_of
from tests.support.collections.small_collection import png
from tests.support.servers.clients import on_this_machine, refusal

NAMES = ["art", "birds", "cats", "dogs"]


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four collections: `cats` is damaged, `dogs` has another model."""
    folder = tmp_path_factory.mktemp("several")
    make_several(folder, NAMES, other=["dogs"])
    damage(folder / "cats")
    return folder


@pytest.fixture
def folder(unchanged: Path, tmp_path: Path) -> Path:
    return shutil.copytree(unchanged, tmp_path / "several")


def served(folder: Path, loader: Loader | None = None, **settings: Any) -> Collections:
    return build_collections(
        ServeSettings(collection=str(folder), **{"swap_interval_s": 0.05, **settings}),
        load_model=(loader or Loader()).load,
    )


@pytest.fixture
def client(unchanged: Path) -> Iterator[TestClient]:
    with on_this_machine(create_app(served(unchanged))) as client:
        yield client


@pytest.fixture(scope="module")
def shared(unchanged: Path) -> Iterator[TestClient]:
    """For tests that do not mind which collections are open."""
    with on_this_machine(create_app(served(unchanged))) as client:
        yield client


def search(client: TestClient, prefix: str, colour: tuple[int, int, int], **more: Any) -> Any:
    files = {"image": ("query", png(colour))}
    return client.post(f"{prefix}/search", files=files, data={"k": "1", **more})


def test_each_collection_answers_below_its_name_and_the_first_one_without_a_prefix(shared: TestClient) -> None:
    for name in ("", "art", "birds", "dogs"):
        prefix, name = f"/collections/{name}" if name else "", name or "art"
        found = search(shared, prefix, own_colour(name, 0)).json()
        assert [match["metadata"]["collection"] for match in found["matches"]] == [name]
        assert found["matches"][0]["score"] == pytest.approx(1.0, abs=1e-5)
        # Ids are the same everywhere, pictures are not.
        assert shared.get(prefix + found["matches"][0]["picture"]).content == picture_of(name, 0)
        assert shared.get(f"{prefix}/image?id=0.png").json()["metadata"] == {"collection": name}
        assert shared.get(f"{prefix}/index").json()["ntotal"] == 3
        assert shared.get(f"{prefix}/index/versions").json()["versions"][0]["serving"] is True
        assert shared.get(f"{prefix}/readyz").json()["status"] == "ready"


def test_the_page_and_the_documentation_are_below_each_name(shared: TestClient) -> None:
    page = shared.get("/collections/birds/")
    assert page.content == shared.get("/").content
    assert shared.get("/collections/birds/web/main.js").status_code == 200
    assert shared.get("/collections/birds/docs").status_code == 200
    assert shared.get("/collections/birds/openapi.json").json()["servers"] == [{"url": "/collections/birds"}]
    assert "servers" not in shared.get("/openapi.json").json()
    redirect = shared.get("/collections/birds?text=star", follow_redirects=False)
    assert redirect.headers["location"] == "./birds/?text=star"


def test_a_broken_collection_says_why_and_does_not_affect_others(client: TestClient) -> None:
    for call in (search(client, "/collections/cats", (1, 2, 3)), client.get("/collections/cats/index")):
        assert refusal(call) == (503, "collection-unavailable")
        assert "has been altered" in call.json()["detail"]
        assert (call.json()["retryable"], "retry-after" in call.headers) == (False, False)
    listed = {each["name"]: each for each in client.get("/collections").json()["collections"]}
    assert [listed[name]["state"] for name in NAMES] == ["closed", "closed", "unavailable", "closed"]
    assert "has been altered" in listed["cats"]["failure"]
    assert search(client, "/collections/birds", (1, 2, 3)).status_code == 200
    assert client.get("/readyz").status_code == 200


@pytest.fixture(scope="module")
def every_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_every_file(tmp_path_factory.mktemp("every") / "file").location)


@pytest.mark.parametrize(
    "hurt",
    [
        "a pipe for CURRENT",
        "a manifest of a terabyte",
        "JSON nested 100,000 deep in CURRENT",
        "a graph with links to nowhere",
    ],
)
def test_a_collection_made_to_hurt_does_not_affect_others(folder: Path, every_file: Path, hurt: str) -> None:
    HURTS[hurt](bad := shutil.copytree(every_file, folder / "bad"))
    seal(bad)
    with on_this_machine(create_app(served(folder))) as client:
        for _ in range(2):
            assert refusal(client.get("/collections/bad/index")) == (503, "collection-unavailable")
            found = search(client, "/collections/art", own_colour("art", 0)).json()
            assert found["matches"][0]["metadata"]["collection"] == "art"
        listed = {each["name"]: each["state"] for each in client.get("/collections").json()["collections"]}
        assert (listed["art"], listed["bad"], listed["birds"]) == ("open", "unavailable", "closed")


def test_a_collection_that_can_be_opened_again_is_not_listed_as_unavailable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestClient(create_app(served(folder))) as client:

        def state() -> str:
            return str(client.get("/collections").json()["collections"][1]["state"])

        (folder / "birds").rename(folder / "away")
        for _ in range(2):
            refused = client.get("/collections/birds/index")
            assert refusal(refused) == (503, "collection-unavailable")
            assert refused.json()["detail"] == f"collection birds cannot be opened: {folder / 'birds'} does not exist"
            assert (refused.json()["retryable"], refused.headers["retry-after"]) == (True, "15")
        (folder / "away").rename(folder / "birds")
        assert state() == "unavailable"
        later = time.monotonic() + 15
        monkeypatch.setattr("api.search.collections.monotonic", lambda: later)
        assert state() == "closed"
        assert client.get("/collections/birds/index").status_code == 200


def test_collections_are_listed_without_opening_them(client: TestClient, unchanged: Path) -> None:
    search(client, "/collections/birds", (1, 2, 3))
    first, second, _, last = client.get("/collections").json()["collections"]
    assert (first["state"], second["state"]) == ("closed", "open")
    assert {**first, "state": "open", "name": "birds", "path": "/collections/birds/"} == second
    assert (first["ntotal"], first["version"], first["failure"]) == (3, "000001", None)
    assert first["model"]["fingerprint"] != last["model"]["fingerprint"]
    below = client.get("/collections/birds/collections").json()  # so that the page can use one relative address
    assert [each["name"] for each in below["collections"]] == NAMES


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [
        ("/collections/zebras/index", 404, "collection-not-found"),
        ("/collections/zebras/picture?id=0.png", 404, "collection-not-found"),
        ("/collections/../art/index", 404, "not-found"),
        ("/collections/art/collections/birds/index", 404, "not-found"),
        ("/collections//index", 404, "not-found"),
        ("/collections/art/nothing", 404, "not-found"),
    ],
)
def test_unknown_collections_and_paths(shared: TestClient, path: str, status: int, problem: str) -> None:
    assert refusal(shared.get(path)) == (status, problem)


def test_the_reason_of_a_failure_hides_locations(unchanged: Path) -> None:
    with TestClient(create_app(served(unchanged), limits=RequestLimits(show_locations=False))) as client:
        client.get("/collections/cats/index")
        text = client.get("/collections/cats/index").text + client.get("/collections").text
    assert "altered" in text
    assert str(unchanged) not in text


# Several at once


def merged(client: TestClient, **body: Any) -> Any:
    return client.post("/search/collections", json=body)


def test_collections_with_different_models_are_merged_by_rank(shared: TestClient) -> None:
    picture = b64encode(png(own_colour("art", 0))).decode()
    names = ["art", "birds", "dogs"]
    alone = {name: search(shared, f"/collections/{name}", own_colour("art", 0), k="3").json() for name in names}
    answer = merged(shared, collections=names, image=picture, k=9).json()
    by_name: dict[str, list[Any]] = {name: [] for name in names}
    for place, match in enumerate(answer["matches"]):
        by_name[match["collection"]].append(match["score"])
        assert len(by_name[match["collection"]]) == 1 + place // 3  # the best of each, then the second of each, …
    assert by_name == {name: [match["score"] for match in alone[name]["matches"]] for name in names}
    assert answer["model"] is None
    assert answer["searched"] == {"rows": 9, "of": 9}
    assert answer["indexes"].keys() == set(names)
    best = answer["matches"][0]
    assert shared.get(best["picture"]).content == picture_of(best["collection"], int(best["image_id"][0]))
    first = merged(shared, collections=names, image=picture, k=4).json()
    rest = merged(shared, collections=names, image=picture, k=5, cursor=first["cursor"]).json()
    assert [*first["matches"], *rest["matches"]] == answer["matches"]
    by_column = merged(shared, collections=names, image=picture, k=9, sort="image_id").json()["matches"]
    ids = [match["image_id"] for match in by_column]
    assert ids == sorted(ids)


def test_matches_are_the_same_as_in_a_search_of_one_collection(shared: TestClient) -> None:
    """Also their percentiles, which depend on the query's kind, even though one model embeds for all collections."""
    picture = b64encode(png(own_colour("art", 0))).decode()
    for body in ({"image": picture}, {"image": picture, "min_percentile": 50}, {"queries": [{"image": picture}] * 2}):
        alone = shared.post("/search", json=body).json()["matches"]
        assert alone[0]["percentile"] is not None
        found = merged(shared, collections=["art"], **body).json()["matches"]
        assert found == [
            match | {"collection": "art", "picture": f"/collections/art{match['picture']}"} for match in alone
        ]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"collections": ["art", "dogs"], "embedding": [1.0, 2.0]}, 422, "because a vector is of one model"),
        ({"collections": ["art", "cats"], "text": "star"}, 503, "has been altered"),
        ({"collections": ["art", "zebras"], "text": "star"}, 404, "no collection"),
        ({"collections": [], "text": "star"}, 422, "a list that is not empty"),
        ({"text": "star"}, 422, "collections: expected a value"),
        ({"collections": ["art"], "id": "0.png"}, 422, "an id belongs to one collection"),
        ({"collections": ["art"], "queries": [{"id": "0.png"}]}, 422, "an id belongs to one collection"),
        ({"collections": ["art"], "text": "star", "k": 0}, 422, "k: expected"),
        ({"collections": ["art"], "text": "star", "filter": {"page": 1}}, 422, "filter: expected one of"),
        ({"collections": ["art", "dogs"], "text": "star", "diversity": 0.5}, 422, "diversity: expected none"),
        ({"collections": ["art", "dogs"], "text": "a", "filter": {"page": 1}}, 422, "in art: filter: expected one of"),
        (["art"], 422, "expected an object"),
    ],
)
def test_a_search_of_several_collections_refuses(shared: TestClient, body: Any, status: int, detail: str) -> None:
    answer = shared.post("/search/collections", json=body)
    assert answer.status_code == status
    assert detail in answer.json()["detail"]


def test_of_several_failures_the_first_in_order_is_told_whichever_ends_first() -> None:
    async def fail(detail: str, after: int) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        raise Problem(detail)

    with pytest.raises(Problem, match="in art"):
        asyncio.run(all_of([fail("in art", after=3), fail("in dogs", after=1)]))


# Keys


def test_a_key_may_be_limited_to_some_collections(unchanged: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {
        "birds": add_key(file, "birds", KeyScope.admin, ["birds"]),
        "both": add_key(file, "both", KeyScope.search, ["art", "birds"]),
        "all": add_key(file, "all", KeyScope.search),
    }
    with TestClient(create_app(served(unchanged), access=Access(keys=KeyRing(file)))) as client:

        def status(who: str, path: str, **body: Any) -> int:
            headers = {"X-API-Key": keys[who]}
            return client.request("POST" if body else "GET", path, json=body or None, headers=headers).status_code

        # A key gets the same answer for an existing collection and one that does not exist.
        for path in ("/index", "/picture?id=0.png", "/collections/art/index", "/collections/zebras/index", "/metrics"):
            assert status("birds", path) == 403, path
        assert status("birds", "/collections/birds/metrics") == 403
        metrics = client.get("/metrics", headers={"X-API-Key": keys["birds"]})
        assert metrics.json()["detail"] == "the key 'birds' is for some collections only, but metrics cover all"
        assert (
            status("birds", "/collections/birds/index") == status("both", "/index") == status("all", "/metrics") == 200
        )
        assert status("both", "/collections/birds/index/rollback", version="1") == 403
        assert status("birds", "/collections/birds/index/rollback", version="1") == 409  # there is no earlier version
        both = {"collections": ["art", "birds"], "text": "star"}
        assert [status(who, "/search/collections", **both) for who in ("birds", "both", "all")] == [403, 200, 200]
        for who, names in (("birds", ["birds"]), ("both", ["art", "birds"]), ("all", NAMES)):
            listed = client.get("/collections", headers={"X-API-Key": keys[who]}).json()["collections"]
            assert [each["name"] for each in listed] == names
        assert client.get("/collections/birds/").status_code == 200  # the page, which asks for the key
        assert client.get("/collections/birds").status_code == 200  # the redirect to it
        assert client.get("/readyz").status_code == 200
        assert client.get("/collections/dogs/readyz").status_code == 401  # it would open the collection
        assert [status(who, "/collections/art/readyz") for who in ("birds", "both")] == [403, 200]
        assert client.get("/collections").status_code == 401


# Opening and closing


def test_collections_share_a_model_that_is_freed_with_the_last_of_them(folder: Path) -> None:
    loader = Loader()
    collections = served(folder, loader, collection_idle_s=2)
    with on_this_machine(create_app(collections)) as client:
        for name in ("art", "birds", "dogs"):
            search(client, f"/collections/{name}", (1, 2, 3))
        art, birds, dogs = (collections.open_services[name] for name in ("art", "birds", "dogs"))
        assert art.engine.batcher is birds.engine.batcher is not dogs.engine.batcher
        assert len(loader.loaded) == 2
        gone = [weakref.ref(each) for each in (art, birds.engine, dogs.engine.batcher)]
        del art, birds, dogs
        eventually(lambda: not collections.open_services, "all are closed")
        # The thread that follows CURRENT ends a moment later.
        eventually(lambda: gc.collect() >= 0 and not any(each() for each in gone), "all are freed")
        assert [each() for each in gone] == [None, None, None]
        assert {each["state"] for each in client.get("/collections").json()["collections"]} == {"closed"}
        assert search(client, "/collections/art", own_colour("art", 0)).json()["matches"][0]["score"] > 0.999


def test_the_least_recently_used_collection_is_closed_when_memory_is_short(folder: Path) -> None:
    memory = Collection.open(str(folder / "art")).read_version("000001").memory
    collections = served(folder, max_memory=2 * memory)
    with on_this_machine(create_app(collections)) as client:
        for name, left in (
            ("art", ["art"]),
            ("birds", ["art", "birds"]),
            ("art", ["art", "birds"]),
            ("dogs", ["art", "dogs"]),
        ):
            assert search(client, f"/collections/{name}", (1, 2, 3)).status_code == 200
            assert sorted(collections.open_services) == left
    small = served(folder, max_memory=memory - 1)
    with on_this_machine(create_app(small)) as client:
        refused = client.get("/collections/art/index")
    assert refusal(refused) == (503, "collection-unavailable")
    assert "larger --max-memory" in refused.json()["detail"]


def test_a_new_version_goes_live_only_in_its_collection(folder: Path) -> None:
    with on_this_machine(create_app(served(folder))) as client:
        assert [version_of(client, name) for name in ("art", "birds")] == ["000001", "000001"]
        make_several(folder, ["birds"], start=3)
        eventually(lambda: version_of(client, "birds") == "000002", "the new version answers")
        assert version_of(client, "art") == "000001"
        back = client.post("/collections/birds/index/rollback").json()
        assert (back["serving"], version_of(client, "birds")) == ("000001", "000001")
        metrics = client.get("/metrics").text
    assert 'likeness_index_swaps_total{collection="birds",result="ok"} 2.0' in metrics
    assert 'likeness_index_rows{collection="art"} 3.0' in metrics


def test_the_client_searches_several_collections(unchanged: Path) -> None:
    with running(create_app(served(unchanged))) as url, LikenessClient(url) as client:
        found = client.search_collections(["art", "birds"], image=picture_of("birds", 1), k=2)
        assert (found[0].image_id, found.collections[0], found.total) == ("1.png", "birds", 6)
        assert found.versions == {"art": "000001", "birds": "000001"}
        assert found.model is not None
        assert (found.searched, found.ntotal) == (6, 6)
        row = found.to_pandas().iloc[0]
        assert (row["collection"], row["rank"], row["metadata.collection"]) == ("birds", 1, "birds")
        nothing = client.search_collections(collections=["art", "birds"], text="star", filter={"collection": "no"})
        assert {"collection", "rank", "image_id"} <= {*nothing.to_pandas().columns}
        of_models = client.search_collections(["art", "dogs"], text="star", k=2)
        assert (of_models.model, set(of_models.collections)) == (None, {"art", "dogs"})
        with pytest.raises(RequestRefused, match="collection"):
            client.search_collections("art", text="star")


def test_concurrent_requests_open_a_closed_collection_once(folder: Path) -> None:
    loader = Loader()
    with (
        running(create_app(served(folder, loader))) as url,
        ThreadPoolExecutor(16) as pool,
        LikenessClient(f"{url}/collections/birds") as birds,
    ):
        found = list(pool.map(lambda _: birds.search(image=picture_of("birds", 1), k=1).matches[0], range(32)))
    assert {(match.image_id, match.metadata["collection"]) for match in found} == {("1.png", "birds")}
    assert len(loader.loaded) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/search/collections", {"collections": ["dogs"], "text": "star"}),
        ("/collections/dogs/search", {"text": "star"}),
    ],
)
def test_searches_that_wait_for_a_collection_to_open_do_not_block_others(
    folder: Path, path: str, body: dict[str, object]
) -> None:
    begun, may_load = threading.Event(), threading.Event()

    class Slow(Loader):
        def load(self, record: ModelRecord) -> Embedder:
            begun.set()
            assert may_load.wait(10)
            return super().load(record)

    may_load.set()
    app = create_app(served(folder, Slow()), limits=RequestLimits(max_searches=1))
    with running(app) as url, ThreadPoolExecutor(1) as pool, LikenessClient(url, retries=0) as client:
        client.search(text="star")
        begun.clear()
        may_load.clear()
        waiting = pool.submit(httpx.post, f"{url}{path}", json=body, timeout=20)
        try:
            assert begun.wait(10)
            client.search(text="star")
        finally:
            may_load.set()
        assert waiting.result().status_code == 200


def version_of(client: TestClient, name: str) -> str:
    return str(client.get(f"/collections/{name}/index").json()["version"])


# Names


def test_collections_are_named_after_folders_or_by_the_user(unchanged: Path, tmp_path: Path) -> None:
    art, birds = str(unchanged / "art"), str(unchanged / "birds")
    assert list(find_collections([f"{art}/", birds])) == ["art", "birds"]
    named = find_collections([f"old photos={art}", birds, f"{unchanged}/birds/../art"])
    assert {name: found.location for name, found in named.items()}["old photos"] == art
    assert list(named) == ["old photos", "birds", "art"]
    assert list(find_collections([str(unchanged)])) == NAMES
    with pytest.raises(CollectionError, match="two collections are called 'art'"):
        find_collections([art, str(unchanged)])
    for nothing in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotACollectionError):
            find_collections([art, str(nothing)])


def test_a_single_collection_is_open_from_the_start_and_has_a_named_path_too(unchanged: Path) -> None:
    collections = served(unchanged / "art")
    with on_this_machine(create_app(collections)) as client:
        (only,) = client.get("/collections").json()["collections"]
        assert (only["name"], only["state"]) == ("art", "open")
        assert client.get("/collections/art/index").json() == client.get("/index").json()
        assert "collection=" not in client.get("/metrics").text
