"""After any sequence of runs, updates, merges and rebuilds, searches find what brute force finds in the live rows."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import VersionManifest
from index.errors import EmptyCollectionError
from index.search import Searcher
from tests.support.collections.hand_made import add_run, rows, unit_vectors

POOL = unit_vectors(40)  # so few that several images have the same vector
QUERIES = np.concatenate([POOL[:4], unit_vectors(4, seed=3)])
Vectors = npt.NDArray[np.float32]


@dataclass
class Model:
    """The live rows, in a dict."""

    collection: Collection
    live: dict[str, Vectors] = field(default_factory=dict)

    def run(self, new: dict[str, Vectors], rejected: set[str], deleted: set[str]) -> None:
        for image_id in rejected | deleted:
            self.live.pop(image_id, None)
        self.live |= new
        reasons = dict.fromkeys(sorted(rejected - set(new)), "corrupt")
        vectors = np.array(list(new.values()), np.float32).reshape(len(new), -1) if new else POOL[:0]
        add_run(self.collection, rows(list(new), vectors, rejected=reasons), deletes=sorted(deleted))

    def check(self, searcher: Searcher) -> None:
        check_answers(searcher, self.live, QUERIES)


def check_answers(searcher: Searcher, live: dict[str, Vectors], queries: Vectors) -> None:
    """A search finds exactly the nearest, in order, for k below and above the number of rows."""
    assert searcher.ntotal == len(live)
    exact = queries @ np.array(list(live.values())).T
    columns = {image_id: column for column, image_id in enumerate(live)}
    for k in (1, 5, len(live), len(live) + 10):
        for query, matches in enumerate(searcher.search(queries, k)):
            best = np.sort(exact[query])[::-1][:k]
            scores = [match.score or 0.0 for match in matches]
            ids = [match.image_id for match in matches]
            assert len(set(ids)) == len(ids) == min(k, len(live))
            # Brute force may order ties differently; searches order them by id.
            assert np.allclose(scores, best, atol=1e-5)
            assert np.allclose(scores, exact[query, [columns[image_id] for image_id in ids]], atol=1e-5)
            assert [(-(match.score or 0.0), match.image_id) for match in matches] == sorted(
                (-(match.score or 0.0), match.image_id) for match in matches
            )


ids = st.integers(0, 30).map("{:02d}".format)
runs = st.tuples(
    st.dictionaries(ids, st.integers(0, len(POOL) - 1).map(lambda n: POOL[n]), max_size=12),
    st.sets(ids, max_size=4),
    st.sets(ids, max_size=6),
)


@settings(max_examples=settings().max_examples // 3)
@given(
    steps=st.lists(st.one_of(runs, runs, runs, st.sampled_from(["compact", "two runs"])), min_size=1, max_size=14),
    segment_rows=st.sampled_from([4, 30, 1_000_000]),
)
def test_exact_search_after_any_sequence(steps: list[Any], segment_rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Collection.create_or_open(folder))
        before: tuple[Searcher, dict[str, Vectors]] | None = None
        pending = False
        for step in steps:
            if step == "two runs":  # the next run is committed before the index is updated
                pending = True
                continue
            if step != "compact":
                model.run(*step)
            if pending:
                pending = False
                continue
            try:
                manifest = build_index(
                    model.collection, IndexSettings(segment_rows=segment_rows), rebuild=step == "compact"
                )
            except EmptyCollectionError:
                assert not model.live
                continue
            check_manifest(manifest, model.live, segment_rows)
            assert manifest.base is None or step != "compact"
            searcher = Searcher.open(Collection.open(folder))
            model.check(searcher)
            if before:  # as in a server that still has the previous version
                check_answers(*before, QUERIES)
            before = searcher, dict(model.live)


def check_manifest(manifest: VersionManifest, live: dict[str, Vectors], segment_rows: int) -> None:
    assert manifest.recall == {"1": 1.0, "10": 1.0, "100": 1.0}
    assert manifest.kind == "Flat"
    assert manifest.ntotal == len(live) == sum(segment.live for segment in manifest.segments)
    assert all(0 < segment.live <= segment.ntotal <= segment_rows for segment in manifest.segments)
    if segment_rows == 1_000_000:
        assert len(manifest.segments) <= 8


@pytest.mark.parametrize(
    "factory", [None, *(pytest.param(name, marks=pytest.mark.long) for name in ("IVF16,Flat", "HNSW16"))]
)
def test_approximate_search_after_a_sequence(
    factory: str | None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search returns k images with exact scores, none of them deleted, and reaches the target recall."""
    monkeypatch.setattr("index.segments.kinds.ivf._FINDING_LISTS", 0)  # otherwise the last rows are scanned
    dim, target = 8, 0.95
    random = np.random.default_rng(1)
    model = Model(Collection.create_or_open(str(tmp_path_factory.mktemp("approximate"))))
    fresh = endless_vectors()
    # At 8 dimensions at most 256 rows are scanned exactly.
    index_settings = IndexSettings(latency_ms=1e-6, factory=factory, target_recall=target)
    model.run({f"{n}": next(fresh) for n in range(2_000)}, set(), set())
    [first] = build_index(model.collection, index_settings).segments
    assert first.factory == (factory or f"IVF88,PQ{dim}x4fsr,Refine(SQ8)")
    gone, sizes = set[str](), list[list[int]]()
    for step, (new, replaced, rejected, deleted) in enumerate(
        [(50, 0, 0, 20), (20, 5, 0, 5), (100, 50, 10, 200), (10, 300, 0, 0), (10, 0, 50, 900), (0, 0, 0, 150)]
    ):
        chosen = random.permutation(list(model.live)).tolist()
        change = {image_id: next(fresh) for image_id in chosen[:replaced]}
        change |= {f"new-{step}-{n}": next(fresh) for n in range(new)}
        others = chosen[replaced : replaced + rejected + deleted]
        model.run(change, set(others[:rejected]), set(others[rejected:]))
        gone |= {*others}
        manifest = build_index(model.collection)
        assert (manifest.base, manifest.aged, manifest.settings) == (f"{step + 1:06d}", False, index_settings)
        large, *tail = sorted(manifest.segments, key=lambda segment: -segment.ntotal)
        assert (large.factory, large.trained) == (first.factory, 2_000)
        sizes.append([each.ntotal for each in tail])
        assert all(each.factory == "Flat" for each in tail)
        assert manifest.recall["10"] >= target
        check_approximate(Searcher.open(model.collection), model.live, gone, target)
    assert sizes == [[50], [75], [], [], [], []]


def check_approximate(searcher: Searcher, live: dict[str, Vectors], gone: set[str], target: float) -> None:
    queries = unit_vectors(50, seed=11)
    matrix = np.array(list(live.values()))
    columns = {image_id: column for column, image_id in enumerate(live)}
    exact = queries @ matrix.T
    best = -np.sort(-exact, axis=1)
    for k in (1, 10, 100):
        found = searcher.search(queries, k)
        hits = 0
        for query, matches in enumerate(found):
            ids = [match.image_id for match in matches]
            assert len(set(ids)) == len(ids) == k
            assert not gone & set(ids)
            assert np.allclose(
                [match.score or 0.0 for match in matches],
                exact[query, [columns[image_id] for image_id in ids]],
                atol=1e-5,
            )
            hits += sum(match.score >= best[query, k - 1] - 1e-5 for match in matches)
        if k == 10:
            assert hits / (k * len(queries)) >= target - 0.01
    everything = searcher.search(queries[:2], min(len(live), 10_000))
    assert [len(matches) for matches in everything] == [len(live)] * 2


def endless_vectors() -> Iterator[Vectors]:
    for seed in range(100, 200):
        yield from unit_vectors(1_000, seed=seed)
