"""Recall of each kind of query: it is measured, reached by wider searches, and stays after updates."""

from pathlib import Path

import numpy as np
import pytest

from index.arrays import Vectors
from index.builder.build_index import build_index
from index.builder.choose import ann_factory
from index.builder.ground_truth import GroundTruth
from index.builder.measure import measure_kinds
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.collection.records.model_record import ModelRecord
from index.collection.records.version_manifest import KindRecord, VersionManifest
from index.queries import KINDS, QueryKind, Source, kind_of
from index.queries import unit_vectors as at_unit_length
from index.search import Searcher
from index.segments.exact import exact_neighbours
from index.segments.segmented_index import SegmentedIndex
from tests.support.collections.hand_made import add_run, rows, segment_of, unit_vectors

ROWS, DIM = 2_000, 32
SETTINGS = IndexSettings(latency_ms=1e-6, factory="IVF64,PQ32x4fs,Refine(SQ8)", target_recall=0.95)
MODEL = ModelRecord(id="kinds", revision=None, fingerprint="0" * 64, dim=DIM)


def clustered(count: int, seed: int) -> Vectors:
    centres = unit_vectors(60, seed=1, dim=DIM)
    rng = np.random.default_rng(seed)
    return at_unit_length(centres[rng.integers(0, 60, count)] + 0.12 * rng.standard_normal((count, DIM)), DIM)


def queries(kind: QueryKind, seed: int) -> Vectors:
    """Queries that the build has not seen, made of vectors that it has not seen either."""
    one, two, three = (clustered(400, seed + number) for number in range(3))
    offset = unit_vectors(1, seed=77, dim=DIM)
    made = {"image": one, "mix": one + two, "contrast": one - 0.7 * two + 0.7 * three, "text": 0.5 * one + offset}
    return at_unit_length(made[kind], DIM)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Collection, VersionManifest, Vectors]:
    vectors = clustered(ROWS, 2)
    collection = Collection.create_or_open(str(tmp_path_factory.mktemp("kinds")))
    add_run(collection, rows([f"{number:04d}" for number in range(ROWS)], vectors), model=MODEL)
    return collection, build_index(collection, SETTINGS, texts=lambda: queries("text", 100)), vectors


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reaches_its_target_with_fresh_queries(
    built: tuple[Collection, VersionManifest, Vectors], kind: QueryKind
) -> None:
    collection, manifest, vectors = built
    sample = queries(kind, 200)
    exact = exact_neighbours(sample, [(np.arange(ROWS), vectors)], 10).scores
    found = Searcher.open(collection).search(sample, 10, kind=kind)
    recall = np.mean(
        [[match.score >= bar - 2e-6 for match in each] for each, bar in zip(found, exact[:, 9], strict=True)]
    )
    assert recall >= manifest.settings.target_of(kind) - 0.02
    assert manifest.kinds[kind].recall >= manifest.settings.target_of(kind)
    assert recall == pytest.approx(manifest.kinds[kind].recall, abs=0.02)


@pytest.mark.parametrize(("errors", "widened"), [(1, True), (2.5, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_width_stays_while_recall_is_more_than_two_standard_errors_above_the_target(
    built: tuple[Collection, VersionManifest, Vectors], kind: QueryKind, errors: float, widened: bool
) -> None:
    """A version that barely reaches the target with its own queries may miss it with others."""
    segments = Searcher.open(built[0]).segments
    segments.parts[0].tune({"nprobe": 1 if kind == "image" else 2, "k_factor": 16})
    held_out = GroundTruth.sample(segments, 400, queries("text", 100)).measured(segments, kind, (10,))
    recalls = held_out.of(kind).recalls[:, 1]
    target = recalls.mean() - errors * recalls.std() / len(recalls) ** 0.5
    settings = SETTINGS.model_copy(update={"target_recall": (target + 1) / 2 if kind == "text" else target})
    before = {each: KindRecord(queries=1, recall=1, width=1) for each in KINDS}
    records, _ = measure_kinds(segments, held_out, settings, before)
    assert (records[kind].width > 1) == widened
    assert records[kind].recall >= target


def test_a_search_is_as_wide_as_its_kind_needs_or_as_the_widest_kind(
    built: tuple[Collection, VersionManifest, Vectors],
) -> None:
    record = built[1].kinds["mix"]
    widths: dict[QueryKind, float] = {"image": 1.0, "mix": 2.0, "contrast": 4.0}
    kinds = {kind: record.model_copy(update={"width": width}) for kind, width in widths.items()}
    manifest = built[1].model_copy(update={"kinds": kinds})
    assert [manifest.width_of(kind) for kind in ("image", "mix", "text", None)] == [1, 2, 4, 4]
    assert built[1].kinds["image"].width == 1


@pytest.mark.parametrize("k", [1, 10, 11, 12])
def test_a_search_looks_as_deep_as_when_recall_is_measured(
    built: tuple[Collection, VersionManifest, Vectors], k: int
) -> None:
    """Without the images that they were mixed from, held-out queries have up to thirteen neighbours."""
    segments, sample = Searcher.open(built[0]).segments, queries("contrast", 300)
    segments.parts[0].tune({"nprobe": 16, "k_factor": 1.0, "rescore": 1.0})
    found, deeper = segments.search(sample, k), segments.search(sample, 13)
    assert np.array_equal(found.positions, deeper.positions[:, :k])
    assert np.array_equal(found.scores, deeper.scores[:, :k])


@pytest.mark.parametrize("spread", [16, DIM])
@pytest.mark.parametrize("refine", [True, False])
def test_wider_searches_of_default_indexes_lose_no_score_on_average(tmp_path: Path, refine: bool, spread: int) -> None:
    """With each wider search, the mean cosine of a hundred texts' ten best falls by at most 0.001, and the widest comes
    within 0.001 of exact search.

    A single query may lose: candidates are ranked by compressed vectors, so a worse one may displace a better one.
    """
    count, factory = 2_000, ann_factory(2_000, DIM, refine=refine, spread=spread)
    segment, sample = segment_of(tmp_path, clustered(count, 2), factory), queries("text", 300)[:100]
    segment.tune({"nprobe": 4, "k_factor": 8, "rescore": 4 if refine else 16, "breadth": 0.5})
    segments = SegmentedIndex([segment])
    means = [segments.search(sample, 10, width=width).scores.mean() for width in (1, 1.5, 2, 4, 8, 16, 64)]
    assert (np.diff(means) >= -1e-3).all()
    exact = exact_neighbours(sample, [(np.arange(count), clustered(count, 2))], 10).scores
    assert means[-1] == pytest.approx(exact.mean(), abs=1e-3)


def test_the_percentile_of_a_text_is_among_scores_of_texts(
    built: tuple[Collection, VersionManifest, Vectors],
) -> None:
    searcher = Searcher.open(built[0])
    scores = queries("text", 400) @ built[2].T
    for share in (0.1, 0.5, 0.99):
        score = float(np.quantile(scores, share))
        assert searcher.percentile(score, "text") == pytest.approx(100 * share, abs=3)
    assert searcher.percentile(0.5, None) is None


def test_the_texts_of_a_collection_are_reused(tmp_path: Path) -> None:
    """Updates and rebuilds use those of the version before; new ones are made only for another list of texts."""
    collection = Collection.create_or_open(str(tmp_path))
    add_run(collection, rows([f"{number:04d}" for number in range(600)], clustered(600, 2)), model=MODEL)
    assert build_index(collection).kinds.keys() == {"image", "mix", "contrast"}  # a model without texts
    manifest = build_index(collection, rebuild=True, texts=lambda: queries("text", 100)[:60])
    assert manifest.kinds["text"].queries == 60
    add_run(collection, rows(["new"], clustered(1, 5)), model=MODEL)
    assert build_index(collection, texts=lambda: pytest.fail("an update makes no texts")).base == manifest.version
    known = build_index(collection, rebuild=True, texts=lambda: pytest.fail("a rebuild makes no texts"))
    assert known.kinds["text"].queries == 60
    others = build_index(collection, IndexSettings(queries="other"), texts=lambda: queries("text", 100)[:70])
    assert others.kinds["text"].queries == 70


def test_a_kind_below_its_target_keeps_a_version_from_going_live(
    built: tuple[Collection, VersionManifest, Vectors],
) -> None:
    manifest = built[1]
    mixes = manifest.kinds["mix"].model_copy(update={"recall": 0.9})
    low = manifest.model_copy(update={"kinds": {**manifest.kinds, "mix": mixes}})
    assert (manifest.below_target, low.below_target) == (False, True)
    assert low.missed_message == "recall@10 0.9 for queries of kind mix, expected 0.95 or more"


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([("image", 1)], "image"),
        ([("image", 0.2)], "image"),
        ([("image", 1), ("image", 2)], "mix"),
        ([("image", 1), ("image", -1)], "contrast"),
        ([("text", 1)], "text"),
        ([("text", 1), ("text", 0.5)], "text"),
        ([("text", 1), ("text", -0.5)], None),
        ([("text", 1), ("image", 1)], None),
        ([("vector", 1)], None),
        ([("image", -1)], None),
        ([], None),
    ],
)
def test_the_kind_of_a_query(parts: list[tuple[Source, float]], kind: QueryKind | None) -> None:
    assert kind_of(parts) == kind
