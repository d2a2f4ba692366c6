"""Columns from vectors: `python -m benchmarks.index.columns [--rows 1000000] [--quick]`.

Time and memory of `likeness annotate` with --outlier, --uniqueness and --clusters over vectors of 512 dimensions, and
again after 1% are new; the values of a sample against brute force. Clusters of the demo's 1,980 pictures against the
k-means of scikit-learn, by their adjusted mutual information with shape and colour.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score

from benchmarks.common.clustered import DIM, index_rows
from benchmarks.common.process import in_new_process, likeness
from benchmarks.common.report import Figure, Report, run
from index.analysis.clusters import cluster
from index.collection import Collection
from index.search import Searcher
from jobs.demo.collection import make_demo_collection

_ROWS, _QUICK_ROWS = 1_000_000, 100_000
_SAMPLE = 500  # rows whose values are compared with brute force
_SEEDS = 10  # of scikit-learn
_COLUMNS = (("outlier", 10), ("unique", 1))
_KINDS = {"outlier": ("--outlier",), "unique": ("--uniqueness",), "kind": ("--clusters", "auto")}


def errors(location: str) -> tuple[float, float]:
    """The shares of a sample whose `outlier` and `unique` differ from those of brute force by more than rounding."""
    segments = Searcher.open(Collection.open(location)).segments
    positions = np.random.default_rng(0).choice(segments.live_positions(), _SAMPLE, replace=False)
    queries, best = segments.vectors(positions), np.full((_SAMPLE, 0), -np.inf, np.float32)
    for block, vectors in segments.live_blocks():
        scores = np.where(positions[:, np.newaxis] == block, -np.inf, queries @ vectors.T)
        best = -np.sort(-np.concatenate([best, scores], axis=1), axis=1)[:, :10]
    rows = segments.rows(positions, ["outlier", "unique"])
    far = [np.abs(1 - best[:, :k].mean(axis=1) - [row[name] for row in rows]) > 2e-4 for name, k in _COLUMNS]
    return float(far[0].mean()), float(far[1].mean())


def sizes(location: str) -> tuple[int, float, float]:
    """The number of clusters, and the sizes of the smallest and the largest in relation to the mean."""
    segments = Searcher.open(Collection.open(location)).segments
    rows = segments.rows(segments.live_positions(), ["kind"])
    counts = np.unique([row["kind"] for row in rows], return_counts=True)[1]
    return len(counts), float(counts.min() / counts.mean()), float(counts.max() / counts.mean())


def agreement(folder: Path, report: Report) -> None:
    segments = Searcher.open(make_demo_collection(folder, count=2_000)).segments
    positions = segments.live_positions()
    vectors = segments.vectors(positions)
    labels = [Path(image_id).stem.split("-")[-2:] for image_id in segments.ids(positions)]
    truth = [" ".join(label) for label in labels]
    table: list[dict[str, Figure]] = []
    for count in (len(set(truth)), 31):
        ours = adjusted_mutual_info_score(truth, cluster(vectors, count)[1])
        theirs = [
            adjusted_mutual_info_score(truth, KMeans(count, random_state=seed).fit_predict(vectors))
            for seed in range(_SEEDS)
        ]
        mean, greatest = float(np.mean(theirs)), max(theirs)
        table.append({"clusters": count, "Likeness": ours, "scikit-learn, mean": mean, "its greatest": greatest})
        report.at_least(f"adjusted mutual information of {count} clusters, minus scikit-learn's", ours - mean, 0)
    report.table("adjusted mutual information with shape and colour", table)


def main(report: Report, folder: Path, options: Any) -> None:
    rows, location = _QUICK_ROWS if options.quick else options.rows, str(folder / "c")
    agreement(folder / "demo", report.about("demo"))
    about = report.about(f"{rows:,} × {DIM}")
    in_new_process(index_rows, location, range(rows))
    table: list[dict[str, Figure]] = []
    for when in ("first", "nothing new", "1% new"):
        if when == "1% new":
            in_new_process(index_rows, location, range(rows, rows + rows // 100))
        for name, flags in _KINDS.items():
            done = likeness("annotate", location, "--name", name, *flags)
            table.append({"column": name, "": when, "s": done.seconds, "MiB without mapped files": done.anonymous_mib})
            about.at_most(f"{name}, {when}: MiB without mapped files", done.anonymous_mib, 1_536)
            about.at_most(f"{name}, {when}: seconds", done.seconds, 300)
    about.table("likeness annotate", table)
    for name, share in zip(("outlier", "unique"), in_new_process(errors, location), strict=True):
        about.at_most(f"{name}: share of values that differ from brute force", share, 0.05)
    count, smallest, largest = in_new_process(sizes, location)
    about.values("clusters", {"number": count, "smallest ÷ mean": smallest, "largest ÷ mean": largest})
    about.at_most("clusters: largest ÷ mean", largest, 6)


if __name__ == "__main__":
    rows = {"--rows": {"type": int, "default": _ROWS, "help": "rows of the index"}}
    run("columns", __doc__, main, f"{_QUICK_ROWS:,} rows", rows)
