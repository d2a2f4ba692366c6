"""All forms of `/search`, `/search/batch` and `/embed`, compared with scores of the vectors themselves."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from api.client.query import image_bytes
from api.http.app import create_app
from api.http.requests import SearchRequest
from api.settings import RequestLimits
from benchmarks.common.waiting import eventually
from index.queries import QueryKind
from index.search import Searcher
from tests.support.collections.small_collection import RecordingFetcher, fake_service, make_collection, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.pictures.sample_images import rotated
from tests.support.servers.clients import ids, search

# Two reds that hardly differ, and other colours.
COLOURS = {
    "red-1.png": (220, 30, 30),
    "red-2.png": (221, 30, 31),
    "red-3.png": (180, 20, 60),
    "green.png": (30, 200, 40),
    "blue.png": (20, 40, 210),
    "grey.png": (120, 120, 120),
}
URL = "http://example.com/red.png"
LIMITS = RequestLimits(max_upload_bytes=50_000, max_json_bytes=1_000_000, max_k=100)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    pictures = {name: png(colour) for name, colour in COLOURS.items()}
    return make_collection(tmp_path_factory.mktemp("collection"), pictures, FakeEmbedder())


@pytest.fixture(scope="module")
def fetcher() -> RecordingFetcher:
    return RecordingFetcher({URL: png(COLOURS["red-1.png"])})


@pytest.fixture(scope="module")
def client(searcher: Searcher, fetcher: RecordingFetcher) -> Iterator[TestClient]:
    with TestClient(create_app(fake_service(searcher, queries=fetcher), limits=LIMITS)) as client:
        yield client


def vector_of(image_id: str) -> Any:
    return FakeEmbedder().embed_images(np.full((1, 32, 32, 3), COLOURS[image_id], np.uint8))[0]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def scores(answer: dict[str, Any]) -> dict[str, float]:
    return {match["image_id"]: match["score"] for match in answer["matches"]}


def expected_scores(direction: Any) -> dict[str, float]:
    unit = direction / np.linalg.norm(direction)
    return {image_id: float(vector_of(image_id) @ unit) for image_id in COLOURS}


# Queries


@pytest.mark.parametrize(
    "what",
    [
        {"url": URL},
        {"image": encoded(png(COLOURS["red-1.png"]))},
        {"embedding": (7 * vector_of("red-1.png")).tolist()},
        {"queries": [{"url": URL, "weight": 3}]},
    ],
)
def test_a_picture_in_any_form_finds_the_same(client: TestClient, what: dict[str, Any]) -> None:
    found = search(client, **what)
    assert ids(found)[:2] == ["red-1.png", "red-2.png"]
    assert scores(found) == pytest.approx(expected_scores(vector_of("red-1.png")), abs=2e-6)


def test_an_indexed_image_does_not_match_itself(client: TestClient) -> None:
    found = search(client, id="red-1.png")
    assert ids(found)[0] == "red-2.png"
    assert set(ids(found)) == COLOURS.keys() - {"red-1.png"}
    assert list(found["timing_ms"]) == ["search", "total"]


def test_a_mix_is_the_weighted_sum_of_unit_vectors(client: TestClient) -> None:
    text = FakeEmbedder().embed_texts(["dark"])[0]
    parts: list[dict[str, Any]] = [
        {"image": encoded(png(COLOURS["blue.png"])), "weight": 2},
        {"text": "dark", "weight": 0.5},
        {"embedding": (100 * vector_of("green.png")).tolist()},
        {"id": "grey.png", "weight": -0.75},
    ]
    found = search(client, queries=parts)
    direction = 2 * vector_of("blue.png") + 0.5 * text + vector_of("green.png") - 0.75 * vector_of("grey.png")
    expected = expected_scores(direction)
    del expected["grey.png"]
    assert scores(found) == pytest.approx(expected, abs=2e-6)
    assert ids(found) == sorted(expected, key=lambda image_id: -expected[image_id])


# A part of a picture

RIGHT = [0.5, 0, 0.5, 1]


def halves(left: str, right: str) -> bytes:
    """A picture of two colours, stored rotated."""
    image = Image.new("RGB", (64, 48), COLOURS[left])
    image.paste(COLOURS[right], (32, 0, 64, 48))
    return rotated(image, 6, "png")


@pytest.fixture
def cropping(searcher: Searcher) -> Iterator[TestClient]:
    """The source of blue.png is a picture that is half green, and that of grey.png is missing."""
    files = {URL: halves("green.png", "blue.png"), "memory:blue.png": halves("red-3.png", "green.png")}
    with TestClient(create_app(fake_service(searcher, queries=files, pictures=files), limits=LIMITS)) as client:
        yield client


def test_a_crop_of_a_picture_is_the_query(cropping: TestClient) -> None:
    data = halves("green.png", "blue.png")
    whole = scores(search(cropping, image=encoded(data)))
    for part in ({"image": encoded(data)}, {"url": URL}):
        for what in ({**part, "crop": RIGHT}, {"queries": [{**part, "crop": RIGHT}]}):
            found = search(cropping, **what)
            assert scores(found) == pytest.approx(expected_scores(vector_of("blue.png")), abs=2e-6) != whole
        assert ids(search(cropping, **part, crop=[0, 0.25, 0.5, 0.5]))[0] == "green.png"
    form = {"image": ("a.png", data)}
    uploaded = cropping.post("/search", files=form, data={"crop": json.dumps(RIGHT)}).json()
    assert scores(uploaded) == scores(search(cropping, url=URL, crop=RIGHT))
    assert scores(search(cropping, image=encoded(data))) == whole  # no crop has replaced it in the cache


def test_a_crop_of_an_indexed_image_is_read_from_its_source(cropping: TestClient) -> None:
    found = search(cropping, id="blue.png", crop=RIGHT)
    expected = expected_scores(vector_of("green.png"))
    del expected["blue.png"]
    assert scores(found) == pytest.approx(expected, abs=2e-6)
    assert list(found["timing_ms"]) == ["fetch", "decode", "embed", "search", "total"]
    gone = cropping.post("/search", json={"queries": [{"id": "grey.png", "crop": RIGHT}]}).json()
    assert (gone["type"], gone["field"]) == ("urn:likeness:problem:picture-not-found", "queries.0.id")
    assert gone["detail"] == (
        "the file of 'grey.png' is no longer there. A search by the whole image, without crop, still works"
    )


# Options


def test_filter_min_score_and_fields(client: TestClient) -> None:
    found = search(client, url=URL, filter={"label": {"$in": ["blue", "green"]}})
    assert set(ids(found)) == {"blue.png", "green.png"}
    everything = search(client, url=URL)
    bar = everything["matches"][2]["score"]
    assert ids(search(client, url=URL, min_score=bar)) == ids(everything)[:3]
    assert everything["matches"][0]["metadata"] == {"label": "red-1", "weight": None}
    assert search(client, url=URL, fields=["label"])["matches"][0]["metadata"] == {"label": "red-1"}
    assert search(client, url=URL, fields=[])["matches"][0]["metadata"] == {}
    size = len(png(COLOURS["red-1.png"]))
    of_the_picture = {"height": 40, "width": 48, "format": "png", "size": size, "label": "red-1"}
    assert search(client, url=URL, fields=[*of_the_picture, "label"])["matches"][0]["metadata"] == of_the_picture


def test_an_option_that_is_null_counts_as_absent(client: TestClient) -> None:
    nulls = dict.fromkeys(SearchRequest.__annotations__.keys() - {"url"})
    assert search(client, url=URL, **nulls)["matches"] == search(client, url=URL)["matches"] != []
    assert search(client, queries=[{"url": URL, "weight": None}])["matches"] == search(client, url=URL)["matches"]


def test_near_duplicates_are_folded(client: TestClient) -> None:
    found = search(client, url=URL, distinct=0.9999)
    assert found["matches"][0]["image_id"] == "red-1.png"
    assert found["matches"][0]["duplicates"] == ["red-2.png"]
    assert "red-2.png" not in ids(found)
    assert len(ids(search(client, url=URL, distinct=False))) == 6
    assert search(client, url=URL, distinct=True)["matches"] == search(client, url=URL, distinct=0.98)["matches"]


BLUE, GREY = {"id": "blue.png"}, {"id": "grey.png"}


@pytest.mark.parametrize(
    ("kind", "query"),
    [
        ("image", {"url": URL}),
        ("image", GREY),
        ("image", {"queries": [BLUE]}),
        ("mix", {"queries": [BLUE, GREY]}),
        ("contrast", {"queries": [BLUE, {**GREY, "weight": -0.5}]}),
        (None, {"text": "red"}),  # the version was measured without texts
        (None, {"queries": [BLUE, {"text": "red"}]}),
        (None, {"queries": [{**BLUE, "weight": -1}]}),
    ],
)
def test_a_score_has_the_percentile_of_its_kind_of_query(
    client: TestClient, searcher: Searcher, kind: QueryKind | None, query: dict[str, Any]
) -> None:
    matches = search(client, **query)["matches"]
    assert matches
    for match in matches:
        assert match["percentile"] == searcher.percentile(match["score"], kind)
        assert (match["percentile"] is None) == (kind is None)


def test_min_percentile(client: TestClient) -> None:
    everything = search(client, url=URL)["matches"]
    for rank in (0, 2, 5):
        bar = everything[rank]["percentile"]
        expected = [match for match in everything if match["percentile"] >= bar]
        assert search(client, url=URL, min_percentile=bar)["matches"] == expected
        assert search(client, url=URL, min_percentile=bar, offset=1)["matches"] == expected[1:]
        above = search(client, url=URL, min_percentile=bar, min_score=everything[1]["score"])["matches"]
        assert above == expected[:2]
    mixed = client.post("/search", json={"queries": [{"id": "blue.png"}, {"text": "red"}], "min_percentile": 0})
    assert mixed.json()["detail"].startswith(
        "min_percentile: expected a query whose matches have percentiles (in this index of kind: image, "
    )


def test_a_server_may_allow_fewer_matches_than_the_default(searcher: Searcher) -> None:
    with TestClient(create_app(fake_service(searcher), limits=RequestLimits(max_k=5))) as client:
        answers = [client.post("/search", json=BLUE), client.get("/search", params=BLUE)]
        assert {each.json()["detail"] for each in answers} == {"k: expected a whole number from 1 to 5, got 10"}
        assert len(client.post("/search", json={**BLUE, "k": 5}).json()["matches"]) == 5


def test_diverse_matches_keep_their_scores(client: TestClient) -> None:
    plain, diverse = (search(client, url=URL, diversity=diversity) for diversity in (0, 0.8))
    assert ids(plain)[:2] == ["red-1.png", "red-2.png"]
    assert ids(diverse)[0] == "red-1.png"
    assert ids(diverse).index("red-2.png") > 2
    assert scores(diverse) == scores(plain)


# Without JSON


def test_a_search_in_a_url_is_the_same_as_in_json(client: TestClient) -> None:
    options = {"k": 3, "offset": 1, "min_score": -0.5, "distinct": 0.9999, "fields": ["label"], "diversity": 0.2}
    texts = {name: json.dumps(value) for name, value in options.items()}
    for what in ({"url": URL}, {"text": "a dark red"}, {"id": "grey.png"}):
        answered = client.get("/search", params={**what, **texts})
        assert answered.json()["matches"] == search(client, **what, **options)["matches"] != []
    cropped = client.get("/search", params={"url": URL, "crop": "[0, 0, 0.5, 1]", "filter": '{"label": "blue"}'})
    assert ids(cropped.json()) == ["blue.png"]


@pytest.mark.parametrize("media_type", ["image/png", "image/jpeg", "image/webp; charset=binary"])
def test_a_body_may_be_just_a_picture(client: TestClient, media_type: str) -> None:
    params = {"k": "2", "crop": "[0, 0, 1, 1]", "fields": "[]"}
    data, headers = png(COLOURS["red-1.png"]), {"content-type": media_type}
    answered = client.post("/search", content=data, headers=headers, params=params).json()
    assert answered["matches"] == search(client, url=URL, k=2, fields=[])["matches"]
    refused = client.post("/search", content=bytes(LIMITS.max_upload_bytes + 1), headers=headers)
    assert (refused.status_code, refused.json()["type"]) == (413, "urn:likeness:problem:too-large")
    refused = client.post("/search", content=b"no picture", headers=headers)
    assert (refused.json()["field"], refused.json()["reason"]) == ("image", "not_an_image")


OPTIONS: dict[str, Any] = {
    **{"k": 2, "offset": 1, "min_score": -0.5, "min_percentile": 0, "filter": {"label": {"$ne": "red-1"}}},
    **{"distinct": 0.9999, "diversity": 0.2, "fields": ["label"], "allow_partial": True, "crop": [0, 0, 1, 1]},
}
PICTURE = png(COLOURS["red-1.png"])
BODIES: tuple[dict[str, Any], ...] = (
    {"files": {"image": ("a.png", PICTURE)}},
    {"json": {"image": encoded(PICTURE)}},
    {"content": PICTURE, "headers": {"content-type": "image/png"}},
)


@pytest.mark.parametrize("option", [*OPTIONS, "all"])
def test_options_of_an_upload_are_in_its_form_or_in_the_url(client: TestClient, option: str) -> None:
    options = OPTIONS if option == "all" else {option: OPTIONS[option]}
    expected = search(client, url=URL, **options)["matches"]
    assert expected
    texts = {name: json.dumps(value) for name, value in options.items()}
    uploads = [client.post("/search", params=texts, **body) for body in BODIES]
    uploads.append(client.post("/search", data=texts, **BODIES[0]))
    assert [each.json()["matches"] for each in uploads] == [expected] * 4


# What is refused


def test_a_vector_may_have_any_norm_but_only_finite_numbers(client: TestClient) -> None:
    expected = scores(search(client, embedding=vector_of("red-3.png").tolist()))
    for factor in (1e-300, 1e300):
        scaled = (vector_of("red-3.png").astype(np.float64) * factor).tolist()
        assert scores(search(client, embedding=scaled)) == pytest.approx(expected, abs=2e-6)
    for number in ("NaN", "Infinity", "1e999"):
        body = f'{{"embedding": [{number}]}}'
        response = client.post("/search", content=body, headers={"content-type": "application/json"})
        assert response.json()["errors"][0]["field"] == "embedding.0"


def test_a_base64_picture_over_the_limit_is_refused(client: TestClient) -> None:
    response = client.post("/search", json={"image": encoded(bytes(LIMITS.max_upload_bytes + 3))})
    assert (response.status_code, response.json()["type"]) == (413, "urn:likeness:problem:too-large")
    response = client.post("/search", json={"image": encoded(bytes(LIMITS.max_upload_bytes))})
    assert response.json()["reason"] == "not_an_image"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"id": "none.png"}, "id"),
        ({"id": ""}, "id"),
        ({"id": "none.png", "crop": RIGHT}, "id"),
        ({"queries": [{"text": "a"}, {"id": "none.png"}]}, "queries.1.id"),
        ({"queries": [{"id": "none.png", "crop": RIGHT, "weight": -1}]}, "queries.0.id"),
    ],
)
def test_an_unknown_id_is_a_404(client: TestClient, query: dict[str, Any], field: str) -> None:
    detail = f'index version 000001 has no image "{"none.png" if "none" in str(query) else ""}"'
    expected = {"type": "urn:likeness:problem:image-not-found", "status": 404, "field": field, "detail": detail}
    response = client.post("/search", json=query)
    answers = [
        response.json(),
        client.post("/search/batch", json={"searches": [query]}).json()["results"][0]["problem"],
    ]
    if query.keys() == {"id"} and query["id"]:
        answers.append(client.get("/search", params=query).json())
    assert response.status_code == 404
    assert [{name: answer[name] for name in expected} for answer in answers] == [expected] * len(answers)
    for operation in client.get("/openapi.json").json()["paths"]["/search"].values():
        examples = operation["responses"]["404"]["content"]["application/problem+json"]["examples"]
        assert "image-not-found" in examples


RED = png(COLOURS["red-1.png"])
RED += bytes((1 - len(RED)) % 3)  # one more than a multiple of three, so that it needs padding
WINDOWS = "\r\n".join(re.findall(".{1,64}", encoded(RED)))


@pytest.mark.parametrize(
    "text",
    [
        encoded(RED),
        encoded(RED).rstrip("="),
        "data:image/png;base64," + encoded(RED),
        "data:;base64," + encoded(RED),
        "data:image/png;charset=utf-8;base64," + encoded(RED),
        "DATA:image/png;BASE64, " + encoded(RED),
        "data:image/png;base64," + quote(encoded(RED)),
        "data:image/png;base64," + base64.urlsafe_b64encode(RED).decode().rstrip("="),
        base64.encodebytes(RED).decode(),
        WINDOWS,
        "data:image/png;base64,\n" + WINDOWS,
        WINDOWS.rstrip("=") + "\n",
        f"\t{encoded(RED)}  ",
        base64.urlsafe_b64encode(RED).decode(),
        base64.urlsafe_b64encode(RED).decode().rstrip("="),
        base64.urlsafe_b64encode(RED).decode() + "\n",
    ],
)
def test_a_picture_in_any_usual_form_of_base64(client: TestClient, text: str) -> None:
    assert ids(search(client, image=text, k=1)) == ["red-1.png"]
    if text[:5].lower() == "data:":
        assert image_bytes(text) == RED


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_json_in_the_encodings_of_windows(client: TestClient, encoding: str) -> None:
    body = json.dumps({"image": encoded(RED), "k": 1, "filter": {"label": {"$ne": "ü"}}}, ensure_ascii=False)
    response = client.post("/search", content=body.encode(encoding), headers={"content-type": "application/json"})
    assert ids(response.json()) == ["red-1.png"]


# Batches


def test_each_search_of_a_batch_has_its_own_result_or_problem(client: TestClient) -> None:
    searches: list[dict[str, Any]] = [
        {"url": URL, "k": 1},
        {"url": "http://example.com/none.png"},
        {"text": "a", "k": 0},
        {"image": encoded(b"no picture")},
        {"id": "grey.png", "k": 2},
    ]
    results = client.post("/search/batch", json={"searches": searches}).json()["results"]
    assert [list(result) for result in results] == [["ok"], ["problem"], ["problem"], ["problem"], ["ok"]]
    for number in (0, 4):
        alone = search(client, **searches[number])
        assert results[number]["ok"]["matches"] == alone["matches"]
        assert results[number]["ok"]["index"] == alone["index"]
    for number in (1, 2, 3):
        refused = client.post("/search", json=searches[number])
        assert (refused.status_code, refused.json()) == (422, results[number]["problem"])


def test_a_defect_in_a_batch_affects_only_its_search(client: TestClient, fetcher: RecordingFetcher) -> None:
    class Broken(dict[str, bytes]):
        def __contains__(self, key: object) -> bool:
            raise RuntimeError("secret")

    files, fetcher.files = fetcher.files, Broken()
    try:
        response = client.post("/search/batch", json={"searches": [{"url": URL}, {"text": "a"}]})
    finally:
        fetcher.files = files
    first, second = response.json()["results"]
    assert first["problem"]["type"] == "urn:likeness:problem:internal"
    assert "secret" not in response.text
    assert len(second["ok"]["matches"]) == 6


# Vectors


def test_vectors_of_pictures_and_texts(client: TestClient) -> None:
    answer = client.post("/embed", json={"texts": ["a star", " ", "a ring"]}).json()
    assert answer["model"]["fingerprint"] == FakeEmbedder().identity.fingerprint
    assert answer["index"] == client.post("/search", json={"text": "a star"}).json()["index"]
    assert answer["results"][0]["timing_ms"].keys() == {"embed", "total"}
    expected = FakeEmbedder().embed_texts(["a star", "a ring"])
    np.testing.assert_allclose([answer["results"][0]["ok"], answer["results"][2]["ok"]], expected, atol=1e-6)
    assert answer["results"][1]["problem"]["errors"][0]["field"] == "texts.1"

    pictures = [encoded(png(COLOURS["red-1.png"])), "?", encoded(b"x")]
    first, second, third = client.post("/embed", json={"images": pictures}).json()["results"]
    np.testing.assert_allclose(first["ok"], vector_of("red-1.png"), atol=1e-6)
    assert second["problem"]["errors"][0]["field"] == "images.1"
    assert (third["problem"]["field"], third["problem"]["reason"]) == ("images.2", "not_an_image")

    first, second = client.post("/embed", json={"urls": [URL, "http://example.com/none"]}).json()["results"]
    np.testing.assert_allclose(first["ok"], vector_of("red-1.png"), atol=1e-6)
    assert second["problem"]["type"] == "urn:likeness:problem:url-not-usable"


def test_slow_hosts_delay_nobody_else(searcher: Searcher) -> None:
    """At the limit of fetches, further URLs are refused at once, and texts are still answered."""

    class SlowHost(RecordingFetcher):
        def fetch(self, uri: str) -> bytes:
            data = super().fetch(uri)
            assert go.wait(20)
            return data

    go, host = threading.Event(), SlowHost({URL: png(COLOURS["red-1.png"])})
    few = replace(LIMITS, max_url_fetches=3, max_searches=1)
    answers: list[Any] = []

    def ask(client: TestClient) -> None:
        answers.append(client.post("/search", json={"url": URL, "k": 1}))

    def came(count: int) -> bool:
        return len(host.fetched) + len(answers) >= count

    with TestClient(create_app(fake_service(searcher, queries=host), limits=few)) as client:
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(10)]
        try:
            for number, thread in enumerate(threads, start=1):
                thread.start()
                eventually(partial(came, number), "it is fetched or refused")
            assert [answer.status_code for answer in answers] == [429] * 7
            assert answers[0].headers["retry-after"] == "1"
            assert "fetched from other hosts" in answers[0].json()["detail"]
            for document in ({"searches": [{"url": URL}]}, {"searches": [{"text": "a star"}, {"url": URL}]}):
                assert client.post("/search/batch", json=document).status_code == 429
            assert client.post("/embed", json={"urls": [URL]}).status_code == 429
            for text in ("a star", "a ring"):
                assert len(search(client, text=text)["matches"]) == len(COLOURS)
            assert len(answers) == 7
        finally:
            go.set()
            for thread in threads:
                thread.join()
    assert [ids(answer.json()) for answer in answers[7:]] == [["red-1.png"]] * 3
