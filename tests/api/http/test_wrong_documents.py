"""Error messages for invalid documents, in full."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.problems import abbreviate
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from index.search import Searcher
from tests.support.collections.small_collection import PLAIN, fake_service

OPTIONS = "allow_partial crop cursor distinct diversity facets fields filter group_by k min_percentile min_score offset"


def only(*others: str) -> str:
    """What is expected instead of an unknown field: the options, and these others."""
    return f"expected only {', '.join(sorted([*OPTIONS.split(), 'sort', 'words', *others]))}, got an unknown field"


ONE, BOTH_PLACES = "expected one value, got", "expected a value in the URL or in the body, got both"
NOTHING = "expected no parameters in the URL, got an unknown field"
OPERATORS = (
    "filter: expected an operator on a column: $eq, $ne, $in, $nin, $gt, $gte, $lt, $lte, $prefix, $match, $exists, "
    "$not; on whole filters: $and, $or, $not, got unknown operator "
)
CANCEL = "queries: expected examples that do not cancel each other out: leave one out, or change a weight, got "
NO_BASE64 = "image: expected a picture's file in base64 (Only base64 data is allowed), got "
WIDTH = "column 'width' (int32)"
COLUMNS = (
    "filter: expected one of the columns image_id (string), uri (string), content_hash (string), size (int64), "
    "modified (timestamp[us, tz=UTC]), etag (string), width (int32), height (int32), format (string), label (string), "
    "weight (double), got unknown column "
)
NO_JSON = 'filter: expected JSON text such as {"label": "cat", "width": {"$gte": 640}} '
FRACTIONS = "crop: expected [x, y, width, height] as fractions of the picture, from 0 to 1 and within its edges, got "
K = "k: expected a whole number from 1 to 1,000"


@pytest.fixture(scope="module")
def client(searcher: Searcher) -> Iterator[TestClient]:
    nowhere = Fetcher(FetchPolicy.for_untrusted_urls(), resolve=lambda host, port: ["127.0.0.1"])
    service = fake_service(searcher, queries=nowhere)
    with TestClient(create_app(service)) as client:
        yield client


NUMBERS = "embedding: expected 16 numbers, as the model of the index makes, got "
OFFSET = "offset: expected a whole number from 0 to 9,990: k + offset is limited, got "
ONE_OF_ITEMS = "body: expected exactly one of images, texts and urls, got "
URL, PART, BOTH = "http://a.example/", {"text": "a"}, {"text": "a", "id": "b"}
RIGHT = [0.5, 0.0, 0.5, 1.0]
PICTURE = PLAIN["red.png"]


def filtered(expression: object) -> dict[str, Any]:
    return {"text": "a", "filter": expression}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (BOTH, 'body: expected at most one of url, image, text, id, embedding and queries, got "text", "id"'),
        ([1, 2], "body: expected an object, got [1, 2]"),
        (None, "body: expected an object, got null"),
        ({"url": "hello"}, "hello: expected a URL with http:// or https://, got no scheme"),
        ({"url": "file:///x"}, "file:///x: expected a URL with http:// or https://, got file://"),
        ({"url": ""}, 'url: expected text that is not empty, got ""'),
        ({"url": URL + "x" * 4_096}, "url: expected at most 4096 characters, got 4113"),
        ({"text": 7}, "text: expected text, got 7"),
        ({"text": [[0] * 50_000]}, "text: expected text, got [[" + "0, " * 25 + "0,…"),
        ({"text": "x" * 1_001}, "text: expected at most 1000 characters, got 1001"),
        ({"id": "x" * 5_000}, "id: expected at most 4096 characters, got 5000"),
        ({"image": "cat.jpg"}, f'{NO_BASE64}"cat.jpg"'),
        ({"embedding": []}, f"{NUMBERS}0"),
        ({"embedding": [1] * 65_536}, f"{NUMBERS}65536"),
        ({"embedding": [1, "2"]}, 'embedding.1: expected a number, got "2"'),
        ({"embedding": [None] * 16}, "embedding.0: expected a number, got null"),
        ({"embedding": [0] * 16}, f"embedding: expected numbers, not all of them zero, got {[0.0] * 16}"),
        ({"queries": []}, "queries: expected a list that is not empty, got []"),
        ({"queries": ["?"] * 17}, "queries: expected at most 16 items, got 17"),
        ({"queries": [{}]}, "queries.0: expected exactly one of url, image, text, id and embedding, got nothing"),
        ({"queries": [PART, {"text": " "}]}, 'queries.1.text: expected words that say what to look for, got " "'),
        ({"queries": [PART, {"embedding": [1] * 17}]}, f"queries.1.{NUMBERS}17"),
        (
            {"queries": [PART | {"k": 3}]},
            "queries.0.k: expected only crop, embedding, id, image, text, url, weight, got an unknown field",
        ),
        ({"queries": [PART | {"weight": 101}]}, "queries.0.weight: expected a number of at most 100, got 101"),
        ({"queries": [PART, PART | {"weight": -1}]}, f"{CANCEL}[1.0, -1.0]"),
        ({"url": URL, "crop": [0, 0, 1]}, f"{FRACTIONS}[0.0, 0.0, 1.0]"),
        ({"url": URL, "crop": [0.5, 0, 0.6, 1]}, f"{FRACTIONS}[0.5, 0.0, 0.6, 1.0]"),
        ({"id": "blue.png", "crop": [0, 0, 0, 1]}, f"{FRACTIONS}[0.0, 0.0, 0.0, 1.0]"),
        ({"queries": [{"url": URL, "crop": [-0.1, 0, 1, 1]}]}, f"queries.0.{FRACTIONS}[-0.1, 0.0, 1.0, 1.0]"),
        ({"url": URL, "crop": [0, 0, 1, "1"]}, 'crop.3: expected a number, got "1"'),
        (PART | {"crop": RIGHT}, f"crop: expected a picture to take it from: image, url or id, got {RIGHT}"),
        ({"queries": [PART], "crop": RIGHT}, f"crop: expected a crop beside each picture of `queries`, got {RIGHT}"),
        (PART | {"k": 0}, f"{K}, got 0"),
        (PART | {"k": 10**6}, f"{K}, got 1000000"),
        (PART | {"k": "5"}, 'k: expected a whole number, got "5"'),
        (PART | {"k": 1.5}, "k: expected a whole number, got 1.5"),
        (PART | {"offset": -1}, f"{OFFSET}-1"),
        (PART | {"offset": 9_995}, f"{OFFSET}9995"),
        (
            PART | {"offset": 991, "diversity": 0.5},
            "diversity: expected k + offset of at most 1,000 with it, not 1,001, got 0.5",
        ),
        (PART | {"diversity": 2}, "diversity: expected a number of at most 1, got 2"),
        (PART | {"distinct": "yes"}, 'distinct: expected a cosine from -1 to 1, or true for 0.98, got "yes"'),
        (PART | {"min_score": 2}, "min_score: expected a number of at most 1, got 2"),
        (PART | {"min_percentile": 101}, "min_percentile: expected a number of at most 100, got 101"),
        (
            PART | {"fields": ["label", "etag"]},
            'fields: expected only format, height, label, modified, size, weight, width, got "etag"',
        ),
        ({"id": "a", "fields": [1] * 50_000}, "fields: expected at most 1,000 items, got 50,000"),
        ({"id": "a", "fields": [1] * 500}, "body: expected a document as the API describes it, got 500 mistakes"),
        (PART | {"where": {}}, f"where: {only('embedding', 'id', 'image', 'queries', 'text', 'url')}"),
        (filtered({"label": {"$near": 1}}), f"{OPERATORS}'$near'"),
        (filtered({"label": 5}), "filter: expected text for $eq of column 'label' (string), got 5"),
        (filtered({"$and": {}}), "filter: expected a list of one or more objects for $and, got an object"),
        (filtered({"width": {"$prefix": "a"}}), f"filter: expected a column of text for $prefix, got {WIDTH}"),
        (filtered("label=x"), 'filter: expected an object, got "label=x"'),
        (filtered({"width": "a, got c"}), f"filter: expected a number for $eq of {WIDTH}, got 'a, got c'"),
        (filtered({"$x takes y, got z": 1}), f"{OPERATORS}'$x takes y, got z'"),
        ({str(n): 1 for n in range(101)}, "body: expected a document as the API describes it, got 101 fields"),
        ({str(n): 1 for n in range(50_000)}, "body: expected a document as the API describes it, got 50,000 fields"),
    ],
)
def test_what_is_wrong_with_a_search_is_said_in_full(client: TestClient, body: Any, detail: str) -> None:
    """Also if it is one of a batch."""
    refused = client.post("/search", content=json.dumps(body), headers={"Content-Type": "application/json"})
    problem = refused.json()
    is_address = detail.startswith(("hello:", "file:"))  # a problem of its own, without fields
    kind = problem["type"].rpartition(":")[2]
    assert (refused.status_code == 400) if is_address else ((refused.status_code, kind) == (422, "invalid-request"))
    assert problem["detail"] == detail
    assert len(refused.content) < 1_000
    assert client.post("/search/batch", json={"searches": [body]}).json()["results"] == [{"problem": problem}]
    errors = ["{field}: expected {expected}, got {got}".format(**each) for each in problem.get("errors", [])]
    assert is_address or "; ".join(errors) == detail


@pytest.mark.parametrize(
    "text", ["data:image/png,hello", "data:image/png;base64,=", "AAAA*", "AAAAA", "AA=A", "===", "é", "🙂AAA", "%41AAA"]
)
def test_what_is_no_base64_is_named(client: TestClient, text: str) -> None:
    problem = client.post("/search", json={"queries": [{"image": text}]}).json()
    assert problem["detail"].startswith("queries.0.image: expected a picture's file in base64 (")


@pytest.mark.parametrize(
    ("path", "request_", "detail"),
    [
        ("/search/batch", {"json": {}}, "searches: expected a value, as this field is required, got nothing"),
        ("/search/batch", {"json": {"searches": None}}, "searches: expected a list, got null"),
        ("/search/batch", {"json": {"searches": []}}, "searches: expected a list that is not empty, got []"),
        ("/search/batch", {"json": {"searches": [7] * 65}}, "searches: expected at most 64 items, got 65"),
        ("/search/batch?k=2", {"json": {"searches": [{}]}}, f"k: {NOTHING}"),
        ("/embed", {"json": {"texts": "red"}}, 'texts: expected a list, got "red"'),
        ("/embed", {"json": {"texts": [7] * 65}}, "texts: expected at most 64 items, got 65"),
        ("/embed", {"json": {}}, f"{ONE_OF_ITEMS}nothing"),
        ("/embed", {"json": {"texts": ["a"], "urls": ["b"]}}, f'{ONE_OF_ITEMS}"texts", "urls"'),
        ("/embed", {"json": {"images": [1]}}, "images.0: expected text, got 1"),
        ("/embed?k=2", {"json": {"texts": ["a"]}}, f"k: {NOTHING}"),
        ("/search/collections?k=2", {"json": {"text": "a"}}, f"k: {NOTHING}"),
        ("/search?k=2", {"json": {"text": "a", "k": 3}}, f"k: {BOTH_PLACES}"),
        ("/search?k=2", {"files": {"image": PICTURE}, "data": {"k": "3"}}, f"k: {BOTH_PLACES}"),
        ("/search", {"files": {"image": PICTURE}, "data": {"k": ["2", "3"]}}, f"k: {ONE} 2 values"),
        ("/search", {"files": {"photo": PICTURE}}, f"photo: {only('image')}"),
        ("/search", {"files": {"k": (None, "3")}}, "image: expected a file, got none"),
        ("/search", {"files": {"image": (None, "a")}}, "image: expected a file, got text without a file name"),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_full(
    client: TestClient, path: str, request_: dict[str, Any], detail: str
) -> None:
    refused = client.post(path, **request_)
    assert (refused.status_code, refused.json()["detail"]) == (422, detail)


@pytest.mark.parametrize(
    ("form", "detail"),
    [
        ({"filter": "{"}, f'{NO_JSON}(EOF while parsing an object at line 1 column 1), got "{{"'),
        ({"filter": "[" * 5_000}, f'{NO_JSON}(recursion limit exceeded at line 1 column 202), got "{"[" * 78}…'),
        ({"filter": '{"colour": 1}'}, f"{COLUMNS}'colour'"),
        ({"fields": '"label"'}, 'fields: expected a list, got "label"'),
        ({"offset": "some"}, 'offset: expected a whole number, got "some"'),
        ({"min_score": "nan"}, 'min_score: expected a finite number, got "nan"'),
        ({"distinct": "[]"}, "distinct: expected a cosine from -1 to 1, or true for 0.98, got []"),
        ({"url": URL}, f"url: {only('image')}"),
    ],
)
def test_what_is_wrong_with_a_form_is_said_in_full(client: TestClient, form: dict[str, str], detail: str) -> None:
    refused = client.post("/search", files={"image": PICTURE}, data=form)
    assert (refused.status_code, refused.json()["detail"]) == (422, detail)


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("bogus=1", f"bogus: {only()}"),
        ("k=2&bogus=", f"bogus: {only()}"),
        ("text=a", f"text: {only()}"),
        ("k=1&k=2", f"k: {ONE} 2 values"),
        ("k=1&k=1&k=", f"k: {ONE} 3 values"),
        ("k=0", f"{K}, got 0"),
        ("min_score=", 'min_score: expected a number, got ""'),
        ("filter=label", f'{NO_JSON}(expected value at line 1 column 1), got "label"'),
    ],
)
def test_what_is_wrong_with_the_options_of_an_upload_is_said_in_full(
    client: TestClient, query: str, detail: str
) -> None:
    for body in (
        {"files": {"image": PICTURE}},
        {"json": {"image": base64.b64encode(PICTURE).decode()}},
        {"content": PICTURE, "headers": {"Content-Type": "image/png"}},
    ):
        refused = client.post(f"/search?{query}", **body)
        assert (refused.status_code, refused.json()["detail"]) == (422, detail)


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/search?text=Stra%DFe", 'text: expected UTF-8, percent-encoded, got "Stra%DFe"'),
        ("/search?%ff=1&k=1", '%ff: expected UTF-8, percent-encoded, got "1"'),
        ("/search?text=", 'text: expected words that say what to look for, got ""'),
        ("/search?url=", 'url: expected text that is not empty, got ""'),
        ("/search?cursor=", 'cursor: expected the cursor of an earlier answer to the same search, got ""'),
        ("/search?k=", 'k: expected a whole number, got ""'),
        ("/search?k=" + "9" * 5_000, 'k: expected a whole number, got "' + "9" * 78 + "…"),
        (
            "/search?text=a&fields=label",
            'fields: expected JSON text such as ["label"] (expected value at line 1 column 1), got "label"',
        ),
        ("/search?text=a&id=b", 'URL: expected at most one of url, text and id, got "text", "id"'),
        ("/search?text=a&text=b", f"text: {ONE} 2 values"),
        ("/search?text=a&id=b&id=c", f"id: {ONE} 2 values"),
        ("/search?text=a&fitting=1", f"fitting: {only('id', 'text', 'url')}"),
        ("/search?text=a&embedding=[1]", f"embedding: {only('id', 'text', 'url')}"),
        ("/search?" + "&".join(f"a{n}=1" for n in range(200)), "URL: expected at most 100 parameters, got 200"),
        ("/facets?filter=%ED%A0%80", 'filter: expected UTF-8, percent-encoded, got "%ED%A0%80"'),
        ("/facets?filter={", f'{NO_JSON}(EOF while parsing an object at line 1 column 1), got "{{"'),
        ("/facets?filter=[1]", "filter: expected an object, got [1]"),
        ('/facets?filter={"nowhere":1}', f"{COLUMNS}'nowhere'"),
        ("/facets?filter={}&filter={}", f"filter: {ONE} 2 values"),
        ("/facets?k=1", "k: expected only filter, got an unknown field"),
        ("/image", "id: expected a value, as this field is required, got nothing"),
        ("/image?id=%ff", 'id: expected UTF-8, percent-encoded, got "%ff"'),
        ("/image?id=a&id=red.png", f"id: {ONE} 2 values"),
        ("/image?id=red.png&size=16", "size: expected only id, got an unknown field"),
        ("/picture?id=red.png&size=big", 'size: expected a whole number, got "big"'),
        ("/picture?id=red.png&width=16", "width: expected only id, size, got an unknown field"),
        ("/duplicates/plan?offset=1&offset=2", f"offset: {ONE} 2 values"),
        ("/index?version=000001", f"version: {NOTHING}"),
        ("/index/versions?limit=1", f"limit: {NOTHING}"),
        ("/collections?name=a", f"name: {NOTHING}"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_full(client: TestClient, path: str, detail: str) -> None:
    refused = client.get(path)
    assert (refused.status_code, refused.json()["detail"]) == (422, detail)


def test_a_member_that_is_there_twice_is_refused(client: TestClient) -> None:
    twice, problem = '{"width": {"$gte": 3}, "width": {"$lte": 5}}', "the member 'width' is there more than once"
    in_body = client.post(
        "/search", content=f'{{"filter": {twice}}}', headers={"Content-Type": "application/json"}
    ).json()
    assert (in_body["status"], in_body["detail"]) == (400, f"expected a JSON object: {problem}")
    for path in ("/search", "/facets"):
        in_url = client.get(path, params={"filter": twice}).json()
        assert in_url["errors"][0]["field"] == "filter"
        assert f'JSON text such as {{"label": "cat", "width": {{"$gte": 640}}}} ({problem})' in in_url["detail"]


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
