"""SearchService: what it answers, what it refuses, and who fetches what."""

import io
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from api.compose import build_service
from api.errors import OtherModelError, Problem
from api.search.query import Part, Query
from api.search.service import SearchService, row_of_image
from api.settings import ServeSettings
from embedder.errors import ModelError
from embedder.fake import FakeEmbedder
from embedder.fetch import Fetcher
from index.collection.rows import FIXED
from index.search import Searcher
from tests.support.collections.small_collection import COLOURS, RecordingFetcher, make_collection, png


class ImageOnlyEmbedder(FakeEmbedder):
    def embed_texts(self, texts: Any) -> Any:
        raise ModelError("model 'fake' has no text side")


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    pictures = {name: png(colour) for name, colour in COLOURS.items()}
    return make_collection(tmp_path_factory.mktemp("collection"), pictures, FakeEmbedder())


@pytest.fixture
def trusted() -> RecordingFetcher:
    return RecordingFetcher({f"memory:{name}": png(colour) for name, colour in COLOURS.items()})


@pytest.fixture
def untrusted() -> RecordingFetcher:
    return RecordingFetcher({"http://example.com/query.png": png((210, 35, 35), (90, 60))})


@pytest.fixture
def service(searcher: Searcher, trusted: RecordingFetcher, untrusted: RecordingFetcher) -> SearchService:
    return SearchService(embedder=FakeEmbedder(), searcher=searcher, query_fetcher=untrusted, picture_fetcher=trusted)


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
    picture = service.picture(row)
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
    assert service.picture({**row, "format": "mpo"}).media_type == "image/jpeg"


def test_a_picture_finds_itself_with_score_one(service: SearchService) -> None:
    best = service.search(Query(parts=(Part(data=png(COLOURS["green.png"])),), k=1)).matches
    assert [match.image_id for match in best] == ["green.png"]
    assert best[0].score == pytest.approx(1.0, abs=1e-6)
    assert best[0].metadata["label"] == "green"


def test_more_matches_than_images_gives_all_images(service: SearchService) -> None:
    matches = service.search(Query(parts=(Part(data=png((0, 0, 0))),), k=1_000)).matches
    assert {match.image_id for match in matches} == set(COLOURS)
    assert [match.score for match in matches] == sorted((match.score for match in matches), reverse=True)


def test_scores_of_a_text_are_the_cosines_of_its_vector(service: SearchService, searcher: Searcher) -> None:
    embedder = FakeEmbedder()
    text = embedder.embed_texts(["a red star"])[0]
    expected = {
        name: float(text @ embedder.embed_images(np.full((1, 32, 32, 3), colour, np.uint8))[0])
        for name, colour in COLOURS.items()
    }
    found = {
        match.image_id: match.score for match in service.search(Query(parts=(Part(text="a red star"),), k=3)).matches
    }
    assert found == pytest.approx(expected, abs=1e-5)


def test_timings_name_the_stages_and_add_up(service: SearchService) -> None:
    timing = service.search(Query(parts=(Part(url="http://example.com/query.png"),), k=1)).timing_ms
    assert list(timing) == ["fetch", "decode", "embed", "search", "total"]
    stages = sum(ms for name, ms in timing.items() if name != "total")
    assert 0 < stages <= timing["total"]
    assert list(service.search(Query(parts=(Part(text="star"),), k=1)).timing_ms) == ["embed", "search", "total"]
    by_id = Query(parts=(Part(image_id="red.png"),), k=1)
    assert list(service.search(by_id).timing_ms) == ["search", "total"]


def test_the_answer_says_what_it_was_found_with(service: SearchService) -> None:
    result = service.search(Query(parts=(Part(text="star"),), k=1))
    assert (result.version, result.ntotal) == ("000001", 3)
    assert result.model == FakeEmbedder().identity


def test_a_searcher_of_another_model_is_refused_with_both(searcher: Searcher, trusted: Fetcher) -> None:
    other = FakeEmbedder(side=64)
    with pytest.raises(OtherModelError, match="serve with the model of the index") as caught:
        SearchService(embedder=other, searcher=searcher, query_fetcher=trusted, picture_fetcher=trusted)
    assert other.identity.fingerprint in str(caught.value)
    assert FakeEmbedder().identity.fingerprint in str(caught.value)


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_an_empty_text_is_refused(service: SearchService, text: str) -> None:
    with pytest.raises(Problem, match="text: expected words that say what to look for") as caught:
        service.search(Query(parts=(Part(text=text),), k=1))
    assert caught.value.kind.status == 422


def test_text_against_an_image_only_model_says_so(searcher: Searcher, trusted: Fetcher) -> None:
    service = SearchService(
        embedder=ImageOnlyEmbedder(), searcher=searcher, query_fetcher=trusted, picture_fetcher=trusted
    )
    with pytest.raises(Problem, match="no text side") as caught:
        service.search(Query(parts=(Part(text="a red star"),), k=1))
    assert caught.value.kind.slug == "text-not-supported"
    service.live.warm_up()
    assert service.ready


def test_a_missing_picture_names_the_image_and_not_the_operators_path(
    service: SearchService, trusted: RecordingFetcher
) -> None:
    trusted.files.clear()
    row = row_of_image(service.engine.searcher, "red.png")
    assert row is not None
    with pytest.raises(Problem) as caught:
        service.picture(row)
    assert str(caught.value) == "the file of 'red.png' is no longer there"
    assert caught.value.kind.status == 404


def test_a_thumbnail_of_a_file_that_broke_is_unavailable(service: SearchService, trusted: RecordingFetcher) -> None:
    trusted.files["memory:red.png"] = b"<html>"
    row = row_of_image(service.engine.searcher, "red.png")
    assert row is not None
    with pytest.raises(Problem) as caught:
        service.picture(row, 64)
    assert (caught.value.kind.slug, caught.value.extensions["reason"]) == (
        "picture-unavailable",
        "not_an_image",
    )


def test_a_broken_query_is_the_problem_of_its_field(service: SearchService) -> None:
    with pytest.raises(Problem) as caught:
        service.search(Query(parts=(Part(data=b"no picture"),), k=1))
    assert caught.value.kind.slug == "unusable-image"
    assert caught.value.extensions == {
        "field": "image",
        "reason": "not_an_image",
        "stage": "decode",
        "retryable": False,
    }


def test_it_is_ready_once_it_has_answered(service: SearchService) -> None:
    assert not service.ready
    service.live.warm_up()
    assert service.ready


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


def test_rows_know_nothing_of_vectors(service: SearchService) -> None:
    row = row_of_image(service.engine.searcher, "red.png")
    assert row is not None
    assert "embedding" in FIXED
    assert "embedding" not in row
    assert row_of_image(service.engine.searcher, "no such id") is None
