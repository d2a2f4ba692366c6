"""Error messages for invalid documents, in full."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient

from api.errors import abbreviate
from api.http.app import create_app
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from index.search import Searcher
from tests.support.collections.small_collection import fake_service

ONLY = (
    "only allow_partial, crop, cursor, distinct, diversity, embedding, facets, fields, filter, group_by, id, image, k, "
    "min_percentile, min_score, offset, queries, sort, text, url, words, "
    "got an unknown field"
)
OPERATORS = (
    "filter: expected an operator on a column: $eq, $ne, $in, $nin, $gt, $gte, $lt, $lte, $prefix, $match, $exists, "
    "$not; on whole filters: $and, $or, $not, got unknown operator "
)
CANCEL = "queries: expected examples that do not cancel each other out: leave one out, or change a weight, got "
NO_BASE64 = "image: expected a picture's file in base64 (Only base64 data is allowed), got "
WIDTH = "column 'width' (int32)"
K = "k: expected a whole number from 1 to 1000"


@pytest.fixture(scope="module")
def client(searcher: Searcher) -> Iterator[TestClient]:
    nowhere = Fetcher(FetchPolicy.for_untrusted_urls(), resolve=lambda host, port: ["127.0.0.1"])
    service = fake_service(searcher, queries=nowhere)
    with TestClient(create_app(service)) as client:
        yield client


def filtered(expression: object) -> dict[str, Any]:
    return {"text": "a", "filter": expression}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            {"text": "a", "id": "b"},
            'body: expected at most one of url, image, text, id, embedding and queries, got "text", "id"',
        ),
        ({"url": "hello"}, "hello: expected a URL with http:// or https://, got no scheme"),
        ({"url": "file:///x"}, "file:///x: expected a URL with http:// or https://, got file://"),
        ({"url": ""}, 'url: expected text that is not empty, got ""'),
        ({"text": 7}, "text: expected text, got 7"),
        ({"text": [[0] * 50_000]}, "text: expected text, got [[" + "0, " * 25 + "0,…"),
        ({"text": "a", "k": 0}, f"{K}, got 0"),
        ({"text": "a", "k": 10**6}, f"{K}, got 1000000"),
        ({"text": "a", "k": "5"}, 'k: expected a whole number, got "5"'),
        ({"text": "x" * 1_001}, "text: expected at most 1000 characters, got 1001"),
        ({"text": "a", "min_score": 2}, "min_score: expected a number of at most 1, got 2"),
        ({"text": "a", "where": {"label": "x"}}, f"where: expected {ONLY}"),
        ({"image": "cat.jpg"}, f'{NO_BASE64}"cat.jpg"'),
        ({"embedding": []}, "embedding: expected 16 numbers, as the model of the index makes, got 0"),
        ({"embedding": [None] * 16}, "embedding.0: expected a number, got null"),
        ({"embedding": [0] * 16}, f"embedding: expected numbers, not all of them zero, got {[0.0] * 16}"),
        ({"queries": []}, "queries: expected a list that is not empty, got []"),
        ({"queries": [{"text": "a"}, {"text": "a", "weight": -1}]}, f"{CANCEL}[1.0, -1.0]"),
        (filtered({"label": {"$near": 1}}), f"{OPERATORS}'$near'"),
        (filtered({"label": 5}), "filter: expected text for $eq of column 'label' (string), got 5"),
        (filtered({"$and": {}}), "filter: expected a list of one or more objects for $and, got an object"),
        (filtered({"width": {"$prefix": "a"}}), f"filter: expected a column of text for $prefix, got {WIDTH}"),
        (filtered("label=x"), 'filter: expected an object, got "label=x"'),
        (filtered({"width": "a, got c"}), f"filter: expected a number for $eq of {WIDTH}, got 'a, got c'"),
        (filtered({"$x takes y, got z": 1}), f"{OPERATORS}'$x takes y, got z'"),
        ({"id": "a", "fields": [1] * 50_000}, "fields: expected at most 1,000 items, got 50,000"),
        ({"id": "a", "fields": [1] * 500}, "body: expected a document as the API describes it, got 500 mistakes"),
        ({str(n): 1 for n in range(50_000)}, "body: expected a document as the API describes it, got 50,000 fields"),
    ],
)
def test_what_is_wrong_with_a_search_is_said_in_full(client: TestClient, body: dict[str, Any], detail: str) -> None:
    refused = client.post("/search", json=body)
    assert 400 <= refused.status_code < 500
    assert refused.json()["detail"] == detail
    assert len(refused.content) < 1_000


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/search/batch", {}, "searches: expected a value, as this field is required, got nothing"),
        ("/search/batch", {"searches": None}, "searches: expected a list, got null"),
        ("/search/batch", {"searches": []}, "searches: expected a list that is not empty, got []"),
        ("/embed", {"texts": "red"}, 'texts: expected a list, got "red"'),
        ("/embed", {}, "body: expected exactly one of images, texts and urls, got nothing"),
        (
            "/embed",
            {"texts": ["a"], "urls": ["b"]},
            'body: expected exactly one of images, texts and urls, got "texts", "urls"',
        ),
        ("/embed", {"images": [1]}, "images.0: expected text, got 1"),
    ],
)
def test_what_is_wrong_with_a_batch_is_said_in_full(client: TestClient, path: str, body: object, detail: str) -> None:
    assert client.post(path, json=body).json()["detail"] == detail


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/search?text=Stra%DFe", 'text: expected UTF-8, percent-encoded, got "Stra%DFe"'),
        ("/image?id=%ff", 'id: expected UTF-8, percent-encoded, got "%ff"'),
        ("/facets?filter=%ED%A0%80", 'filter: expected UTF-8, percent-encoded, got "%ED%A0%80"'),
        ("/search?%ff=1&k=1", '%ff: expected UTF-8, percent-encoded, got "1"'),
        ("/search?text=", 'text: expected words that say what to look for, got ""'),
        ("/search?url=", 'url: expected text that is not empty, got ""'),
        ("/search?cursor=", 'cursor: expected the cursor of an earlier answer to the same search, got ""'),
        ("/search?k=", 'k: expected a whole number, got ""'),
        ("/search?k=" + "9" * 5_000, 'k: expected a whole number, got "' + "9" * 78 + "…"),
        ("/search?text=a&id=b", 'URL: expected at most one of url, text and id, got "text", "id"'),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_full(client: TestClient, path: str, detail: str) -> None:
    refused = client.get(path)
    assert (refused.status_code, refused.json()["detail"]) == (422, detail)


def test_what_is_wrong_elsewhere_is_said_in_full(client: TestClient) -> None:
    assert client.get("/image").json()["detail"] == "id: expected a value, as this field is required, got nothing"
    size = client.get("/picture?id=red.png&size=big").json()["detail"]
    assert size == 'size: expected a whole number, got "big"'
    assert client.get("/picture?id=red.png").json()["detail"] == "the file of 'red.png' is no longer there"
    empty = client.post("/search", content=b"", headers={"Content-Type": "application/json"})
    assert empty.json()["detail"] == "expected a JSON object, got an empty body"


def test_a_member_that_is_there_twice_is_refused(client: TestClient) -> None:
    twice, problem = '{"width": {"$gte": 3}, "width": {"$lte": 5}}', "the member 'width' is there more than once"
    in_body = client.post(
        "/search", content=f'{{"filter": {twice}}}', headers={"Content-Type": "application/json"}
    ).json()
    assert (in_body["status"], in_body["detail"]) == (400, f"expected a JSON object: {problem}")
    for path in ("/search", "/facets"):
        in_url = client.get(path, params={"filter": twice}).json()
        assert in_url["errors"][0]["field"] == "filter"
        assert f'JSON text such as {{"label": "cat"}} ({problem})' in in_url["detail"]


PART, BOTH = {"text": "a"}, {"text": "a", "id": "b"}
VALID: dict[str, list[dict[str, Any]]] = {
    "SearchRequest": [
        {},
        {"k": 3},
        {"text": "a"},
        {"text": "a", "url": None, "k": 3},
        {"embedding": [1, 0.5]},
        {"queries": [PART]},
    ],
    "EmbedRequest": [{"texts": ["a"]}, {"texts": ["a"], "urls": None}],
    "BatchRequest": [{"searches": [PART, {}]}],
}
INVALID: dict[str, list[dict[str, Any]]] = {
    "SearchRequest": [BOTH, {"queries": [BOTH]}, {"queries": [{"weight": 1}]}],
    "EmbedRequest": [{}, {"texts": ["a"], "urls": ["b"]}],
    "BatchRequest": [{"searches": [BOTH]}],
}


@pytest.mark.parametrize("model", VALID)
def test_the_schema_requires_exactly_one_of_the_fields(client: TestClient, model: str) -> None:
    components = client.get("/openapi.json").json()["components"]
    schema = jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{model}", "components": components})
    assert [document for document in VALID[model] if not schema.is_valid(document)] == []
    assert [document for document in INVALID[model] if schema.is_valid(document)] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ([True, "é\n", {"a": 1.5}], '[true, "é\\n", {"a": 1.5}]'),
        ("\ud800", '"\\ud800"'),
        ({"a": object}, '{"a": "<class \'object\'>"}'),
        ("x" * 200, '"' + "x" * 78 + "…"),
        ([0] * 200, "[" + "0, " * 26 + "…"),
    ],
)
def test_values_are_quoted_as_json(value: object, text: str) -> None:
    assert abbreviate(value) == text
    assert len(text) <= 80
