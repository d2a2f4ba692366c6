"""Pictures of the collection's rows: thumbnails are made once, and cached pictures are not sent again."""

from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from api.build_service import build_service
from api.errors import OtherModelError
from api.http.app import create_app
from api.search.query import Part, Query
from api.search.service import SearchService, row_of_image
from api.settings import ServeSettings
from embedder.images.decoder_pool import DecodePool
from index.collection import Collection
from index.search import Searcher
from tests.support.collections.small_collection import (
    COLOURS,
    RecordingFetcher,
    add_rows,
    embedded_row,
    fake_service,
    make_collection,
    png,
)
from tests.support.fake_embedder import FakeEmbedder
from tests.support.pictures.sample_images import encode


@pytest.fixture
def fetcher() -> RecordingFetcher:
    return RecordingFetcher({f"memory:{name}": png(colour, (400, 200)) for name, colour in COLOURS.items()})


@pytest.fixture
def service(searcher: Searcher, fetcher: RecordingFetcher) -> SearchService:
    return fake_service(searcher, pictures=fetcher)


def row_of(service: SearchService, image_id: str) -> dict[str, Any]:
    return row_of_image(service.engine.searcher, image_id)


def test_a_thumbnail_is_made_once_for_each_size_and_content(service: SearchService, fetcher: RecordingFetcher) -> None:
    row = row_of(service, "red.png")
    first = service.pictures.read(row, 64)
    assert service.pictures.read(row, 64) is first
    assert fetcher.fetched == ["memory:red.png"]
    assert service.pictures.read(row, 32).data != first.data
    assert service.pictures.read(row_of(service, "blue.png"), 64).data != first.data
    assert fetcher.fetched == ["memory:red.png", "memory:red.png", "memory:blue.png"]
    # A row that was embedded again has a new thumbnail.
    fetcher.files["memory:red.png"] = png(COLOURS["blue.png"])
    assert service.pictures.read(row, 64) is first
    after = service.pictures.read({**row, "content_hash": sha256(png(COLOURS["blue.png"])).hexdigest()}, 64)
    assert after.data != first.data


@pytest.mark.parametrize("path", ["/picture?id=red.png", "/picture?id=red.png&size=64"])
def test_a_picture_that_the_caller_has_cached_is_not_sent_again(
    client: TestClient, fetcher: RecordingFetcher, path: str
) -> None:
    first = client.get(path)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, max-age=300"
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert again.headers["cache-control"] == "private, max-age=300"
    assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content
    fetcher.files["memory:red.png"] = png(COLOURS["green.png"])
    if "size" not in path:
        assert client.get(path, headers={"If-None-Match": etag}).status_code == 200


HOSTILE = {
    "a password file": b"BMroot:x:0:0:root:/root:/bin/bash\n" * 50,
    "a document": b"II*\0" + b"the plans of next year" * 9,
    "a page": b"\xff\xd8\xff<script>alert(1)</script>",
    "a GIF's beginning": b"GIF89a" + bytes(100),
    "half a picture": png((1, 2, 3), (400, 200))[:-40],
}


@pytest.mark.parametrize("query", ["", "&size=64"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_only_begins_like_a_picture_is_not_sent(
    client: TestClient, fetcher: RecordingFetcher, kind: str, query: str
) -> None:
    fetcher.files["memory:red.png"] = HOSTILE[kind]
    response = client.get(f"/picture?id=red.png{query}")
    assert (response.status_code, response.headers["content-type"]) == (502, "application/problem+json")
    assert response.json()["type"] == "urn:likeness:problem:picture-unavailable"


@pytest.mark.parametrize("query", ["", "&size=64"])
def test_a_picture_that_has_changed_since_it_was_embedded_is_not_sent(tmp_path: Path, query: str) -> None:
    mine, other = png((1, 2, 3)), png((3, 2, 1))
    collection = Collection.create_or_open(str(tmp_path / "c"))
    embedder = FakeEmbedder()
    row = embedded_row("a.png", "memory:a.png", mine, embedder) | {"content_hash": sha256(mine).hexdigest()}
    add_rows(collection, [row], embedder, {})
    fetcher = RecordingFetcher({"memory:a.png": other})
    client = TestClient(create_app(fake_service(Searcher.open(collection), embedder=embedder, pictures=fetcher)))
    refused = client.get(f"/picture?id=a.png{query}")
    assert (refused.status_code, refused.json()["reason"], refused.json()["retryable"]) == (502, "changed", False)
    assert refused.json()["detail"] == (
        "the file of 'a.png' has changed since it was embedded: embed it again to see it"
    )
    fetcher.files["memory:a.png"] = mine
    shown = client.get(f"/picture?id=a.png{query}")
    assert shown.status_code == 200
    assert (shown.content == mine) is (query == "")


@pytest.mark.parametrize(
    ("file_format", "options", "media_type"),
    [("BMP", {}, "image/bmp"), ("MPO", {"save_all": True, "append_images": [Image.new("RGB", (9, 9))]}, "image/jpeg")],
)
def test_the_content_type_is_that_of_the_file(
    client: TestClient, fetcher: RecordingFetcher, file_format: str, options: dict[str, Any], media_type: str
) -> None:
    """The row was made from another file. An MPO is a JPEG with a second picture."""
    fetcher.files["memory:red.png"] = encode(Image.new("RGB", (9, 9)), file_format, **options)
    assert client.get("/picture?id=red.png").headers["content-type"] == media_type


def test_urls_of_queries_and_uris_of_rows_have_separate_fetchers(searcher: Searcher, fetcher: RecordingFetcher) -> None:
    untrusted = RecordingFetcher({"http://example.com/query.png": png((210, 35, 35), (90, 60))})
    service = fake_service(searcher, queries=untrusted, pictures=fetcher)
    result = service.search(Query(parts=(Part(url="http://example.com/query.png"),), options={"k": 2}))
    assert result.matches[0].image_id == "red.png"
    assert len(result.matches) == 2
    assert (untrusted.fetched, fetcher.fetched) == (["http://example.com/query.png"], [])
    untrusted.fetched.clear()
    picture = service.pictures.read(row_of(service, "blue.png"))
    assert (picture.data, picture.media_type) == (png(COLOURS["blue.png"], (400, 200)), "image/png")
    assert (untrusted.fetched, fetcher.fetched) == ([], ["memory:blue.png"])


def test_a_searcher_of_another_model_is_refused_with_both_fingerprints(searcher: Searcher) -> None:
    other = FakeEmbedder(side=64)
    with pytest.raises(OtherModelError, match="serve with the model of the index") as caught:
        fake_service(searcher, embedder=other)
    assert other.identity.fingerprint in str(caught.value)
    assert FakeEmbedder().identity.fingerprint in str(caught.value)


@pytest.mark.parametrize(("replicas", "at_once"), [(1, 3), (4, 1)])
def test_each_replica_decodes_as_many_pictures_at_once_as_it_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int, at_once: int
) -> None:
    monkeypatch.setattr("api.settings.usable_cpus", lambda: 3)
    monkeypatch.setattr("api.build_service.DecodePool", DecodePool)  # its own
    make_collection(tmp_path / "c", {"red.png": png(COLOURS["red.png"])}, FakeEmbedder())
    settings = ServeSettings(collection=str(tmp_path / "c"), replicas=replicas)
    apart = build_service(settings, load_model=lambda _: FakeEmbedder())
    with closing(apart.decoders):
        apart.decoders.start()
        assert len(apart.decoders.processes) == at_once
