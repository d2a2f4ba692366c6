"""Few-shot labels and clusters of the demo's pictures.

Clicks, as somebody makes who looks for shapes, patterns and colours: 10 on those nearest to one picture, then the 5
most useful ones, twice. The head that they train is compared with one trained on the labels of all pictures, by its
average precision on others. Clusters are compared with the k-means of scikit-learn, by their adjusted mutual
information with shape and colour.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score

from benchmarks.common.report import Report
from index.analysis.clusters import cluster
from index.collection.rows import EMBEDDING, vectors_of
from index.search import Searcher
from jobs.annotation.predictors.logistic import sigmoid, train_head
from jobs.demo.collection import make_demo_collection
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES

Vectors = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

CLICKS, _FIRST, _ROUND = 20, 10, 5
_STARTS = 5
_SEEDS = 10  # of scikit-learn


def concepts(ids: list[str]) -> dict[str, Mask]:
    """Which of the demo's pictures show each shape, pattern and colour."""
    names = [*SHAPES, *PATTERNS, *COLOURS]
    return {
        name: np.array([name in image_id.rpartition("/")[2].replace(".", "-").split("-") for image_id in ids])
        for name in names
    }


def click(vectors: Vectors, wanted: Mask, start: int) -> list[int]:
    """The pictures that are judged, beginning with those nearest to `start`, of which two or more are of each kind."""
    order = np.argsort(-(vectors @ vectors[start]))
    both = [*order[wanted[order]][:2], *order[~wanted[order]][:2]]
    clicked = list(dict.fromkeys([*both, *order]))[:_FIRST]
    while len(clicked) < CLICKS:
        weights, bias = train_head(vectors[clicked], wanted[clicked], vectors)
        useful = np.argsort(np.abs(sigmoid(vectors @ weights + bias) - 0.5))
        clicked += [each for each in useful if each not in clicked][:_ROUND]
    return clicked


def average_precision(wanted: Mask, scores: npt.NDArray[np.floating]) -> float:
    found = wanted[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(found) / np.arange(1, len(found) + 1))[found].mean())


def few_and_all(vectors: Vectors, wanted: Mask) -> dict[str, float]:
    """Average precision on half of the pictures of heads trained on clicks in the other half, and on all of that."""
    random = np.random.default_rng(1)
    known, others = np.split(random.permutation(len(vectors)), [len(vectors) // 2])
    known_vectors, known_wanted = vectors[known], wanted[known]

    def precision(examples: Any) -> float:
        weights, _ = train_head(known_vectors[examples], known_wanted[examples], known_vectors)
        return average_precision(wanted[others], vectors[others] @ weights)

    first = random.choice(np.flatnonzero(known_wanted), _STARTS)
    return {
        f"{CLICKS} clicks": float(np.mean([precision(click(known_vectors, known_wanted, each)) for each in first])),
        "all": precision(np.arange(len(known))),
    }


def few_shot_labels(folder: Path, pictures: int, report: Report) -> None:
    """Average precision by concept, and its bar."""
    rows = make_demo_collection(folder, count=pictures).live_rows()
    rows = rows.filter(rows[EMBEDDING].is_valid())
    vectors, ids = vectors_of(rows[EMBEDDING]), list(map(str, rows["image_id"].to_pylist()))
    found = {name: few_and_all(vectors, wanted) for name, wanted in concepts(ids).items()}
    report.table("average precision on the demo", found)
    ratios = [figures[f"{CLICKS} clicks"] / figures["all"] for figures in found.values()]
    report.values(f"{CLICKS} clicks ÷ all", {"mean": float(np.mean(ratios)), "least": min(ratios)})
    report.at_least(f"{CLICKS} clicks ÷ all: mean", float(np.mean(ratios)), 0.95)


def agreement(folder: Path, report: Report) -> None:
    """Adjusted mutual information of clusters, and its bar."""
    segments = Searcher.open(make_demo_collection(folder, count=2_000)).segments
    positions = segments.live_positions()
    vectors = segments.vectors(positions)
    labels = [Path(image_id).stem.split("-")[-2:] for image_id in segments.ids(positions)]
    truth = [" ".join(label) for label in labels]
    table = []
    for count in (len(set(truth)), 31):
        ours = adjusted_mutual_info_score(truth, cluster(vectors, count)[1])
        theirs = [
            adjusted_mutual_info_score(truth, KMeans(count, random_state=seed).fit_predict(vectors))
            for seed in range(_SEEDS)
        ]
        mean = float(np.mean(theirs))
        table.append({"clusters": count, "Likeness": ours, "scikit-learn, mean": mean, "its greatest": max(theirs)})
        report.at_least(f"adjusted mutual information of {count} clusters, minus scikit-learn's", ours - mean, 0)
    report.table("adjusted mutual information with shape and colour", table)
