"""Few-shot labels: heads that are trained once on judged images, and label all others by their stored vectors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.live_rows import LiveRows
from index.collection.records.learned import Learned
from index.collection.records.model_record import ModelRecord
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.annotation.predictors.labels import best_label
from jobs.annotation.predictors.logistic import sigmoid, train_head
from jobs.annotation_spec import AnnotationSpec
from jobs.errors import UsageError
from jobs.indexing.query_texts import sample_vectors, stored_vectors
from jobs.sources.listing import as_text
from jobs.sources.text_encoding import as_utf8
from jobs.sources.text_lists import read_csv, read_json
from jobs.values import counted, fingerprint_of

logger = logging.getLogger(__name__)

_VERSION = 1
"""Changes with whatever affects the columns beside the examples, so that the heads are trained again."""
_ID, _LABEL = "image_id", "label"
_LIKE, _UNLIKE = "like", "unlike"
_MARKS = {_LIKE: _LIKE, "1": _LIKE, "true": _LIKE, _UNLIKE: _UNLIKE, "0": _UNLIKE, "false": _UNLIKE}
_MIN_EXAMPLES = 2
_SAMPLED = 4
"""Of how many vectors of the sample one is in the background: about a thousand are plenty."""


def examples_recipe(spec: AnnotationSpec, model: ModelRecord) -> Recipe:
    """The recipe for `LearnedLabels`, trained on the first run and kept with it. UsageError for invalid examples."""
    examples = read_examples(spec.examples)

    def learn(live: LiveRows, _: object) -> Learned:
        return train_heads(examples, live)

    def make(heads: Learned) -> LearnedLabels:
        return LearnedLabels(heads.names, heads.array[:, 1:], heads.array[:, 0], examples.keys())

    fingerprint = fingerprint_of([_VERSION, model.fingerprint, sorted(examples.items())])
    return Recipe(id="examples", fingerprint=fingerprint, make=make, learn=learn)


@dataclass(frozen=True)
class LearnedLabels:
    """Heads with `(labels, dim)` weights and `(labels,)` biases. For a single one, the probability of its label; for
    several the likeliest label and its probability as `score`. `margin` is the lead of the likelier answer over the
    next: where it is least, another example helps most. It is null for the images in `examples`.
    """

    labels: Sequence[str]
    weights: npt.NDArray[np.float32]
    biases: npt.NDArray[np.float32]
    examples: AbstractSet[str]

    def __call__(self, batch: Batch) -> Columns:
        chances = sigmoid((batch["embedding"] @ self.weights.T + self.biases).astype(np.float64))
        columns = {"": np.round(chances[:, 0], 6), "margin": np.round(np.abs(2 * chances[:, 0] - 1), 6)}
        if len(self.labels) > 1:
            columns = best_label(self.labels, chances / chances.sum(axis=1, keepdims=True), 6)
        judged = np.array([image_id in self.examples for image_id in batch["image_id"]])
        return {**columns, "margin": pa.array(columns["margin"], mask=judged)}


def train_heads(examples: Mapping[str, str], live: LiveRows) -> Learned:
    """Bias and weights of the head of each label, by label: of `like` alone, if the others are unlike.

    Raises UsageError if fewer than two of a label's examples are in the collection, or there is only one label.
    """
    found = stored_vectors(live, examples)
    missing = sorted(examples.keys() - found.keys())
    if missing:
        there = f"{len(missing)} of {counted(len(examples), 'example')} are not in the collection, such as {missing[0]}"
    labels: npt.NDArray[Any] = np.array([examples[image_id] for image_id in found])
    counts = {label: int(np.sum(labels == label)) for label in sorted({*examples.values()})}
    if len(counts) < 2 or min(counts.values()) < _MIN_EXAMPLES:
        shown = ", ".join(f"{count} of {label}" for label, count in counts.items()) or "none"
        raise UsageError(
            f"expected at least {_MIN_EXAMPLES} examples each of two or more labels, got {shown}"
            + (f"; {there}: expected ids as `likeness search` shows them" if missing else "")
        )
    if missing:
        logger.warning("%s: the labels are learned from the others", there)
    vectors, background = np.stack([*found.values()]), sample_vectors(live)[::_SAMPLED]
    heads: dict[str, npt.NDArray[np.float32]] = {}
    for label in [_LIKE] if counts.keys() == {_LIKE, _UNLIKE} else counts:
        weights, bias = train_head(vectors, labels == label, background)
        heads[label] = np.array([bias, *weights], np.float32)
    return Learned.of([*heads], np.stack([*heads.values()]))


def read_examples(paths: Sequence[str]) -> dict[str, str]:
    """The label of each image in some files, by its id; if all are marks, `like` or `unlike`.

    Raises UsageError for a file that is no list of examples, and for an image with two labels.
    """
    rows = [(*row, path) for path in paths for row in _read(path)]
    if all(label.lower() in _MARKS for _, label, _ in rows):
        rows = [(image_id, _MARKS[label.lower()], path) for image_id, label, path in rows]
    labels: dict[str, tuple[str, str]] = {}
    for image_id, label, path in rows:
        other, there = labels.setdefault(image_id, (label, path))
        if other != label:
            raise UsageError(
                f"--examples has {image_id} as {other} in {there} and as {label} in {path}: expected one label for "
                "each image, so remove the wrong one"
            )
    return {image_id: label for image_id, (label, _) in labels.items()}


def _read(path: str) -> Iterator[tuple[str, str]]:
    """The id and label in each row of a file."""
    bad: dict[int, str] = {}
    expected = f"a list in CSV or JSON lines with the columns {_ID} and {_LABEL}"
    try:
        data, _ = as_utf8(Path(path).expanduser().read_bytes(), path)
        is_csv = Path(path).suffix.lower() in (".csv", ".tsv", ".txt")
        table = read_csv(data, [_ID], bad) if is_csv else read_json(data, {_ID, _LABEL}, bad)
    except (OSError, RuntimeError, pa.ArrowException) as error:  # RuntimeError: there is no such ~user
        raise UsageError(f"--examples is {path}: expected {expected} ({error})") from error
    absent = [name for name in (_ID, _LABEL) if name not in table.column_names]
    if absent:
        raise UsageError(
            f"--examples is {path}, which has no column {' and none '.join(absent)}: expected {expected}; its columns "
            f"are {', '.join(table.column_names) or 'none'}"
        )
    if bad:
        line, problem = next(iter(bad.items()))
        raise UsageError(f"--examples is {path}, line {line}: {problem}")
    columns: list[Any] = [as_text(table[name]).to_pylist() for name in (_ID, _LABEL)]
    for number, (image_id, label) in enumerate(zip(*columns, strict=True), start=1):
        if not image_id or (label or "").strip() in ("", "NaN", "nan"):  # as Python and pandas write a missing value
            raise UsageError(
                f"--examples is {path}: example {number} has no {_LABEL if image_id else _ID}: expected {expected}"
            )
        yield image_id, label.strip()
