"""Precision and mean average precision by labels, against a plain script; and wrong labels that are found."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index.analysis.evaluation import Estimate, LabelledImages, evaluate, labels_of, sample_queries
from index.analysis.neighbourhoods import label_votes, neighbourhoods
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.errors import QueryError
from index.search import Searcher
from tests.support.collections.hand_made import add_version, rows, searcher_of, unit_vectors

COUNT = 240
LABELS = [None if n % 17 == 0 else "only one" if n == 1 else "abc"[n % 3] for n in range(COUNT)]


def labelled(folder: Path, seed: int, settings: IndexSettings | None = None) -> Searcher:
    """Vectors near those of their label, in two segments; one of the rows is deleted."""
    centres = dict(zip((None, "only one", *"abc"), unit_vectors(5, seed=9), strict=True))
    vectors = unit_vectors(COUNT, seed=seed) + 0.4 * np.stack([centres[label] for label in LABELS])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    table = rows([f"{n:03}" for n in range(COUNT)], vectors, metadata={"kind": pa.array(LABELS, pa.string())})
    collection = Collection.create_or_open(str(folder))
    add_version(collection, table.slice(0, 180), settings=settings)
    add_version(collection, table.slice(180), deletes=["005"], settings=settings)
    return Searcher.open(collection)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    return labelled(tmp_path_factory.mktemp("exact"), 1)


def by_hand(searcher: Searcher) -> dict[str, tuple[int, float, float, float, float]]:
    """Queries, precision@1, 5 and 10 and mean average precision of each label: loops over pairs, in float64."""
    known = {f"{n:03}": label for n, label in enumerate(LABELS) if label and n != 5}
    vectors = {image_id: searcher.vector(image_id).astype(np.float64) for image_id in known}
    found: dict[str, list[tuple[float, ...]]] = {}
    for query, label in known.items():
        if label == "only one":
            continue
        scores = {other: round(float(vectors[query] @ vectors[other]), 6) for other in known if other != query}
        ranking = [known[other] == label for other in sorted(scores, key=lambda other: (-scores[other], other))]
        precisions = [sum(ranking[:rank]) / rank for rank, hit in enumerate(ranking, start=1) if hit]
        figures = (ranking[0], sum(ranking[:5]) / 5, sum(ranking[:10]) / 10, sum(precisions) / len(precisions))
        found.setdefault(label, []).append(figures)
        found.setdefault("(all)", []).append(figures)
    return {label: (len(rows), *np.mean(rows, axis=0).tolist()) for label, rows in found.items()}


def test_the_figures_are_those_of_a_plain_script_with_any_index(tmp_path: Path, searcher: Searcher) -> None:
    for side in (searcher, labelled(tmp_path, 1, IndexSettings(factory="IVF4,SQ8", target_recall=0.1))):
        images = LabelledImages.of(side, "kind")
        found = evaluate(images, sample_queries([images], 10_000))
        expected = by_hand(side)
        assert [each.label for each in found.classes] == ["a", "b", "c"]
        for each in (found.overall, *found.classes):
            precision = [each.precision[k].value for k in ("1", "5", "10")]
            figures = (each.queries, *precision, each.mean_average_precision.value)
            assert figures == pytest.approx(expected[each.label], abs=1e-6)
        assert (found.images, found.labelled) == (COUNT - 1, sum(label is not None for label in LABELS) - 1)
        assert found.recall == side.manifest.recall["10"]
        shares = [each.share for each in found.confusions]
        assert shares == sorted(shares, reverse=True)
        wrong = sum(each.share for each in found.confusions if each.label == "a")
        assert wrong == pytest.approx(1 - found.classes[0].precision["10"].value)


def test_the_interval_is_that_of_wilson() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table I: 81 of 263 and 0 of 20.
    for hits, of, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):
        estimate = Estimate.of(np.array([1.0] * hits + [0.0] * (of - hits)))
        assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)
        assert math.isclose(estimate.value, hits / of)


def test_two_sides_have_the_same_queries(tmp_path: Path, searcher: Searcher) -> None:
    one, other = (LabelledImages.of(each, "kind") for each in (searcher, labelled(tmp_path, 2)))
    queries = sample_queries([one, other], 50)
    assert len(set(queries)) == 50
    assert list(queries) == sorted(queries)
    assert list(queries) == list(sample_queries([one, other], 50))
    assert evaluate(one, queries).overall.queries == evaluate(other, queries).overall.queries == 50


def test_columns_without_labels_are_refused(searcher: Searcher) -> None:
    with pytest.raises(QueryError, match=r"has no column 'shape': expected one of image_id, .*kind"):
        LabelledImages.of(searcher, "shape")
    with pytest.raises(QueryError, match="no two images have the same value in column 'image_id'"):
        LabelledImages.of(searcher, "image_id")


def test_blank_cells_and_nan_are_not_labels(tmp_path: Path) -> None:
    collection = Collection.create_or_open(str(tmp_path))
    metadata = {"kind": pa.array(["a", "", " ", None]), "number": pa.array([1.5, math.nan, None, 0.0])}
    add_version(collection, rows(list("abcd"), unit_vectors(4, seed=1), metadata=metadata))
    searcher = Searcher.open(collection)
    found = {
        name: labels_of(searcher, searcher.segments.live_positions(), name).tolist() for name in ("kind", "number")
    }
    assert found == {"kind": ["a", None, None, None], "number": ["1.5", None, None, "0.0"]}


def test_as_many_labels_as_images_need_no_table_of_all_pairs(searcher: Searcher) -> None:
    images = LabelledImages.of(searcher, "kind")
    many = replace(images, codes=images.codes * 100_000, names=[str(number) for number in range(300_001)])
    queries = images.queries()
    found = [[each.share for each in evaluate(side, queries).confusions] for side in (images, many)]
    assert found[0] == found[1]


def test_planted_wrong_labels_are_among_the_most_suspect(tmp_path: Path) -> None:
    names, rng = "abcd", np.random.default_rng(0)
    labels = [names[number % 4] for number in range(200)]
    vectors = 0.3 * unit_vectors(200, seed=1) + np.eye(8)[[names.index(label) for label in labels]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    searcher = searcher_of(tmp_path, [f"{number:03}" for number in range(200)], vectors)
    planted = rng.choice(len(labels), len(labels) // 50, replace=False)
    for number in planted:
        labels[number] = rng.choice([name for name in names if name != labels[number]])
    found = neighbourhoods(searcher)
    suspects = label_votes(found, labels)["image_id"].to_pylist()[: 3 * len(labels) // 100]
    assert len(set(found.ids[planted]) & set(suspects)) >= 0.9 * len(planted)
