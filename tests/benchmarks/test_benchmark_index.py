"""The arithmetic of the index's benchmark: its set of vectors, recall, and the operating point of an index."""

import numpy as np
import pytest

from benchmarks.common.clustered import BLOCK, DIM, Clustered, Rows, Vectors
from benchmarks.common.cone import Cone
from benchmarks.index.race import Race
from benchmarks.index.recall import exact, intrinsic_dimension, local_dimension
from benchmarks.index.rivals import Contestant, Parameters
from index.queries import KINDS


def test_the_set_is_seeded_and_does_not_depend_on_its_size() -> None:
    data = Clustered()
    vectors = data.array(BLOCK + 5)
    assert np.array_equal(vectors[: BLOCK - 7], data.array(BLOCK - 7))
    assert not np.array_equal(vectors[:5], Clustered(seed=1).array(5))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert 40 < intrinsic_dimension(vectors) < 48
    assert exact(data.queries(20), vectors, 1)[0].max() < 0.999  # no query is in the set


@pytest.mark.parametrize(
    ("count", "others", "local"), [(5_000, 500, 19.1), pytest.param(100_000, 1_000, 31, marks=pytest.mark.slow)]
)
def test_a_cone_has_the_shape_of_clips_vectors(count: int, others: int, local: float) -> None:
    data = Cone()
    vectors, queries = data.array(count), data.queries(others)
    assert np.array_equal(vectors[:5], data.array(5))
    np.testing.assert_allclose(np.linalg.norm(vectors[:BLOCK], axis=1), 1, atol=1e-6)
    assert intrinsic_dimension(vectors[:20_000]) == pytest.approx(55, abs=1.5)
    assert local_dimension(exact(queries, vectors, 2)[0]) == pytest.approx(local, abs=1.5)
    assert (queries @ vectors[:BLOCK].T).mean() == pytest.approx(0.44, abs=0.02)  # 0 without the common part
    assert [data.kind(kind, 10).shape for kind in KINDS] == [(10, DIM)] * 4


def test_intrinsic_dimensions_of_a_plane() -> None:
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((DIM, 2)))[0].T
    assert intrinsic_dimension(rng.standard_normal((5000, 2)) @ axes) == pytest.approx(2, abs=0.05)
    # Cosines of points whose second neighbour is e times as far as the first.
    far = np.array([[0.01, 0.01 * np.e], [0.02, 0.02 * np.e]])
    assert local_dimension((1 - far**2 / 2).astype(np.float32)) == pytest.approx(1, abs=0.05)


class Shallow(Contestant):
    """Finds as many of ten true neighbours as its parameter says, at most `limit`; each takes four times as long."""

    name, bytes = "shallow", 0
    ramps = (({"depth": 2}, {"depth": 10}),)

    def __init__(self, tuned: Parameters | None = None, limit: int = 10) -> None:
        self.tuned, self.limit = tuned, limit
        self._depth = 0

    def set(self, parameters: Parameters) -> None:
        self._depth = min(int(parameters["depth"]), self.limit)

    def search(self, queries: Vectors, k: int, threads: int) -> Rows:
        sum(range(4**self._depth))
        found = np.tile(np.arange(k), (len(queries), 1))
        found[:, self._depth :] = -1
        return found


def test_a_race_closes_in_on_the_target_and_marks_indexes_that_miss_it() -> None:
    queries, truth = np.zeros((10, DIM), np.float32), np.tile(np.arange(10), (10, 1))
    race = Race(queries=queries, truth=truth, target=0.7, rounds=1, singles=2)
    free, tuned, short = race.run([Shallow(), Shallow(tuned={"depth": 9}), Shallow(limit=5)])
    assert (free.reached, free.point.recall) == (True, 0.7)
    assert (tuned.reached, tuned.point.recall, tuned.point.parameters) == (True, 0.9, {"depth": 9})
    assert (short.reached, short.point.recall) == (False, 0.5)
    assert free.p50_ms > 0
