"""Pictures of the collection's rows: thumbnails are made once, and nothing is sent twice to who has it."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.nearest import row_of_image
from api.service import SearchService
from embedder.fake import FakeEmbedder
from index.search import Searcher
from tests.small_collection import COLOURS, RecordingFetcher, make_collection, png


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    pictures = {name: png(colour) for name, colour in COLOURS.items()}
    return make_collection(tmp_path_factory.mktemp("collection"), pictures, FakeEmbedder())


@pytest.fixture
def fetcher() -> RecordingFetcher:
    return RecordingFetcher({f"memory:{name}": png(colour, (400, 200)) for name, colour in COLOURS.items()})


@pytest.fixture
def service(searcher: Searcher, fetcher: RecordingFetcher) -> SearchService:
    return SearchService(
        embedder=FakeEmbedder(), searcher=searcher, query_fetcher=RecordingFetcher({}), picture_fetcher=fetcher
    )


@pytest.fixture
def client(service: SearchService) -> Iterator[TestClient]:
    with TestClient(create_app(service)) as client:
        yield client


def row_of(service: SearchService, image_id: str) -> dict[str, Any]:
    row = row_of_image(service.engine.searcher, image_id)
    assert row is not None
    return row


def test_a_thumbnail_is_made_once_for_each_size(service: SearchService, fetcher: RecordingFetcher) -> None:
    row = row_of(service, "red.png")
    first = service.picture(row, 64)
    assert service.picture(row, 64) is first
    assert fetcher.asked == ["memory:red.png"]
    assert service.picture(row, 32).data != first.data
    assert service.picture(row_of(service, "blue.png"), 64).data != first.data
    assert fetcher.asked == ["memory:red.png", "memory:red.png", "memory:blue.png"]


def test_a_row_that_was_embedded_again_has_a_new_thumbnail(service: SearchService, fetcher: RecordingFetcher) -> None:
    row = row_of(service, "red.png")
    before = service.picture(row, 64)
    fetcher.files["memory:red.png"] = png(COLOURS["blue.png"])
    assert service.picture(row, 64) is before
    after = service.picture({**row, "content_hash": "another"}, 64)
    assert after.etag != before.etag


@pytest.mark.parametrize("path", ["/images/red.png/picture", "/images/red.png/picture?size=64"])
def test_who_has_a_picture_is_not_sent_it_again(client: TestClient, fetcher: RecordingFetcher, path: str) -> None:
    first = client.get(path)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, max-age=300"
    for given in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = client.get(path, headers={"If-None-Match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert again.headers["cache-control"] == "private, max-age=300"
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content
    fetcher.files["memory:red.png"] = png(COLOURS["green.png"])
    if "size" not in path:
        assert client.get(path, headers={"If-None-Match": etag}).status_code == 200


def test_what_is_no_picture_any_more_is_not_sent(client: TestClient, fetcher: RecordingFetcher) -> None:
    fetcher.files["memory:red.png"] = b'{"secret": "of a host of the network that the name leads to by now"}'
    response = client.get("/images/red.png/picture")
    assert response.status_code == 502
    assert "secret" not in response.text
    assert response.json()["reason"] == "not_an_image"
