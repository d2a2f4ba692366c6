"""The Python client against the app itself, over a real connection."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from api.access.keys import KeyRing, KeyScope, add_key
from api.client.client import LikenessClient, RequestRefused, SearchResult, TooBusy
from api.http.app import create_app
from api.local import running
from api.search.engine import IndexSource
from api.search.query import Part, Query
from api.search.service import SearchService
from api.settings import Access
from embedder.fake import FakeEmbedder
from index.build.build_index import build_index
from index.collection import Collection
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, add_pictures, fake_service, make_collection, png


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    location = tmp_path_factory.mktemp("collection")
    make_collection(location, PLAIN, FakeEmbedder())
    return Collection.open(str(location))


@pytest.fixture(scope="module")
def service(collection: Collection) -> SearchService:
    return fake_service(
        Searcher.open(collection),
        queries={"http://pictures.example/red.png": PLAIN["red.png"]},
        pictures={f"memory:{image_id}": data for image_id, data in PLAIN.items()},
        source=IndexSource(collection=collection, load_model=lambda _: FakeEmbedder(), interval_s=60.0),
    )


@pytest.fixture(scope="module")
def client(service: SearchService) -> Iterator[LikenessClient]:
    with running(create_app(service)) as url, LikenessClient(url) as client:
        yield client


def ids(found: SearchResult) -> list[str]:
    return [match.image_id for match in found.matches]


def test_it_finds_what_the_library_finds(client: LikenessClient, service: SearchService, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(PLAIN["red.png"])
    vector = FakeEmbedder().embed_texts(["a star"])[0]
    expected = service.search(Query(parts=(Part(data=PLAIN["red.png"]),), k=3))
    for found in (
        client.search(image=tmp_path / "red.png", k=3),
        client.search(image=PLAIN["red.png"], k=3),
        client.search(image=Image.open(io.BytesIO(PLAIN["red.png"])), k=3),
        client.search(url="http://pictures.example/red.png", k=3),
    ):
        assert ids(found)[0] == "red.png"
        assert [(m.image_id, m.score, m.percentile) for m in found.matches] == [
            (m.image_id, m.score, m.percentile) for m in expected.matches
        ]
        assert found.matches[0].metadata == {"label": "red", "weight": None}
        assert (found.version, found.ntotal, found.model) == ("000001", len(PLAIN), service.engine.embedder.identity)
        assert found.timing_ms["total"] > 0
    assert client.search(text="a star", k=4).matches == client.search(embedding=5 * vector, k=4).matches


def test_vectors_are_the_models(client: LikenessClient, service: SearchService) -> None:
    texts = [f"text {number}" for number in range(70)]
    assert np.allclose(client.embed_texts(texts), FakeEmbedder().embed_texts(texts), atol=1e-6)
    vectors = client.embed_images([PLAIN["red.png"], PLAIN["blue.png"]])
    searcher = service.engine.searcher
    assert np.allclose(vectors, [searcher.vector("red.png"), searcher.vector("blue.png")], atol=1e-6)
    assert client.embed_images([]).shape == (0, FakeEmbedder().identity.dim)
    with pytest.raises(RequestRefused, match=r"^images\[1\]: expected a picture") as caught:
        client.embed_images([PLAIN["red.png"], b"<html>"])
    assert caught.value.type == "urn:likeness:problem:unusable-image"


def test_refusals(client: LikenessClient) -> None:
    with pytest.raises(RequestRefused) as caught:
        client.image("none.png")
    assert (caught.value.status, caught.value.type) == (404, "urn:likeness:problem:image-not-found")
    with pytest.raises(RequestRefused) as caught:
        client.search(image=b"not a picture")
    assert caught.value.problem["reason"] == "not_an_image"
    with pytest.raises(RequestRefused, match=r"^queries\.1\.image: expected a picture") as caught:
        client.search(queries=[{"text": "a"}, {"image": b"not a picture"}])
    assert caught.value.field == "queries.1.image"
    with pytest.raises(RequestRefused) as caught:
        client.search(text="a", url="http://pictures.example/red.png")
    assert caught.value.errors[0]["expected"].startswith("exactly one of url, image, text")
    with pytest.raises(RequestRefused) as caught:
        client.search(text="a", filter={"colour": "red"})
    assert "colour" in caught.value.detail


def test_keys_open_what_their_scopes_say(service: SearchService, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    searcher = add_key(file, "searcher", KeyScope.search)
    app = create_app(service, access=Access(keys=KeyRing(file), rate_limit_per_minute=1))
    with running(app) as url:
        with LikenessClient(url) as client, pytest.raises(RequestRefused, match=r"expected a key .*unauthorized"):
            client.search(text="a")
        with LikenessClient(url, api_key=searcher) as client:
            assert client.search(text="a").matches
            with pytest.raises(RequestRefused, match=r"expected a key of scope admin.*forbidden"):
                client.rollback()
            with pytest.raises(TooBusy) as caught:
                client.search(text="a")
    assert caught.value.type == "urn:likeness:problem:rate-limited"
    assert caught.value.retry_after is not None
    assert 50 < caught.value.retry_after <= 60


def test_versions_are_switched(client: LikenessClient, collection: Collection) -> None:
    """Last: the collection has a second version from here on."""
    add_pictures(collection, {"new.png": png((7, 7, 7))}, FakeEmbedder())
    build_index(collection)
    assert [version["version"] for version in client.versions()] == ["000001", "000002"]
    assert client.promote("000002")["serving"] == "000002"
    details = client.index()
    assert (details["version"], details["ntotal"], details["model"]["dim"]) == ("000002", len(PLAIN) + 1, 16)
    assert details["columns"]["label"] == "string"
    assert details["recall"]["10"] == 1.0
    assert client.rollback()["serving"] == "000001"
    first, second = client.versions()
    assert (first["live"], first["serving"], second["live"], second["serving"]) == (True, True, False, False)
    with pytest.raises(RequestRefused, match="one of 000001, 000002"):
        client.promote("000009")
