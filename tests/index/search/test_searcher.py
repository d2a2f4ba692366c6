"""Searches with any options, against brute force over the same rows; order, limits and invalid options."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.collection import Collection
from index.collection.records.model_record import ModelRecord
from index.collection.records.version_manifest import ScoreDistribution
from index.errors import QueryError
from index.matches import Match
from index.queries import mix
from index.search import Searcher
from index.search_options import MAX_K
from tests.support.collections.hand_made import add_version, rows, searcher_of, unit_vectors

WIDTH = 16
LABELS = ("cat", "dog", "owl")


def exact_vectors(count: int, seed: int) -> npt.NDArray[np.float32]:
    """`(count, 16)` unit vectors whose cosines float32 holds exactly, so that brute force has the same ties."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1, 1], (count, WIDTH))
    sparse = np.argsort(random.random((count, WIDTH)), axis=1) < 4
    one_sign = np.where(random.random((count, WIDTH)) < 0.05, -1, 1)  # many near-duplicates
    kinds = random.integers(0, 3, (count, 1))
    return np.choose(kinds, [signs / 4, np.where(sparse, signs / 2, 0), one_sign / 4]).astype(np.float32)


class Rows:
    """The rows of these tests' collection, searched by brute force."""

    def __init__(self) -> None:
        self.vectors: dict[str, npt.NDArray[np.float32]] = {}
        self.labels: dict[str, str | None] = {}

    def scores(self, query: npt.NDArray[np.float32]) -> dict[str, float]:
        unit = query.astype(np.float64) / np.linalg.norm(query)
        return {image_id: round(float((vector * unit).sum()), 6) for image_id, vector in self.vectors.items()}

    def search(
        self,
        query: npt.NDArray[np.float32],
        k: int,
        offset: int = 0,
        min_score: float | None = None,
        label: str | None = None,
        distinct: float | None = None,
        diversity: float = 0.0,
        exclude: Sequence[str] = (),
    ) -> list[tuple[str, float, tuple[str, ...]]]:
        """Ids and scores, and the ids that are folded into each."""
        if diversity:
            nearest = self.search(query, 100 + 4 * (offset + k), 0, min_score, label, distinct, exclude=exclude)
            return self._diverse(nearest, diversity, offset + k)[offset:]
        unique: list[tuple[str, float, list[str]]] = []
        for image_id, score in sorted(self.scores(query).items(), key=lambda item: (-item[1], item[0])):
            if image_id in exclude or (min_score is not None and score < min_score):
                continue
            if label is not None and self.labels[image_id] != label:
                continue
            alike = [folded for other, _, folded in unique if self._alike(image_id, other, distinct)]
            if alike:
                alike[0].append(image_id)
            elif len(unique) == offset + k:
                break
            else:
                unique.append((image_id, score, []))
        return [(image_id, score, tuple(folded)) for image_id, score, folded in unique[offset:]]

    def _diverse(
        self, nearest: list[tuple[str, float, tuple[str, ...]]], diversity: float, count: int
    ) -> list[tuple[str, float, tuple[str, ...]]]:
        """Maximal marginal relevance, match by match."""
        chosen: list[tuple[str, float, tuple[str, ...]]] = []
        for rank in range(1, min(count, len(nearest)) + 1):
            rest = [each for each in nearest[: 100 + 4 * rank] if each not in chosen]
            alike = [
                max([float((self.vectors[each[0]] * self.vectors[other[0]]).sum()) for other in chosen], default=-1.0)
                for each in rest
            ]
            gains = [(1 - diversity) * each[1] - diversity * near for each, near in zip(rest, alike, strict=True)]
            chosen.append(rest[int(np.argmax(gains))])
        return chosen

    def _alike(self, one: str, other: str, distinct: float | None) -> bool:
        return distinct is not None and float((self.vectors[one] * self.vectors[other]).sum()) >= distinct


ROWS = Rows()


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """200 images, then 100 of which 40 replace others, while 20 are deleted; the second run has other columns."""
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("collection")))
    model = ModelRecord(id="hand-made", revision="1", fingerprint="a" * 64, dim=WIDTH)
    first, second = [f"{number:03d}" for number in range(200)], [f"{number:03d}" for number in range(160, 260)]
    labels = [[LABELS[number % 3] for number in range(len(ids))] for ids in (first, second)]
    vectors = [exact_vectors(len(ids), seed) for seed, ids in enumerate((first, second))]
    years = {"year": list(range(len(first)))}
    add_version(collection, rows(first, vectors[0], metadata={"label": labels[0], **years}), model=model)
    stars: dict[str, Any] = {"stars": [0.5] * len(second), "year": [f"about {number}" for number in range(len(second))]}
    table = rows(second, vectors[1], metadata={"label": labels[1], **stars})
    add_version(collection, table, deletes=first[:20], model=model)
    for ids, run_vectors, label in zip((first, second), vectors, labels, strict=True):
        ROWS.vectors |= dict(zip(ids, run_vectors, strict=True))
        ROWS.labels |= dict(zip(ids, label, strict=True))
    for image_id in first[:20]:
        del ROWS.vectors[image_id], ROWS.labels[image_id]
    return Searcher.open(collection)


@settings(max_examples=settings().max_examples // 3)
@given(
    seed=st.integers(0, 50),
    k=st.integers(1, 20),
    offset=st.integers(0, 10),
    label=st.sampled_from([None, *LABELS]),
    distinct=st.none() | st.sampled_from([0.5, 0.875]),
    diversity=st.sampled_from([0.25, 0.5, 1.0]),  # their products with the cosines are exact
)
def test_diverse_results_are_those_of_brute_force(searcher: Searcher, seed: int, k: int, **options: Any) -> None:
    assert_as_brute_force(searcher, seed, k, options)


def assert_as_brute_force(searcher: Searcher, seed: int, k: int, options: dict[str, Any]) -> None:
    queries = exact_vectors(2, seed)
    where = None if options["label"] is None else {"label": options["label"]}
    others = {name: value for name, value in options.items() if name != "label"}
    answers = searcher.search(queries, k, filter=where, **others)
    assert [found(matches) for matches in answers] == [ROWS.search(query, k, **options) for query in queries]


def test_pages_of_diverse_results_follow_each_other(searcher: Searcher) -> None:
    query = exact_vectors(1, 3)
    whole = searcher.search(query, 60, diversity=0.5)[0]
    assert [
        match for page in range(3) for match in searcher.search(query, 20, offset=20 * page, diversity=0.5)[0]
    ] == whole
    assert whole != searcher.search(query, 60)[0] == searcher.search(query, 60, diversity=0)[0]


def found(matches: Sequence[Match]) -> list[tuple[str, float, tuple[str, ...]]]:
    return [(match.image_id, match.score or 0.0, match.duplicates) for match in matches]


def test_the_collection_has_several_segments_with_tombstones(searcher: Searcher) -> None:
    assert [segment.live for segment in searcher.manifest.segments] == [140, 100]
    assert (searcher.ntotal, searcher.segments.ntotal, len(ROWS.vectors)) == (240, 300, 240)


@given(
    seed=st.integers(0, 50),
    k=st.integers(1, 300),
    offset=st.integers(0, 250),
    min_score=st.none() | st.integers(-16, 16).map(lambda sixteenths: sixteenths / 16),
    label=st.sampled_from([None, *LABELS]),
    distinct=st.none() | st.sampled_from([0.25, 0.5, 0.75, 0.875, 1.0]),
    exclude=st.sets(st.integers(20, 260).map("{:03d}".format), max_size=30).map(sorted),
)
def test_any_options_give_what_brute_force_gives(searcher: Searcher, seed: int, k: int, **options: Any) -> None:
    assert_as_brute_force(searcher, seed, k, options)


@given(
    seed=st.integers(0, 50),
    min_score=st.integers(-16, 16).map(lambda sixteenths: sixteenths / 16),
    label=st.sampled_from([None, *LABELS]),
)
def test_a_range_search_is_exhaustive(searcher: Searcher, seed: int, min_score: float, label: str | None) -> None:
    query = exact_vectors(1, seed)[0]
    where = None if label is None else {"label": label}
    expected = ROWS.search(query, MAX_K, min_score=min_score, label=label)
    assert found(searcher.within(query * 3, min_score, filter=where)) == expected


def test_a_range_search_that_finds_too_many_says_how_many(searcher: Searcher) -> None:
    query = exact_vectors(1, 3)[0]
    with pytest.raises(QueryError, match=r"^240 images score -1\.0 or more: expected 239 at most; raise min_score"):
        searcher.within(query, -1, limit=239)
    assert len(searcher.within(query, -1, limit=240)) == 240
    assert searcher.within(query, -1, filter={"label": "fox"}) == []


def test_an_image_has_a_score_of_one_with_itself(tmp_path: Path) -> None:
    ids, vectors = [f"{number:02d}" for number in range(50)], unit_vectors(50)
    searcher = searcher_of(tmp_path, ids, vectors)
    for image_id, vector in zip(ids, vectors, strict=True):  # in float32 some of them score a little less than 1
        assert found(searcher.within(vector, 1)) == [(image_id, 1.0, ())]
        assert found(searcher.search([vector], 3, min_score=1)[0]) == [(image_id, 1.0, ())]


def test_thousands_of_copies_do_not_hide_other_images(tmp_path: Path) -> None:
    copies = [f"copy {number:04d}" for number in range(3_000)]
    vectors = np.concatenate([np.repeat(np.eye(1, 8), 3_000, axis=0), np.eye(8)[1:4]])
    searcher = searcher_of(tmp_path, [*copies, "a", "b", "c"], vectors)
    query = np.array([[1, 0.3, 0.2, 0.1, 0, 0, 0, 0]])
    folded = searcher.search(query, 3, distinct=0.9)[0]
    assert [match.image_id for match in folded] == ["copy 0000", "a", "b"]
    assert folded[0].duplicates == tuple(copies[1:])
    some = searcher.search(query, 5)[0]
    assert {match.score for match in some} == {folded[0].score}
    others = searcher.search(vectors[:1], 2_999, exclude={copies[7]})[0]
    assert [match.image_id for match in others] == copies[:7] + copies[8:]


def test_vectors_by_id(searcher: Searcher) -> None:
    for image_id in ("020", "170", "259"):  # of the first run, replaced, of the second run
        assert searcher.vector(image_id).tolist() == ROWS.vectors[image_id].tolist()
    for image_id in ("000", "no such"):  # deleted, never there
        with pytest.raises(QueryError, match=f"index version 000002 holds no image '{image_id}'"):
            searcher.vector(image_id)


def test_a_mix_is_the_direction_of_the_weighted_sum() -> None:
    a, b, c, d = exact_vectors(4, 9)
    total = a + 2 * b + 0.5 * c - 0.25 * d
    assert mix([a, b, c * 7, d], [1, 2, 0.5, -0.25]) == pytest.approx(total / np.linalg.norm(total), abs=1e-6)
    assert mix([a, a, b], [1, 1, 1]) == pytest.approx(mix([a, b], [2, 1]), abs=1e-6)


@pytest.mark.parametrize(
    ("vectors", "weights", "message"),
    [
        ([[1, 2], [2, 4]], [1, -1], "cancel each other out"),
        ([[1, 0], [-3, 1e-9]], [1, 1], "cancel each other out"),
        ([[1, 0]], [0], "cancel each other out"),
        ([], [], r"got 0 weights for vectors of shape \(0,\)"),
        ([[1, 0]], [1, 2], r"got 2 weights for vectors of shape \(1, 2\)"),
        ([[1, 0]], [float("nan")], "expected numbers"),
        ([[1, 0]], [float("inf")], "the weights are .inf.: expected numbers"),
        ([[1, 0], [0, 0]], [1, 1], "vector 1 is zero"),
    ],
)
def test_invalid_mixes_are_refused(vectors: list[list[float]], weights: list[float], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        mix(vectors, weights)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        *(
            (lambda s, q, k=k: s.search(q, k), "k is .*: expected a whole number from 1 to 10,000")
            for k in (0, -1, MAX_K + 1, 2.5, True, "10")
        ),
        *(
            (lambda s, q, shape=shape: s.search(np.ones(shape), 3), r"got vectors of shape \(.*\): .* takes \(n, 16\)")
            for shape in ((WIDTH,), (1, WIDTH + 1), (1, 1, WIDTH), (0,))
        ),
        *(
            (lambda s, q, value=value: s.search([q[0], q[0] * value], 3), "vector 1 is zero or not finite")
            for value in (0, np.nan, np.inf)
        ),
        (lambda s, q: s.search(q, 5, exclude="042"), "exclude is '042': expected a set or a list of ids"),
        (lambda s, q: s.search(q, 5, offset=-1), "offset is -1: expected a whole number from 0"),
        (lambda s, q: s.search(q, 5, offset=MAX_K - 4), r"offset is 9996: .* from 0 to 9,995: k \+ offset is"),
        (lambda s, q: s.search(q, 5, offset=True), "offset is True"),
        (lambda s, q: s.search(q, 5, min_score=1.5), "min_score is 1.5: expected a number from -1 to 1"),
        (lambda s, q: s.search(q, 5, min_score=float("nan")), "min_score is nan"),
        (lambda s, q: s.search(q, 5, distinct="0.9"), "distinct is '0.9': expected a cosine"),
        (lambda s, q: s.search(q, 5, diversity=1.5), "diversity is 1.5: expected a number from 0 to 1"),
        (lambda s, q: s.within(q[0], 2), "min_score is 2: expected a number from -1 to 1"),
        (lambda s, q: s.within(q, 0.5), r"got vectors of shape \(1, 1, 16\)"),
    ],
)
def test_invalid_options_are_refused(searcher: Searcher, ask: Callable[..., object], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        ask(searcher, exact_vectors(1, 0))


def test_the_callers_array_is_not_changed(searcher: Searcher) -> None:
    query = np.full((1, 2 * WIDTH), 7, np.float32)[:, ::2]
    query.flags.writeable = False
    matches = searcher.search(query, 5)
    assert (query == 7).all()
    assert matches == searcher.search(query / 100, 5)
    assert searcher.search(np.empty((0, WIDTH)), 5) == []
    assert searcher.search(query, np.int64(5)) == matches  # type: ignore[arg-type]


def test_columns_of_all_segments(searcher: Searcher) -> None:
    old, new = searcher.row("021"), searcher.row("161")
    assert old is not None
    assert new is not None
    # As a merge would write them: years are numbers in one segment, and text in the other.
    assert (old["label"], old["year"], old["stars"]) == ("cat", "21", None)
    assert (new["label"], new["year"], new["stars"]) == ("dog", "about 1", 0.5)
    assert list(old) == list(new)
    by_id = {match.image_id: match.metadata for match in searcher.search(exact_vectors(1, 0), 240)[0]}
    assert by_id["021"] == {"label": "cat", "year": "21", "stars": None}
    assert by_id["161"] == {"label": "dog", "year": "about 1", "stars": 0.5}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"year": "21"}, ["021"]),
        ({"stars": None, "year": {"$in": ["21", "about 3"]}}, ["021"]),
        ({"stars": {"$exists": True}, "year": {"$prefix": "about 2"}}, ["162", *(f"{n}" for n in range(180, 190))]),
        ({"image_id": {"$lt": "022"}}, ["020", "021"]),
        ({"label": "fox"}, []),
    ],
)
def test_filters_over_all_segments(searcher: Searcher, where: Mapping[str, Any], expected: list[str]) -> None:
    assert sorted(match.image_id for match in searcher.search(exact_vectors(1, 0), 240, filter=where)[0]) == expected


def test_the_percentile_of_a_score_among_random_pairs(searcher: Searcher) -> None:
    scores = ScoreDistribution(levels=[0.0, 0.5, 0.99, 1.0], random={"image": [-0.2, 0.1, 0.5, 0.9]}, nearest=[])
    judge = Searcher(searcher.manifest.model_copy(update={"scores": scores}), searcher.segments)
    assert [judge.percentile(score) for score in (-1, -0.2, 0.1, 0.3, 0.7, 0.9, 1)] == [0, 0, 50, 74.5, 99.5, 100, 100]
    grid = np.linspace(-1, 1, 2_001).round(3).tolist()
    for bar in (0, 12.345, 50, 74.5, 99.4999, 99.5, 100):
        lowest = judge.lowest_score(bar)
        assert lowest is not None
        assert [score for score in grid if score >= lowest] == [
            each for each in grid if (judge.percentile(each) or 0) >= bar
        ]
    none = ScoreDistribution(levels=[0.0, 1.0], random={}, nearest=[])
    judge_of_none = Searcher(searcher.manifest.model_copy(update={"scores": none}), searcher.segments)
    assert (judge_of_none.percentile(0.5), judge_of_none.lowest_score(50)) == (None, None)
    others = {image_id: ROWS.scores(vector) for image_id, vector in ROWS.vectors.items()}
    pairs = [score for image_id, scored in others.items() for other, score in scored.items() if other != image_id]
    for score in (-0.25, 0.0625, 0.5):
        share = 50 * (np.mean(np.array(pairs) < score) + np.mean(np.array(pairs) <= score))
        assert searcher.percentile(score) == pytest.approx(share, abs=12)


def test_threads_filter_and_fold_concurrently(searcher: Searcher) -> None:
    start = threading.Barrier(8)

    def ask(number: int) -> list[tuple[str, float, tuple[str, ...]]]:
        if number < 8:
            start.wait(10)
        where = {"label": LABELS[number % 3], "image_id": {"$gte": f"000{number % 5}"}}
        return found(searcher.search(exact_vectors(1, number % 4), 9, filter=where, distinct=0.75)[0])

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(120)))
    for number, answer in enumerate(answers):
        query = exact_vectors(1, number % 4)[0]
        assert answer == ROWS.search(query, 9, label=LABELS[number % 3], distinct=0.75)
