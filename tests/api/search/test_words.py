"""A search by text also looks for its words: fused ranks, words alone, models without a text side, hidden names."""

from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from api.http.app import create_app
from api.search.service import SearchService
from api.settings import RequestLimits
from embedder.errors import UnsupportedInputError
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from index.search.fused import MIXED_HITS, fused, strong_hits
from index.search.result_set import Hit
from tests.support.collections.hand_made import add_version, of_fake_model, rows, unit_vectors
from tests.support.collections.sharded import InProcessShards
from tests.support.collections.small_collection import fake_service
from tests.support.fake_embedder import FakeEmbedder
from tests.support.servers.clients import ids, pages, search

COUNT = 300
PLANTED = {"007": "a wombat in the garden", "123": "the garden", "250": "wombat"}


class PicturesAlone(FakeEmbedder):
    def embed_texts(self, texts: Any) -> Any:
        raise UnsupportedInputError("it has no text side")


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Captions of a few common words; some with words of their own."""
    ids = [f"{number:03}" for number in range(COUNT)]
    captions = [PLANTED.get(image_id, f"picture number {image_id}") for image_id in ids]
    uris = [f"/secret/{image_id}/x.png" for image_id in ids]
    return of_fake_model(tmp_path_factory.mktemp("words"), ids, uris=uris, metadata={"caption": pa.array(captions)})


@pytest.fixture(scope="module")
def service(collection: Collection) -> SearchService:
    return fake_service(Searcher.open(collection))


@pytest.fixture(scope="module")
def client(service: SearchService) -> Iterator[TestClient]:
    with TestClient(create_app(service)) as client:
        yield client


def test_the_best_of_both_are_one_list(client: TestClient) -> None:
    answer = search(client, text="wombat", k=10)
    off = search(client, text="wombat", k=200, words="off")
    by_words = [match for match in answer["matches"] if match["words"]]
    assert {match["image_id"] for match in by_words} == {"007", "250"}
    assert all(match["words"] == {"caption": ["wombat"]} for match in by_words)
    ranks = {image_id: rank for rank, image_id in enumerate(ids(off), start=1)}
    scores = {match["image_id"]: match["score"] for match in off["matches"]}
    for match in answer["matches"]:
        assert match["vector_rank"] == ranks.get(match["image_id"]) or match["vector_rank"] is None
        assert match["score"] == scores.get(match["image_id"], match["score"])
    assert set(ids(off)[:7]) <= set(ids(answer))
    assert answer["total"] == COUNT
    assert all(match["words"] is None and match["vector_rank"] is None for match in off["matches"])


def test_pages_of_both_follow_each_other(client: TestClient) -> None:
    found = ids(*pages(client, text="wombat garden", k=50))
    assert sorted(found) == [f"{number:03}" for number in range(COUNT)]


@pytest.mark.parametrize(
    "options",
    [{"min_score": 0}, {"distinct": True}, {"diversity": 0.2}, {"sort": "caption"}, {"group_by": "caption"}],
    ids=str,
)
def test_options_about_scores_and_orders_are_for_vectors_alone(client: TestClient, options: dict[str, Any]) -> None:
    assert all(match["words"] is None for match in search(client, text="wombat", **options)["matches"])


def test_words_alone(client: TestClient) -> None:
    answer = search(client, text="garden WOMBAT", words="only")
    assert (ids(answer)[0], sorted(ids(answer)), answer["total"]) == ("007", ["007", "123", "250"], 3)
    assert answer["matches"][0]["words"] == {"caption": ["garden", "wombat"]}
    assert answer["matches"][0]["score"] is None
    assert search(client, text="nothing of this", words="only", filter={"caption": "wombat"})["matches"] == []


def test_words_alone_are_a_set_that_is_sorted_grouped_counted_and_paged(client: TestClient) -> None:
    body: dict[str, Any] = {"text": "garden picture", "words": "only", "facets": ["caption"]}
    found = pages(client, **body, k=70)
    assert ids(*found)[:2] == ["123", "007"]  # the shorter text comes first
    assert (sorted(ids(*found)), len(found)) == ([f"{number:03}" for number in range(COUNT) if number != 250], 5)
    assert {(page["total"], page["exact"], page["facets"]["caption"]["others"]) for page in found} == {(299, True, 199)}
    assert ids(search(client, **body, sort="-image_id", k=2)) == ["299", "298"]
    few = search(client, text="wombat", words="only", facets=["caption"], group_by="caption")
    assert few["groups"] == len(few["matches"]) == len(few["facets"]["caption"]["values"]) == 2


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"id": "007", "words": "only"}, "words: expected auto or off, or a search by text alone"),
        ({"text": "a", "words": "only", "min_score": 0.2}, "min_score: expected none with words: only"),
        ({"text": "a", "words": "only", "distinct": True}, "distinct: expected none with words: only"),
        ({"text": "a", "words": "no"}, "words: expected"),
        ({"text": " ", "words": "only"}, "text: expected words that say what to look for"),
        ({"text": "😀 *", "words": "only"}, "of letters or digits"),
    ],
)
def test_wrong_options_are_refused(client: TestClient, body: dict[str, Any], detail: str) -> None:
    answer = client.post("/search", json=body)
    assert answer.status_code == 422
    assert detail in answer.json()["detail"]


def test_a_search_for_words_alone_needs_an_index_of_words(tmp_path: Path) -> None:
    without = IndexSettings(words=())
    collection = of_fake_model(tmp_path, ["a"], settings=without, metadata={"caption": ["a wombat"]})
    with TestClient(create_app(fake_service(Searcher.open(collection)))) as client:
        assert ids(search(client, text="wombat")) == ["a"]
        refused = client.post("/search", json={"text": "wombat", "words": "only"})
        assert refused.json()["detail"] == 'words: expected auto or off, because this index has no words, got "only"'


def test_a_model_of_pictures_alone_is_searched_for_words(collection: Collection) -> None:
    service = fake_service(Searcher.open(collection), embedder=PicturesAlone())
    with TestClient(create_app(service)) as client:
        answer = search(client, text="wombat", facets=["caption"])
        assert (sorted(ids(answer)), answer["facets"]["caption"]["others"]) == (["007", "250"], 0)
        refused = client.post("/search", json={"text": "wombat", "words": "off"})
        assert refused.json()["type"] == "urn:likeness:problem:text-not-supported"


def test_names_of_hidden_files_are_not_searched(service: SearchService) -> None:
    for show, found in ((True, COUNT), (False, 0)):
        with TestClient(create_app(service, limits=RequestLimits(show_locations=show))) as client:
            assert search(client, text="secret", words="only")["total"] == found


def test_hidden_names_of_files_are_no_words(tmp_path: Path) -> None:
    service = fake_service(Searcher.open(of_fake_model(tmp_path, ["0"], metadata={"year": [2024]})))
    for show in (True, False):
        with TestClient(create_app(service, limits=RequestLimits(show_locations=show))) as client:
            assert client.get("/index").json()["has_words"] is show


def test_shards_find_the_same(collection: Collection) -> None:
    whole, sharded = Searcher.open(collection), InProcessShards(collection, 3).searcher()
    for vector in (None, *unit_vectors(2, seed=3, dim=whole.dim)):
        for words in ("wombat garden", "number 123", "nothing"):
            one, other = (each.answer(vector, 20, words=words) for each in (whole, sharded))
            assert (one.matches, one.total) == (other.matches, other.total)


def hit(position: int, key: float, **more: Any) -> Hit:
    return Hit(key, f"{position}", position, None, **more)


def test_ranks_are_fused_as_in_the_paper() -> None:
    by_vector = [hit(1, 0.9), hit(2, 0.8), hit(3, 0.7)]
    by_words = [hit(3, 5.0, words={"c": ("aa",)}), hit(4, 5.0, words={"c": ("aa",)}), hit(2, 3.0)]
    found = fused(by_vector, by_words, 2)
    keys = {each.position: each.key for each in found}
    expected = {1: 1 / 61, 2: 1 / 62 + 1 / 63, 3: 1 / 63 + 1 / 61, 4: 1 / 61}  # equal scores have equal ranks
    assert keys == pytest.approx(expected)
    assert [each.position for each in found] == [3, 2, 1, 4]
    assert [each.vector_rank for each in found] == [3, 2, 1, None]


def test_weak_words_do_not_count() -> None:
    by_words = [hit(1, 8.0), hit(2, 6.4), hit(3, 6.3), hit(4, 2.0, words={"c": ("aa",), "d": ("aa", "bb")})]
    assert [each.position for each in strong_hits(by_words, 2)] == [1, 2, 4]
    assert strong_hits([], 0) == fused([], [], 0) == []


def test_a_few_images_with_all_words_come_first() -> None:
    """Also in long texts, and if their vectors are far away: a word that many images have says less."""
    by_vector = [hit(number, 0.9) for number in range(1_000)]
    rare = [hit(2_000 + number, 9.0 - number, words={"c": ("aa",)}) for number in range(9)]
    assert [each.position for each in fused(by_vector, rare, 1)][:10] == [*range(2_000, 2_009), 0]
    assert [each.position for each in fused(by_vector, rare, 2)][:4] == [0, 2_000, 1, 2_001]
    frequent = [hit(2_000 + number, 9.0, words={"c": ("aa",)}) for number in range(MIXED_HITS)]
    assert next(each.position for each in fused(by_vector, frequent, 1)) == 0


def test_exact_words_are_among_the_first(tmp_path: Path) -> None:
    """Each of ten rare words, in one caption, is found whatever the vectors say, and so are the nearest vectors."""
    count = 1_200
    random = np.random.default_rng(1)
    common = np.array([f"word{number}" for number in range(40)])
    captions = [" ".join(random.choice(common, 8)) for _ in range(count)]
    planted = {f"rare{number}": int(row) for number, row in enumerate(random.permutation(count)[:10])}
    for word, row in planted.items():
        captions[row] += f" {word}"
    collection = Collection.create_or_open(str(tmp_path))
    names = [f"{number:04}" for number in range(count)]
    add_version(collection, rows(names, unit_vectors(count), metadata={"caption": pa.array(captions)}))
    searcher = Searcher.open(collection)
    for word, row in planted.items():
        vector = unit_vectors(1, seed=row)[0]
        found = [match.image_id for match in searcher.answer(vector, 10, words=f"{word} word3").matches]
        nearest = [match.image_id for match in searcher.answer(vector, 10).matches]
        assert names[row] in found[:2]
        assert len(set(found) & set(nearest)) >= 5


@pytest.mark.parametrize("query", ["スーパー", "スーパー unheard", '"スーパー"'])
def test_words_that_many_share_a_part_of_are_among_the_first(tmp_path: Path, query: str) -> None:
    """Whether or not others, that have a pair of the characters, fill the list of those that match."""
    captions = ["デパート"] * 150 + ["スーパー の ほん"] * 12 + ["りんご"] * 200
    names = [f"{number:03}" for number in range(len(captions))]
    collection = Collection.create_or_open(str(tmp_path))
    add_version(collection, rows(names, unit_vectors(len(names)), metadata={"caption": pa.array(captions)}))
    found = Searcher.open(collection).answer(unit_vectors(1, seed=8)[0], 12, words=query).matches
    assert {match.image_id for match in found} == {*names[150:162]}


def test_the_nearest_come_before_those_that_are_a_bit_alike_and_have_some_words(tmp_path: Path) -> None:
    """Half of the pictures of a striped red star have no caption."""
    kinds = [*product(("striped", "dotted", "plain"), ("red", "green", "blue"), ("star", "ring", "moon"))] * 20
    centres = {word: unit_vectors(1, seed=seed)[0] for seed, word in enumerate(dict.fromkeys(chain(*kinds)))}
    vectors = np.array([sum(centres[word] for word in kind) for kind in kinds]) + 0.1 * unit_vectors(
        len(kinds), seed=40
    )
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    captions = [" ".join(kind) if number < len(kinds) / 2 else "" for number, kind in enumerate(kinds)]
    names = [f"{number:03}" for number in range(len(kinds))]
    collection = Collection.create_or_open(str(tmp_path))
    add_version(collection, rows(names, vectors, metadata={"caption": pa.array(captions)}))
    wanted = {name for name, kind in zip(names, kinds, strict=True) if kind == ("striped", "red", "star")}
    query = sum(centres[word] for word in ("striped", "red", "star"))
    found = Searcher.open(collection).answer(query, 20, words="a striped red star").matches
    assert {match.image_id for match in found} == wanted
