"""Words in filters, with and without an index, and rows ranked by words."""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import FilterError
from index.filters.filter import Filter
from index.search import Searcher
from index.words.ranked import WordQuery
from index.words.text import any_terms
from tests.support.collections.hand_made import add_run, add_version, metadata_of, rows, unit_vectors
from tests.support.collections.sharded import InProcessShards

Texts: TypeAlias = Mapping[str, Mapping[str, str | None]]

TEXTS = [
    "A red star on the beach",
    "Eine rote STRASSE, Ärger & Café",
    "star-shaped T-shirt, 50% off",
    "red, red wine — and a starfish",
    "一只红色的狗在海滩上",
    "海の見える東京タワー",
    "สวัสดีชาวโลก",
    "हिन्दी में लिखा",
    "ﬁne İstanbul № 7 ελληνικός ЁЛКА",
    None,
    "🙂 👍",
    "beach the on star red A",
]
IDS = [f"{number:02d}" for number in range(len(TEXTS))]
NAMES = [
    "/home/me/Pictures/2024 Rome/IMG_0077-red.jpg",
    "s3://bucket/caf%C3%A9/a b.png",
    "https://x.org/caf%C3%A9/a.png?q=z#f",
    "file:///home/caf%C3%A9/a%231.png#t=77",
]
QUERIES: list[tuple[str, list[int]]] = [
    ("star", [0, 2, 11]),
    ("STAR red", [0, 11]),
    ("sta*", [0, 2, 3, 11]),
    ('"red star"', [0]),
    ('"red st*"', [0]),
    ('"the beach" red', [0]),
    ("red-star", [0]),
    ("straße cafe", [1]),
    ("ARGER", [1]),
    ("t-shirt", [2]),
    ("shirt t", [2]),
    ("50", [2]),
    ("星", []),
    ("红色", [4]),
    ("色红", []),
    ("海", [4, 5]),
    ("东京 海滩", []),
    ("東京*", [5]),
    ("タワー", [5]),
    ("ชาว", [6]),
    ("हिन्दी", [7]),
    ("हिन", []),
    ("fine istanbul 7", [8]),
    ("ΕΛΛΗΝΙΚΟΣ елка", [8]),
    ('star "', [0, 2, 11]),
    ('"star" "', [0, 2, 11]),
    ("“red star”", [0]),
    ("", []),
    ("🙂", []),
    ("* ( AND ) -- ^ NEAR/3 col:", []),
    ("a" * 10_000, []),
    ('"' * 10_000, []),
    ("red OR wine", []),
]


@pytest.fixture(scope="module")
def with_words(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return collection_of(tmp_path_factory.mktemp("with"), IndexSettings())


@pytest.fixture(scope="module")
def without_words(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return collection_of(tmp_path_factory.mktemp("without"), IndexSettings(words=()))


def collection_of(folder: Path, settings: IndexSettings) -> Collection:
    collection = Collection.create_or_open(str(folder))
    tags = [["red", "big star"], [], None, *[["a"]] * (len(TEXTS) - 3)]
    metadata = {"caption": TEXTS, "tags": pa.array(tags), "stars": range(len(TEXTS))}
    uris = [*NAMES, *(f"memory:{each}" for each in IDS[len(NAMES) :])]
    add_version(collection, rows(IDS, unit_vectors(len(IDS)), uris=uris, metadata=metadata), settings=settings)
    return collection


def ids(numbers: Sequence[int]) -> set[str]:
    return {IDS[number] for number in numbers}


@pytest.mark.parametrize(
    ("column", "query", "expected"),
    [
        *(("caption", *each) for each in QUERIES),
        ("uri", "rome 0077", [0]),
        ("uri", "red img", [0]),
        ("uri", "bucket", []),
        ("uri", "café", [2, 3]),
        ("uri", "a 1", [3]),
        ("uri", "77", []),
        ("uri", "z", []),
        ("uri", "memory", [*range(len(NAMES), len(TEXTS))]),
        ("tags", "star red", [0]),
        ("tags", '"red big"', []),
        ("tags", '"big star"', [0]),
        ("image_id", "03", [3]),
    ],
)
def test_a_filter_finds_all_words_with_and_without_an_index(
    with_words: Collection, without_words: Collection, column: str, query: str, expected: list[int]
) -> None:
    """Of texts, of names of files, and of lists."""
    where = {column: {"$match": query}}
    for collection in (with_words, without_words):
        assert metadata_of(collection, where).keys() == ids(expected)
    assert metadata_of(with_words, {"$not": where}).keys() == ids(range(len(TEXTS))) - ids(expected)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"stars": {"$match": "7"}}, r"\$match works only on text"),
        ({"caption": {"$match": 7}}, r"\$match takes text, got 7"),
        ({"caption": {"$match": " ".join(map(str, range(101)))}}, "takes at most 100 words and phrases"),
    ],
)
def test_what_is_no_text_is_refused(with_words: Collection, condition: Mapping[str, object], message: str) -> None:
    with pytest.raises(FilterError, match=message):
        metadata_of(with_words, condition)


VOCABULARY = ["red", "star", "the", "a", "dog", "beach", *(f"w{number}" for number in range(40))]


def captions(count: int, seed: int) -> list[str | None]:
    drawn = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(VOCABULARY))]
    return [
        None if drawn.random() < 0.1 else " ".join(drawn.choices(VOCABULARY, weights, k=drawn.randint(1, 12)))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collection, Texts]]:
    """Rows in four segments of several small blocks and a fifth one, and their texts by id."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("words.block", "words.word_index", "words.ranked", "builder.columns"):
            patch.setattr(f"index.{module}.BLOCK_ROWS", 64)
        yield make_many(tmp_path_factory.mktemp("many"))


def make_many(folder: Path) -> tuple[Collection, Texts]:
    collection = Collection.create_or_open(str(folder))
    texts = {"caption": captions(800, 1), "label": captions(800, 2)}
    names = [f"{number:03d}" for number in range(800)]
    settings = IndexSettings(segment_rows=200)
    add_version(collection, rows(names, unit_vectors(800), metadata=texts), settings=settings)
    newer = {"caption": captions(40, 3), "label": captions(40, 4)}
    add_run(collection, rows(names[:40], unit_vectors(40, seed=1), metadata=newer), deletes=["100", "500"])
    build_index(collection)
    live: dict[str, dict[str, str | None]] = {
        name: {key: texts[key][number] for key in texts} for number, name in enumerate(names)
    }
    live |= {name: {key: newer[key][number] for key in newer} for number, name in enumerate(names[:40])}
    return collection, {name: each for name, each in live.items() if name not in ("100", "500")}


def occurrences(words: Sequence[str], term: str) -> int:
    if term.endswith("*"):
        return sum(word.startswith(term[:-1]) for word in words)
    parts = term.split()
    return sum(list(words[at : at + len(parts)]) == parts for at in range(len(words)))


def bm25(texts: Texts, counted: Sequence[Mapping[str, str | None]], terms: Sequence[str]) -> dict[str, float]:
    """Scores by id: for each term, the highest of the columns. Statistics are those of the rows `counted`."""
    scores = defaultdict[str, float](float)
    for term in terms:
        best = defaultdict[str, float](float)
        for column in ("caption", "label"):
            known = [(row[column] or "").split() for row in counted if row[column]]
            mean = sum(map(len, known)) / len(known)
            having = sum(occurrences(words, term) > 0 for words in known)
            idf = math.log(1 + (len(known) - having + 0.5) / (having + 0.5))
            for name, row in texts.items():
                words = (row[column] or "").split()
                if count := occurrences(words, term):
                    score = idf * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(words) / mean))
                    best[name] = max(best[name], score)
        for name, score in best.items():
            scores[name] += score
    return scores


RANKED = [
    *("red", "w7 w31", "the red dog on a beach", '"red star" w12'),
    *("w1* star", "the a red", "nothing", "", "w39 w38 w37 the"),
]


@pytest.mark.parametrize("query", RANKED)
def test_rows_are_ranked_by_bm25(many: tuple[Collection, Texts], query: str) -> None:
    collection, texts = many
    searcher = Searcher.open(collection)
    segments = searcher.segments
    counted = segments.rows(np.arange(segments.ntotal), ["caption", "label"])  # dead rows too, until they are merged
    names = [str(term) for term in any_terms(query)]
    scores = bm25(texts, counted, names)
    for where in (None, {"label": {"$match": "star"}}):
        for each in (searcher, InProcessShards(collection, 3).searcher()):
            answer = each.answer(None, 2_000, words=query, hidden={"uri"}, filter=where)
            allowed = {name for name in scores if where is None or "star" in (texts[name]["label"] or "").split()}
            assert answer.keys == sorted(answer.keys, reverse=True)
            assert {match.image_id for match in answer.matches} == allowed
            for match, key in zip(answer.matches, answer.keys, strict=True):
                assert key == pytest.approx(scores[match.image_id], rel=1e-4)
                assert match.words == terms_of(texts[match.image_id], names)


@pytest.mark.parametrize("query", RANKED)
@pytest.mark.parametrize("k", [1, 5, 60])
@pytest.mark.parametrize("filter", [None, {"label": {"$match": "star"}}], ids=str)
def test_the_best_rows_are_those_of_all_rows(
    many: tuple[Collection, Texts], query: str, k: int, filter: dict[str, Any] | None
) -> None:
    segments = Searcher.open(many[0]).segments
    everything = WordQuery(terms=any_terms(query), columns=["caption", "label"])
    found, best = segments.find_words(everything), replace(everything, k=k)
    eligible = segments.eligible(Filter.parse(filter, segments.schema) if filter else None)
    positions, scores = segments.rank_words(everything, found, eligible)
    least = np.sort(scores)[-min(k, len(scores)) :].min(initial=np.inf)
    some, theirs = segments.rank_words(best, found, eligible)
    assert some.tolist() == positions[scores >= least].tolist()
    assert theirs.tolist() == scores[scores >= least].tolist()


def terms_of(row: Mapping[str, str | None], terms: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found = {name: tuple(term for term in terms if occurrences((row[name] or "").split(), term)) for name in row}
    return {name: has for name, has in found.items() if has}
