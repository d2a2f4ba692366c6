"""Distinct matches are found among any number of near-duplicates, page after page."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from index.collection import Collection
from index.search import Searcher
from tests.support.collections.hand_made import MODEL, add_version, rows, searcher_of, unit_vectors
from tests.support.collections.sharded import InProcessShards

DIM, OTHERS, NOISE = 16, 500, 1e-3
CROWDS = {0: 2_500, 1: 2_200, **dict.fromkeys(range(2, 12), 60)}
"""The number of copies of some of the vectors."""
DISTINCT = 0.999


def crowded(others: int, crowds: dict[int, int], dim: int, seed: int = 0) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Random vectors, in which some have many copies, all a little different. An id begins with its vector's number."""
    rng = np.random.default_rng(seed)
    owners = np.concatenate([np.arange(others), *(np.full(count, owner) for owner, count in crowds.items())])
    vectors = unit_vectors(others, seed=seed, dim=dim)[owners]
    vectors += NOISE * rng.standard_normal(vectors.shape).astype(np.float32) / np.float32(dim**0.5)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    order = rng.permutation(len(owners))
    return [f"{owners[row]}-{row}" for row in order], vectors[order]


class Crowded:
    def __init__(self, folder: Path) -> None:
        self.ids, self.vectors = crowded(OTHERS, CROWDS, DIM)
        self.collection = Collection.create_or_open(str(folder))
        half = len(self.ids) // 2  # in two segments
        metadata = {"even": [row % 2 == 0 for row in range(len(self.ids))]}
        table = rows(self.ids, self.vectors, metadata=metadata)
        for part in (table.slice(0, half), table.slice(half)):
            add_version(self.collection, part, model=MODEL.model_copy(update={"dim": DIM}))
        self.searcher = Searcher.open(self.collection)

    def nearest(
        self, query: npt.NDArray[np.float32], rank: int, keep: npt.NDArray[np.bool_] | bool = True
    ) -> list[str]:
        """The owners of the first distinct rows, by brute force."""
        scores = np.where(keep, self.vectors @ query, -2)
        owners = [self.ids[row].partition("-")[0] for row in np.argsort(-scores) if scores[row] > -2]
        return list(dict.fromkeys(owners))[:rank]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Crowded:
    return Crowded(tmp_path_factory.mktemp("crowded") / "collection")


def owners(searcher: Searcher, query: npt.NDArray[np.float32], k: int, **options: Any) -> list[str]:
    found = searcher.search(query[np.newaxis], k, distinct=DISTINCT, **options)[0]
    assert [match.score for match in found] == sorted((match.score or 0.0 for match in found), reverse=True)
    return [match.image_id.partition("-")[0] for match in found]


PAGES = [(1, 0), (10, 0), (10, 10), (50, 200), (100, 450), (20, 600)]


@pytest.mark.parametrize(("owner", "k", "offset"), [*((0, *page) for page in PAGES), (2, 10, 10), (499, 50, 240)])
def test_pages_of_distinct_matches(many: Crowded, owner: int, k: int, offset: int) -> None:
    query = unit_vectors(OTHERS, dim=DIM)[owner]
    expected = many.nearest(query, OTHERS)[offset : offset + k]
    assert owners(many.searcher, query, k, offset=offset) == expected


def test_shards_give_the_same_answers(many: Crowded) -> None:
    query, searcher = unit_vectors(OTHERS, dim=DIM)[:1], InProcessShards(many.collection, 2).searcher()
    for options in ({"k": 30}, {"k": 30, "offset": 30, "filter": {"even": True}}, {"k": 9, "diversity": 0.3}):
        assert searcher.search(query, distinct=DISTINCT, **options) == many.searcher.search(
            query, distinct=DISTINCT, **options
        )


def test_other_limits_hold_beyond_near_duplicates(many: Crowded) -> None:
    query = unit_vectors(OTHERS, dim=DIM)[0]
    even = np.arange(len(many.ids)) % 2 == 0
    assert owners(many.searcher, query, 40, filter={"even": True}) == many.nearest(query, 40, even)
    expected = many.nearest(query, 12)
    unwanted = [image_id for image_id in many.ids if image_id.split("-")[0] == expected[3]]
    assert owners(many.searcher, query, 11, exclude=unwanted) == [*expected[:3], *expected[4:]]
    exact = many.searcher.search(query[np.newaxis], 12, distinct=DISTINCT)[0]
    assert len(exact) == 12
    assert owners(many.searcher, query, 100, min_score=exact[6].score) == expected[:7]
    assert len(many.searcher.search(query[np.newaxis], 10_000, distinct=DISTINCT)[0]) == OTHERS
    assert len(many.searcher.search(query[np.newaxis], 10, distinct=-1.0)[0]) == 1  # all rows are alike


def test_equal_rows_count_once_however_many_there_are(tmp_path: Path) -> None:
    """All of them have the same score, so no depth shows where they end."""
    vectors = np.concatenate([np.repeat(unit_vectors(1, dim=DIM), 11_000, axis=0), unit_vectors(300, seed=1, dim=DIM)])
    ids = [f"{'holder' if row < 11_000 else 'img'}-{row:05d}" for row in range(11_300)]
    searcher = searcher_of(tmp_path / "c", ids, vectors)
    exact = [f"img-{row + 11_000}" for row in np.argsort(-(vectors[11_000:] @ vectors[0]))]
    first, *rest = [match.image_id for match in searcher.search(vectors[:1], 10, distinct=0.98)[0]]
    assert (first.startswith("holder-"), rest) == (True, exact[:9])
    deep = searcher.search(vectors[:1], 10, offset=10, distinct=0.98)[0]
    assert [match.image_id for match in deep] == exact[9:19]
    assert len(searcher.search(vectors[:1], 10_000, distinct=0.999)[0]) == 301
