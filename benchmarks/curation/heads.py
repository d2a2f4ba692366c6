"""Few-shot labels: `python -m benchmarks.curation.heads [--quick]`.

Clicks on the demo's pictures, as somebody makes who looks for shapes, patterns and colours: 10 on those nearest to one
picture, then the 5 most useful ones, twice. The head that they train is compared with one trained on the labels of all
pictures, by its average precision on others. Then stored vectors are scored anew, after another click.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.annotate import Hashed, annotate
from benchmarks.common.clustered import GROUPS, Clustered, index_rows
from benchmarks.common.process import in_new_process, peak_rss, seconds_of, spent
from benchmarks.common.report import Report, run
from index.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.rows import EMBEDDING, vectors_of
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.annotation.predictors.logistic import sigmoid, train_head
from jobs.annotation.recipes import recipe_of
from jobs.demo.collection import make_demo_collection
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES
from jobs.spec import AnnotationSpec

Vectors = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

CLICKS, _FIRST, _ROUND = 20, 10, 5
_STARTS = 5
_BLOCK = 16_384


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


def few_and_all(vectors: Vectors, wanted: Mask, starts: int = _STARTS) -> dict[str, float]:
    """Average precision on half of the pictures of heads trained on clicks in the other half, and on all of that."""
    random = np.random.default_rng(1)
    known, others = np.split(random.permutation(len(vectors)), [len(vectors) // 2])
    known_vectors, known_wanted = vectors[known], wanted[known]

    def precision(examples: Any) -> float:
        weights, _ = train_head(known_vectors[examples], known_wanted[examples], known_vectors)
        return average_precision(wanted[others], vectors[others] @ weights)

    first = random.choice(np.flatnonzero(known_wanted), starts)
    chance = [
        np.concatenate(
            [random.choice(np.flatnonzero(known_wanted == kind), CLICKS // 2, False) for kind in (True, False)]
        )
        for _ in first
    ]
    return {
        f"{CLICKS} clicks": float(np.mean([precision(click(known_vectors, known_wanted, each)) for each in first])),
        f"{CLICKS} at random": float(np.mean([precision(each) for each in chance])),
        "all": precision(np.arange(len(known))),
    }


def demo(folder: Path, pictures: int) -> dict[str, dict[str, float]]:
    rows = make_demo_collection(folder, count=pictures).live_rows()
    rows = rows.filter(rows[EMBEDDING].is_valid())
    vectors = vectors_of(rows[EMBEDDING])
    ids = list(map(str, rows["image_id"].to_pylist()))
    return {name: few_and_all(vectors, wanted) for name, wanted in concepts(ids).items()}


def judge(rows: Mapping[str, Mapping[str, float]], report: Report) -> None:
    report.table("average precision on the demo", [{"": name, **figures} for name, figures in rows.items()])
    ratios = [figures[f"{CLICKS} clicks"] / figures["all"] for figures in rows.values()]
    report.values(f"{CLICKS} clicks ÷ all", {"mean": float(np.mean(ratios)), "least": min(ratios)})
    report.at_least(f"{CLICKS} clicks ÷ all: mean", float(np.mean(ratios)), 0.95)


def write_examples(path: Path, count: int) -> None:
    """Judgements whether clustered vectors are in the first half of the clusters."""
    clusters = np.asarray(Clustered().table(0, count)["cluster"])
    lines = [{"image_id": str(row), "label": int(cluster < GROUPS // 2)} for row, cluster in enumerate(clusters)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def rescore(location: str, examples: str) -> dict[str, float]:
    """Seconds to score all rows anew, to the live version; of these, seconds to train the head and in the head; and
    seconds of CPU time.
    """
    parts = dict.fromkeys(("train", "score"), 0.0)

    def timed(name: str, work: Callable[..., Any], *arguments: Any) -> Any:
        result, seconds, _ = spent(partial(work, *arguments))
        parts[name] += seconds
        return result

    def recipe(*arguments: Any) -> Recipe:
        made = recipe_of(*arguments)
        assert made.learn is not None

        def make_timed(heads: Any) -> Callable[[Batch], Columns]:
            return partial(timed, "score", made.make(heads))

        return replace(made, make=make_timed, learn=partial(timed, "train", made.learn))

    spec = AnnotationSpec(name="like", examples=(examples,))
    _, seconds, cpu = spent(partial(annotate, location, spec, recipe))
    return {"all": seconds, "cpu": cpu, **parts, "peak": peak_rss()}


def read_vectors(location: str) -> float:
    """Seconds to read all vectors from the rows, as an annotation does."""
    live = Collection.open(location).snapshot().live
    seqs = np.asarray(live.catalog.table(f"SELECT seq FROM {live.sql} ORDER BY seq")["seq"], np.int64)

    def read() -> None:
        for start in range(0, len(seqs), _BLOCK):
            LiveRows.at(live.catalog, seqs[start : start + _BLOCK]).read(["image_id", "content_hash", EMBEDDING])

    return seconds_of(read)


def million(folder: Path, rows: int, report: Report) -> None:
    location, examples = str(folder / "million"), folder / "examples.jsonl"
    in_new_process(index_rows, location, range(rows), Hashed())
    for count in (20, 21):  # the second time, all rows have the column already
        write_examples(examples, count)
        seconds = in_new_process(rescore, location, str(examples))
    reading = in_new_process(read_vectors, location)
    report.values(
        f"another head for {rows:,} rows",
        {
            "seconds": seconds["all"],
            "seconds of CPU time": seconds["cpu"],
            "of these to train it": seconds["train"],
            "of these to score": seconds["score"],
            "seconds to read the vectors alone": reading,
            "peak memory, GB": seconds["peak"] / 1e9,
        },
    )
    report.at_most("another head: seconds to score", seconds["score"], 5)
    report.at_most("another head: peak memory, GB", seconds["peak"] / 1e9, 1.5)


def main(report: Report, folder: Path, options: Any) -> None:
    judge(demo(folder / "demo", 600 if options.quick else 2_000), report)
    million(folder, 50_000 if options.quick else 1_000_000, report)


if __name__ == "__main__":
    run("heads", __doc__, main, "fewer pictures and rows")
