"""Several collections answer as one that has all their images; those of different models by rank."""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray

from api.build_service import build_collections
from api.http import merged_answers
from api.http.app import create_app
from api.http.routes import collections as routes
from api.search import engine
from api.search.collections import Collections
from api.settings import ServeSettings
from embedder.errors import UnsupportedInputError
from index.collection import Collection
from index.tiles import tile_boxes
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_version, rows, unit_vectors
from tests.support.collections.several import Loader, OtherFake
from tests.support.collections.sharded import InProcessShards, make_sharded
from tests.support.collections.small_collection import fake_service, followed_service, png
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import ids, pages, refusal, search

COUNT, DIM = 1_300, FakeEmbedder().identity.dim  # more than those whose vectors and words are mixed
VECTOR = unit_vectors(1, seed=5, dim=DIM)[0].tolist()
SEVERAL = "/search/collections"
ABC = ["c", "a", "b"]
FEW = [f"word{number}" for number in range(30)]


@cache
def all_captions() -> list[str]:
    random = np.random.default_rng(2)
    captions = [" ".join(random.choice(FEW, random.integers(1, 9))) for _ in range(COUNT)]
    for number in range(3, COUNT, 211):
        captions[number] += " wombat"
    return captions


TAKEN: dict[pa.DataType, Any] = {
    pa.int16(): pa.timestamp("us"),
    pa.int64(): pa.timestamp("us", "Europe/Berlin"),
    pa.int32(): pa.date32(),
}
"""The type of times beside each type of years: the same days, as they are in UTC without a zone."""


def table_of(numbers: Sequence[int], year: pa.DataType) -> pa.Table:
    """The images with these numbers; some are near-duplicates, and only those from 1,000 on have a column `late`."""
    vectors = unit_vectors(COUNT, seed=1, dim=DIM)
    vectors[600:700] = vectors[:100]
    captions = all_captions()
    columns: dict[str, Any] = {
        "caption": pa.array([captions[number] for number in numbers]),
        "label": pa.array([("cat", "dog", "owl", None)[number % 4] for number in numbers]),
        "year": pa.array([2000 + number % 7 for number in numbers], year),
        "taken": pa.array([86_400_000_000 * (number % 9) for number in numbers], pa.timestamp("us")).cast(TAKEN[year]),
    }
    if min(numbers) >= 1_000:
        columns["late"] = pa.array([f"{number % 9}" for number in numbers])
    return rows([f"{number:04}" for number in numbers], vectors[numbers], metadata=columns)


def add(location: Path, table: pa.Table, embedder: FakeEmbedder | None = None, tiles: str | None = None) -> None:
    """A version with further images."""
    model = model_record((embedder or FakeEmbedder()).identity, tiles)
    add_version(Collection.create_or_open(str(location)), table, model=model)


@contextmanager
def served(folder: Path) -> Iterator[tuple[TestClient, Collections]]:
    """All collections of a folder."""
    collections = build_collections(ServeSettings(collection=str(folder)), load_model=Loader().load)
    with TestClient(create_app(collections)) as client:
        yield client, collections


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TestClient]]:
    """The same images in one collection, and in three, of which one has two segments."""
    folder = tmp_path_factory.mktemp("split")
    numbers = np.random.default_rng(3).permutation(1_000).tolist()
    parts = [("b", numbers[:300], pa.int16()), ("a", numbers[300:900], pa.int64())]
    parts += [("b", numbers[900:], pa.int16()), ("c", [*range(1_000, COUNT)], pa.int32())]
    for name, part, year in parts:
        add(folder / "several" / name, table_of(part, year))
        add(folder / "whole", table_of(part, year))
    assert len(Collection.open(str(folder / "several" / "b")).read_version("000002").segments) == 2
    with served(folder / "several") as (several, _), TestClient(create_app(followed_service(folder / "whole"))) as one:
        yield [one, several]


TEXT: dict[str, Any] = {"text": "wombat word3"}
FILTERED: dict[str, Any] = {"filter": {"year": {"$gt": 2001}, "label": {"$ne": "owl"}}}
REQUESTS: tuple[dict[str, Any], ...] = (
    TEXT,
    TEXT | FILTERED,
    {"text": "word1 word2 word3 word4 word5"},
    TEXT | {"words": "only"},
    TEXT | {"words": "only", "sort": "-year"} | FILTERED,
    TEXT | {"words": "only", "group_by": "year"},
    TEXT | {"words": "off"},
    TEXT | {"words": "off", "group_by": "label", "sort": "-year"} | FILTERED,
    {"embedding": VECTOR, "group_by": "year"},
    {"embedding": VECTOR, "min_score": 0.1, "sort": "late"},
    {"embedding": VECTOR, "min_score": 0.05, "filter": {"late": {"$exists": False}}},
    {"embedding": VECTOR, "sort": "score"},
    {"embedding": VECTOR, "distinct": 0.9} | FILTERED,
    {"embedding": VECTOR, "diversity": 0.3, "distinct": True},
    {"queries": [{"embedding": VECTOR}, {"text": "word3", "weight": -0.5}], "offset": 150},
    {"sort": "-label"},
    {"sort": "-taken", "filter": {"taken": {"$gte": "1970-01-03T00:00:00Z", "$lt": "1970-01-06"}}},
    {"group_by": "taken", "filter": {"taken": {"$ne": "1970-01-02"}}},
    {"group_by": "late", "sort": "caption"} | FILTERED,
)


@pytest.mark.parametrize("body", REQUESTS, ids=str)
def test_several_collections_answer_as_one(clients: list[TestClient], body: dict[str, Any]) -> None:
    whole, several = clients
    body = body | {"facets": ["label", "year", "late", "taken"]}
    expected = pages(whole, "/search", k=300, **body)
    found = pages(several, SEVERAL, k=300, **body, collections=ABC)
    assert len(found) == len(expected)
    for page, other in zip(found, expected, strict=True):
        for name in ("first", "total", "exact", "groups", "facets", "searched", "model"):
            assert page[name] == other[name], name
        for match, same in zip(page["matches"], other["matches"], strict=True):
            prefix = f"/collections/{match.pop('collection')}"
            # Other queries measured the percentiles, and faiss rounds the last rows of a segment otherwise.
            for name, error in (("percentile", 5), ("score", 2e-6)):
                assert match.pop(name) == pytest.approx(same.pop(name), abs=error)
            assert match == same | {"picture": prefix + same["picture"]}


def test_percentiles_are_those_of_all_images(clients: list[TestClient]) -> None:
    body: dict[str, Any] = {"image": base64.b64encode(png((9, 99, 200))).decode(), "k": 1_000}
    whole, several = search(clients[0], **body), search(clients[1], SEVERAL, **body, collections=ABC)
    percentiles = [match["percentile"] for match in several["matches"]]
    assert percentiles == sorted(percentiles, reverse=True)
    fitting = search(clients[1], SEVERAL, **body, collections=ABC, min_percentile=70)
    assert fitting["matches"] == [match for match in several["matches"] if match["percentile"] >= 70]
    # One collection has measured them with other queries.
    assert percentiles == pytest.approx([match["percentile"] for match in whole["matches"]], abs=5)


def test_a_collection_too_small_for_percentiles_leaves_those_of_others(tmp_path: Path) -> None:
    for name, count in (("a", 40), ("b", 1)):
        add(tmp_path / name, rows([f"{name}{n:02}" for n in range(count)], unit_vectors(count, dim=DIM)))
    body: dict[str, Any] = {"image": base64.b64encode(png((9, 99, 200))).decode(), "k": 50}
    with served(tmp_path) as (client, _):
        own = search(client, "/collections/a/search", **body)["matches"]
        both = search(client, SEVERAL, **body, collections=["a", "b"])["matches"]
        fitting = search(client, SEVERAL, **body, collections=["a", "b"], min_percentile=50)["matches"]
    of_a = [match["percentile"] for match in both if match["collection"] == "a"]
    assert of_a == pytest.approx([match["percentile"] for match in own], abs=0.002)
    assert fitting == [match for match in both if match["percentile"] >= 50] != []


def test_grids_of_tiles_may_differ(tmp_path: Path) -> None:
    grids = {"a": None, "b": "2x2", "c": "3x3", "d": "4x1"}
    for number, (name, tiles) in enumerate(grids.items()):
        metadata, count = {}, len(tile_boxes(tiles))
        if count:
            vectors = unit_vectors(60 * count, seed=9 + number, dim=DIM)
            metadata["tiles"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), count * DIM)
        table = rows([f"{name}{n:02}" for n in range(60)], unit_vectors(60, seed=number, dim=DIM), metadata=metadata)
        add(tmp_path / name, table, tiles=tiles)

    def found(*paths: str, **body: Any) -> dict[str, Any]:
        pages = [search(client, path, **body, embedding=VECTOR, k=500) for path in paths]
        return {match["image_id"]: (match["score"], match["box"]) for page in pages for match in page["matches"]}

    with served(tmp_path) as (client, _):
        options: tuple[dict[str, Any], ...] = ({"min_score": 0.2}, {"sort": "-image_id"}, {})
        for each in options:
            expected = found(*(f"/collections/{name}/search" for name in grids), **each)
            several = found(SEVERAL, **each, collections=[*grids])
            assert several == {name: (pytest.approx(score, abs=2e-6), box) for name, (score, box) in expected.items()}
    boxes = {tuple(box) for _, box in several.values() if box}
    assert boxes == {box for tiles in grids.values() for box in tile_boxes(tiles)}


EQUALS = (
    {"embedding": VECTOR},
    {"embedding": VECTOR, "offset": 2, "sort": "score"},
    {"embedding": VECTOR, "diversity": 0.3},
    {"embedding": VECTOR, "sort": "label"},
    {"text": "owl"},
    {"text": "owl", "words": "only"},
    {"sort": "-label"},
    {"group_by": "number", "sort": "image_id"},
)


def test_an_image_may_be_in_several_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are disjoint and complete while versions go live, even if ids, scores and values are equal."""
    for number, (name, count) in enumerate([("a", 8), ("b", 8), ("c", 2)]):
        metadata = {"label": pa.array(["owl"] * count), "number": pa.array([8 * number + n for n in range(count)])}
        vectors = np.tile(unit_vectors(2, dim=DIM), (4, 1))[:count]
        add(tmp_path / name, rows([f"{n:03}" for n in range(count)], vectors, metadata=metadata))
    with served(tmp_path) as (client, collections):
        bodies: list[dict[str, Any]] = [{"collections": ABC} | body for body in EQUALS]
        wholes = [search(client, SEVERAL, **{"offset": 0} | body, k=18)["matches"] for body in bodies]
        firsts = [search(client, SEVERAL, **body, k=5) for body in bodies]
        for name in ABC:
            add(tmp_path / name, table_of(range(30), pa.int32()))
            collections.open_services[name].live.refresh()
        for body, whole, first in zip(bodies, wholes, firsts, strict=True):
            skipped = body.pop("offset", 0)
            found = [first, *pages(client, SEVERAL, **body, k=2, cursor=first["cursor"])]
            assert [match for page in found for match in page["matches"]] == whole, body
            assert len({(match["collection"], match["image_id"]) for match in whole}) == 18 - skipped, body
        monkeypatch.setattr(engine, "_PAGES_S", 0.0)
        collections.open_services["b"].live.refresh()
        for body, first in zip(bodies, firsts, strict=True):
            gone = client.post(SEVERAL, json=body | {"cursor": first["cursor"]})
            assert refusal(gone) == (410, "version-gone"), body
            # Of all three, if their own threads have read CURRENT meanwhile.
            assert re.match("in [abc]: index version 000002 answers now", gone.json()["detail"])


def test_duplicates_are_folded_across_collections(tmp_path: Path) -> None:
    for name in ABC:
        add(tmp_path / name, rows([f"{name}{n}" for n in range(4)], unit_vectors(4, dim=DIM)))
    with served(tmp_path) as (client, _):
        matches = search(client, SEVERAL, collections=ABC, embedding=VECTOR, distinct=True)["matches"]
        expected = [match["image_id"] for match in search(client, "/collections/a/search", embedding=VECTOR)["matches"]]
    assert [match["image_id"] for match in matches] == expected
    assert [match["duplicates"] for match in matches] == [[f"b{each[1]}", f"c{each[1]}"] for each in expected]


COLUMNS: dict[str, tuple[Any, ...]] = {
    "mixed": (pa.array([0.1, 2.0]), pa.array([0.1, 2.0], pa.float32()), pa.array(["x", "2.0"])),
    "price": (pa.array([3, 2**63 - 1]), pa.array([Decimal("1.25"), Decimal("-7")], pa.decimal128(10, 2))),
    "number": (pa.array([-3, None]), pa.array([2**64 - 1, 1], pa.uint64())),
    # Of two types that no third one holds.
    "bytes": (pa.array([3, None]), pa.array([b"\xff", None])),
}
BOTH = {"several": (SEVERAL, {"collections": ["a", "b"]}), "whole": ("/collections/whole/search", {})}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Columns of different types in several collections, and in one that has the images of all of them."""
    folder = tmp_path_factory.mktemp("typed")
    for number, letter in enumerate("abc"):
        columns = {name: values[number] for name, values in COLUMNS.items() if number < len(values)}
        table = rows([f"{letter}0", f"{letter}1"], unit_vectors(2, dim=DIM), metadata=columns)
        for name in (letter, "whole"):
            add(folder / name, table)
    with served(folder) as (client, _):
        yield client


def test_a_column_of_several_types_is_one_as_in_one_collection(typed: TestClient) -> None:
    """And what passes a filter of one type is not taken for what passes it in another."""
    tenth = {"filter": {"mixed": 0.1}}
    for body, path in (
        (tenth, "/collections/b/search"),
        (tenth | {"collections": ["a", "b"]}, SEVERAL),
        (tenth, "/collections/b/search"),
    ):
        assert len(search(typed, path, **body)["matches"]) == 1
    sorts: tuple[dict[str, Any], ...] = ({"sort": "mixed"}, {"sort": "-mixed", "filter": {"mixed": "2.0"}})
    for options in sorts:
        several = search(typed, SEVERAL, collections=ABC, **options)["matches"]
        whole = search(typed, "/collections/whole/search", **options)["matches"]
        assert [match["metadata"]["mixed"] for match in several] == [match["metadata"]["mixed"] for match in whole]
        assert [match["image_id"] for match in several] == [match["image_id"] for match in whole]


@pytest.mark.parametrize(("path", "body"), BOTH.values(), ids=BOTH)
def test_values_that_no_type_holds_are_shown_and_not_searched(
    typed: TestClient, path: str, body: dict[str, Any]
) -> None:
    """In several collections, and in one whose runs have different types."""
    own = search(typed, "/collections/b/search")["matches"]
    found = search(typed, path, **body)["matches"]
    assert [match["metadata"]["bytes"] for match in found[2:4]] == [match["metadata"]["bytes"] for match in own]
    for options in (
        {"sort": "bytes"},
        {"group_by": "bytes"},
        {"filter": {"bytes": {"$exists": True}}},
        {"facets": ["bytes"]},
    ):
        answer = typed.post(path, json=body | options)
        assert refusal(answer) == (422, "invalid-request")
        assert "one type" in answer.json()["detail"]
    assert "bytes" not in typed.get("/collections/whole/facets").json()["columns"]


@pytest.mark.parametrize(("path", "body"), BOTH.values(), ids=BOTH)
@pytest.mark.parametrize(
    ("column", "values"),
    [("price", ["1.25", "3.00", "9223372036854775807.00"]), ("number", ["1", "18446744073709551615"])],
)
def test_numbers_that_no_integer_type_holds_are_decimals(
    typed: TestClient, path: str, body: dict[str, Any], column: str, values: list[str]
) -> None:
    matches = search(typed, path, **body, sort=column, filter={column: {"$gt": 0}})["matches"]
    assert [match["metadata"][column] for match in matches] == values


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Two collections of the same images."""
    folder = tmp_path_factory.mktemp("pair")
    for name in ("a", "b"):
        add(folder / name, table_of(range(20), pa.int32()))
    with served(folder) as (client, _):
        yield client


def test_a_cursor_of_several_collections_is_of_no_single_one(pair: TestClient) -> None:
    several, one = search(pair, SEVERAL, collections=["a"], k=3), search(pair, "/collections/a/search", k=3)
    for path, body in (
        ("/collections/a/search", {"cursor": several["cursor"]}),
        (SEVERAL, {"cursor": one["cursor"], "collections": ["a"]}),
    ):
        refused = pair.post(path, json={"k": 3, **body})
        assert (refused.status_code, "cursor: expected" in refused.json()["detail"]) == (422, True)


EDITIONS: list[Any] = ["{broken", {"a": 5, "b": None}, {"a": [], "b": {}}, {"a": "x"}, {}]
PLACES: list[Any] = [{"position": 10**9}, {"position": -1}, {"image_id": "x"}, {"seen": -1}]
FORGERIES = [*({"editions": each} for each in EDITIONS), *({"place": each} for each in PLACES)]


@pytest.mark.parametrize("forgery", FORGERIES, ids=str)
def test_a_forged_cursor_is_refused(pair: TestClient, forgery: dict[str, Any]) -> None:
    body: dict[str, Any] = {"collections": ["a", "b"], "k": 3, "sort": "label"}
    cursor = json.loads(base64.urlsafe_b64decode(search(pair, SEVERAL, **body)["cursor"] + "=="))
    place = cursor["place"] | forgery.get("place", {})
    forged = json.dumps(cursor | forgery | {"place": place}).encode()
    refused = pair.post(SEVERAL, json=body | {"cursor": base64.urlsafe_b64encode(forged).decode()})
    assert (refused.status_code, "cursor" in refused.json()["detail"]) == (422, True)


def test_one_collection_may_be_in_shards(tmp_path: Path) -> None:
    sharded = InProcessShards(make_sharded(tmp_path), 3)
    with TestClient(create_app(fake_service(sharded.searcher()))) as client:
        expected = ids(*pages(client, "/search", k=300, text="cat"))
        assert ids(*pages(client, SEVERAL, k=300, text="cat", collections=["collection"])) == expected
        sharded.lost.add(1)
        partial = search(client, SEVERAL, text="cat", collections=["collection"], allow_partial=True)
        assert partial["searched"]["rows"] < partial["searched"]["of"] == len(expected)


# Different models


@pytest.fixture
def different(tmp_path: Path) -> Iterator[TestClient]:
    """Two collections of one model, and one of another."""
    for name, numbers, embedder in (
        ("a", range(10), None),
        ("b", range(5, 15), None),
        ("c", range(15, 18), OtherFake()),
    ):
        add(tmp_path / name, table_of(numbers, pa.int32()), embedder=embedder)
    with served(tmp_path) as (client, _):
        yield client


def test_pages_by_rank_follow_each_other(different: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    options: tuple[dict[str, Any], ...] = ({}, {"sort": "-year"}, {"group_by": "label"}, {"distinct": True})
    for each in options:
        body: dict[str, Any] = {"text": "word3", "collections": ABC, "facets": ["label"]} | each
        [whole], found = pages(different, SEVERAL, k=23, **body), pages(different, SEVERAL, k=2, **body)
        assert [match for page in found for match in page["matches"]] == whole["matches"]
        assert {page["total"] for page in found} == {23}
        assert len(whole["matches"]) == (whole["groups"] or 23)
        own = {
            match["image_id"]: match["words"]
            for name in ABC
            for match in pages(different, f"/collections/{name}/search", k=23, text="word3", **each)[0]["matches"]
        }
        assert all(match["words"] == own[match["image_id"]] for match in whole["matches"])
    for module in (routes, merged_answers):
        monkeypatch.setattr(module, "MAX_K", 13)
    assert len(ids(*pages(different, SEVERAL, k=5, text="word3", collections=ABC))) == 10


def test_words_alone_need_no_model(different: TestClient, tmp_path: Path) -> None:
    add(tmp_path / "one", table_of([*range(10), *range(15, 18)], pa.int32()))
    text = " ".join(FEW[:12])
    body: dict[str, Any] = {"text": text, "words": "only", "k": 100}
    with TestClient(create_app(followed_service(tmp_path / "one"))) as one:
        expected, found = search(one, **body), search(different, SEVERAL, **body, collections=["a", "c"])
    assert (ids(found), found["total"], found["model"]) == (ids(expected), expected["total"], None)
    assert len(ids(found)) > 5


class NoText(OtherFake):
    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise UnsupportedInputError("this model takes pictures only")


def test_words_stand_in_for_a_model_that_takes_no_text(tmp_path: Path) -> None:
    add(tmp_path / "a", table_of(range(20), pa.int32()))
    add(tmp_path / "b", table_of(range(10, 30), pa.int32()), embedder=NoText())
    collections = build_collections(
        ServeSettings(collection=str(tmp_path)), load_model=Loader(FakeEmbedder(), NoText()).load
    )
    with TestClient(create_app(collections)) as client:
        names = {"collections": ["a", "b"]}
        for text, found in (("word3", True), ("nowhere", False)):
            body: dict[str, Any] = {"text": text, "k": 50}
            several = search(client, SEVERAL, **body, **names)["matches"]
            own = client.post("/collections/b/search", json=body)
            assert own.status_code == (200 if found else 422)
            of_b = [match["image_id"] for match in several if match["collection"] == "b"]
            assert of_b == ([match["image_id"] for match in own.json()["matches"]] if found else [])
            assert len(several) == 20 + len(of_b)
        for options in ({"words": "off"}, {"min_score": 0.1}):
            refused = client.post(SEVERAL, json={"text": "word3", **names, **options})
            assert refusal(refused) == (422, "text-not-supported")
            assert refused.json()["detail"].startswith("in b: ")


def test_columns_of_different_types_are_not_merged_by_rank(tmp_path: Path) -> None:
    for name, values, embedder in (("a", [1, 2], None), ("b", ["x", "y"], OtherFake())):
        table = rows(["0", "1"], unit_vectors(2, dim=DIM), metadata={"mixed": pa.array(values)})
        add(tmp_path / name, table, embedder=embedder)
    with served(tmp_path) as (client, _):
        for option in ({"sort": "mixed"}, {"group_by": "mixed"}, {"facets": ["mixed"]}):
            refused = client.post(SEVERAL, json={"collections": ["a", "b"], "text": "x", **option})
            assert "the same type in all collections" in refused.json()["detail"]
            assert len(search(client, SEVERAL, collections=["a", "b"], **option)["matches"]) == 4
