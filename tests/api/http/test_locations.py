"""Answers reveal where pictures, models and the collection are only if the settings allow it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray

from api.client import LikenessClient
from api.http.app import create_app
from api.http.responses import redact, visible_model_id
from api.local import running
from api.search.service import SearchService
from api.settings import RequestLimits, ServeSettings
from embedder.errors import UnsupportedInputError
from index.collection import Collection
from index.search import Searcher
from tests.support.collections.small_collection import add_pictures, fake_service, make_collection, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import on_this_machine

NAMES = ("a.png", "b.png", "c.png")


class ModelOfAFolder(FakeEmbedder):
    """Takes no text, and names its folder in the error."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.identity = replace(self.identity, model_id=str(folder))

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise UnsupportedInputError(f"{self.identity.model_id} (vit) knows pictures only: search by a picture")


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secret place") / "of ours"


@pytest.fixture(scope="module")
def service(secret: Path) -> SearchService:
    """A collection of two versions, the first one damaged, and of pictures that cannot be read."""
    embedder = ModelOfAFolder(secret / "models" / "clip")
    location = secret / "collection"
    make_collection(location, {name: png((9, 9, n)) for n, name in enumerate(NAMES)}, embedder)
    collection = Collection.open(str(location))
    add_pictures(collection, {"d.png": png((200, 3, 4))}, embedder)
    manifest = location / "index" / "000001" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-30])
    return fake_service(Searcher.open(collection), embedder=embedder, collection=collection, interval_s=3_600)


def answers_of(client: TestClient) -> list[Any]:
    """The answers of every route to valid and invalid requests."""
    vector = FakeEmbedder().embed_texts(["x"])[0].tolist()
    picture = {"image": ("a.png", png((1, 2, 3)))}
    return [
        *(client.get(path) for path in ("/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/index")),
        *(client.get(path, params={"id": id}) for path in ("/image", "/picture") for id in ("d.png", "none.png")),
        client.get("/image?id=d.png"),
        client.get("/index/versions"),
        client.get("/duplicates/plan"),
        client.post("/search", files=picture),
        client.post("/search", json={"embedding": vector}),
        client.post("/search", json={"embedding": [1.0]}),
        client.post("/search", json={"text": "a star"}),
        client.post("/search", json={"id": "none.png"}),
        client.post("/search", json={"id": "d.png", "filter": {"nothing": 1}}),
        client.post("/search/batch", json={"searches": [{"embedding": vector}, {"text": "a star"}]}),
        client.post("/embed", json={"texts": ["a star"]}),
        client.post("/index/promote", json={"version": "000001"}),
        client.post("/index/promote", json={"version": "000002"}),
        client.post("/index/rollback"),
    ]


@pytest.fixture(scope="module")
def hidden(service: SearchService) -> TestClient:
    return on_this_machine(create_app(service, limits=RequestLimits(show_locations=False)))


@pytest.fixture(scope="module")
def shown(service: SearchService) -> TestClient:
    return on_this_machine(create_app(service))


def test_no_answer_reveals_locations(hidden: TestClient, shown: TestClient, secret: Path) -> None:
    for answer in answers_of(hidden):
        for word in ("secret", "of ours", "of%20ours", "memory:"):
            assert word not in answer.text, (answer.request.url, answer.text)
    text = "".join(answer.text for answer in answers_of(shown))
    for word in (f"{secret}/models/clip", f"{secret}/models/clip (vit) knows pictures", '"uri":"memory:d.png"'):
        assert word in text


def test_redacted_messages_still_say_what_is_wrong(hidden: TestClient) -> None:
    assert hidden.get("/index").json()["model"]["id"] == "clip"
    assert 'likeness_index_info{model="clip",version="000002"} 1.0' in hidden.get("/metrics").text
    assert hidden.get("/image?id=d.png").json()["uri"] is None
    damage = hidden.get("/index/versions").json()["versions"][0]["damage"]
    assert damage.startswith("index/000001/manifest.json is damaged")
    refused = hidden.post("/search", json={"text": "a star", "words": "off"}).json()
    assert refused["detail"] == "clip (vit) knows pictures only: search by a picture"


def test_a_version_of_another_release_does_not_reveal_the_collection(secret: Path) -> None:
    location = secret / "older"
    make_collection(location, {"a.png": png((1, 2, 3))}, FakeEmbedder())
    collection = Collection.open(str(location))
    add_pictures(collection, {"b.png": png((3, 4, 5))}, FakeEmbedder())
    older = collection.read_version("000001").model_copy(update={"format": 1})
    (location / "index" / "000001" / "manifest.json").write_bytes(older.to_bytes())
    service = fake_service(Searcher.open(collection), collection=collection)
    client = TestClient(create_app(service, limits=RequestLimits(show_locations=False)))
    damage = client.get("/index/versions").json()["versions"][0]["damage"]
    assert "`likeness index older` builds a version" in damage


@pytest.mark.parametrize(
    "expression",
    [
        {"uri": {"$prefix": "/"}},
        {"$and": [{"label": "a"}, {"uri": "x"}]},
        {"$not": {"$or": [{"uri": {"$exists": True}}]}},
    ],
)
def test_a_filter_cannot_reveal_locations(hidden: TestClient, shown: TestClient, expression: dict[str, Any]) -> None:
    search = {"id": "d.png", "filter": expression}
    refused = hidden.post("/search", json=search)
    assert refused.json()["errors"] == [
        {"field": "filter", "expected": "columns that `GET /index` names", "got": '"uri"'}
    ]
    unknown = hidden.post("/search", json={"id": "d.png", "filter": {"colour": 1}})
    assert unknown.json()["detail"] == 'filter: expected columns that `GET /index` names, got "colour"'
    assert "uri" not in hidden.get("/index").json()["columns"]
    assert hidden.post("/search", json={"id": "d.png", "filter": {"label": "uri"}}).status_code == 200
    assert shown.post("/search", json=search).status_code == 200


def test_the_client_accepts_answers_without_locations(service: SearchService) -> None:
    with running(create_app(service, limits=RequestLimits(show_locations=False))) as url, LikenessClient(url) as client:
        assert [match.uri for match in client.search(id="d.png").matches] == [None, None, None]
        assert client.image("d.png")["uri"] is None


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0", "allow_remote": True}, False),
        ({"allow_remote": True}, False),
        ({"keys_file": "keys.json"}, False),
        ({"host": "0.0.0.0", "allow_remote": True, "show_locations": True}, True),
        ({"show_locations": False}, False),
    ],
)
def test_beyond_loopback_locations_are_shown_only_by_a_setting(settings: dict[str, Any], shown: bool) -> None:
    assert ServeSettings(collection="c", **settings).limits().show_locations is shown


@pytest.mark.parametrize(
    ("model_id", "name"),
    [
        ('/srv/it\'s: "ours", (new)/clip', "clip"),
        ("C:\\models\\clip", "clip"),
        ("s3://bucket/clip", "clip"),
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32"),
        ("fake", "fake"),
    ],
)
def test_the_id_of_a_model_in_a_folder_is_the_folders_name(model_id: str, name: str) -> None:
    assert visible_model_id(model_id, show_locations=False) == name
    assert visible_model_id(model_id, show_locations=True) == model_id


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/srv/models/clip", "clip"),
        ("'/srv/my models/a clip'", "'a clip'"),
        ("/srv/a:b/c/clip", "clip"),
        ("see /srv/x and /etc/y/z: then (/var/d/e) goes", "see x and z: then (e) goes"),
        ("'/srv/a b/c' or \"/etc/d e/f\" and so/on", "'c' or \"f\" and so/on"),
        ("openai/clip-vit-base-patch32", "openai/clip-vit-base-patch32"),
        ("s3://bucket/models/clip", "clip"),
        ("s3://bucket", "bucket"),
        ("~/models/clip", "clip"),
        ("C:\\models\\clip", "clip"),
        ("'/srv/x y/z.json' cannot be read (no such file): see a/b", "'z.json' cannot be read (no such file): see a/b"),
        ("lists and/or columns, 3/4 of them", "lists and/or columns, 3/4 of them"),
        ("file:///srv/a/b.json is cut", "b.json is cut"),
    ],
)
def test_folders_are_removed_from_messages(text: str, left: str) -> None:
    assert redact(text, show_locations=False) == left
    assert redact(text, show_locations=True) == text


def test_known_locations_are_redacted_whatever_their_names() -> None:
    locations = ("/srv/our own", "/srv/our own/it's a/clip", "openai/clip", "photos")
    message = "/srv/our own holds no photos: /srv/our own/it's a/clip is not openai/clip"
    redacted = redact(message, show_locations=False, known_locations=locations)
    assert redacted == "our own holds no photos: clip is not openai/clip"
