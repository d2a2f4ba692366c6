"""SearchService: what it answers, what it refuses, and who fetches what."""

import io
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from api.compose import build_service
from api.errors import OtherModelError
from api.search.query import Part, Query
from api.search.service import SearchService, row_of_image
from api.settings import ServeSettings
from embedder.fake import FakeEmbedder
from embedder.fetch import Fetcher
from index.search import Searcher
from tests.support.collections.small_collection import COLOURS, RecordingFetcher, fake_service, make_collection, png


@pytest.fixture
def trusted() -> RecordingFetcher:
    return RecordingFetcher({f"memory:{name}": png(colour) for name, colour in COLOURS.items()})


@pytest.fixture
def untrusted() -> RecordingFetcher:
    return RecordingFetcher({"http://example.com/query.png": png((210, 35, 35), (90, 60))})


@pytest.fixture
def service(searcher: Searcher, trusted: RecordingFetcher, untrusted: RecordingFetcher) -> SearchService:
    return fake_service(searcher, queries=untrusted, pictures=trusted)


def test_a_url_is_fetched_by_the_untrusted_fetcher_alone(
    service: SearchService, trusted: RecordingFetcher, untrusted: RecordingFetcher
) -> None:
    result = service.search(Query(parts=(Part(url="http://example.com/query.png"),), k=2))
    assert result.matches[0].image_id == "red.png"
    assert len(result.matches) == 2
    assert untrusted.asked == ["http://example.com/query.png"]
    assert trusted.asked == []


def test_a_rows_picture_is_fetched_by_the_trusted_fetcher_alone(
    service: SearchService, trusted: RecordingFetcher, untrusted: RecordingFetcher
) -> None:
    row = row_of_image(service.engine.searcher, "blue.png")
    assert row is not None
    picture = service.pictures.read(row)
    assert (picture.data, picture.media_type) == (png(COLOURS["blue.png"]), "image/png")
    assert trusted.asked == ["memory:blue.png"]
    assert untrusted.asked == []


def test_a_jpeg_with_a_second_picture_is_sent_as_a_jpeg(
    service: SearchService, searcher: Searcher, trusted: RecordingFetcher
) -> None:
    row = searcher.row("blue.png")
    assert row is not None
    target = io.BytesIO()
    first, second = (Image.new("RGB", (20, 20), colour) for colour in ("red", "blue"))
    first.save(target, "MPO", save_all=True, append_images=[second])
    trusted.files["memory:blue.png"] = target.getvalue()
    assert service.pictures.read({**row, "format": "mpo"}).media_type == "image/jpeg"


def test_a_searcher_of_another_model_is_refused_with_both(searcher: Searcher, trusted: Fetcher) -> None:
    other = FakeEmbedder(side=64)
    with pytest.raises(OtherModelError, match="serve with the model of the index") as caught:
        fake_service(searcher, embedder=other, queries=trusted, pictures=trusted)
    assert other.identity.fingerprint in str(caught.value)
    assert FakeEmbedder().identity.fingerprint in str(caught.value)


@pytest.mark.parametrize(("replicas", "at_once"), [(1, 3), (4, 1)])
def test_each_replica_decodes_as_many_pictures_at_once_as_it_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int, at_once: int
) -> None:
    monkeypatch.setattr("api.settings.os.cpu_count", lambda: 3)
    make_collection(tmp_path / "c", {"red.png": png(COLOURS["red.png"])}, FakeEmbedder())
    settings = ServeSettings(collection=str(tmp_path / "c"), replicas=replicas)
    service = build_service(settings, load_model=lambda _: FakeEmbedder())
    with closing(service.decoders):
        service.decoders.start()
        assert len(service.decoders.processes) == at_once
