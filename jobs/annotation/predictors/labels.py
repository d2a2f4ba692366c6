"""Zero-shot labels: the text that is nearest to an image's stored vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from index.arrays import Vectors
from index.collection.live_rows import LiveRows
from index.collection.records.learned import Learned
from index.collection.records.model_record import ModelRecord
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.annotation_spec import NO_LABEL, AnnotationSpec
from jobs.embedding.model_source import Load
from jobs.indexing.query_texts import sample_vectors
from jobs.values import fingerprint_of

_VERSION = 2
"""Changes with what is learned, so that it is learned again."""
_UNRELATED = (
    *("airport", "apple", "baby", "beach", "bicycle", "bird", "boat", "book", "bottle", "bridge", "building", "bus"),
    *("cake", "camera", "car", "castle", "cat", "chair", "city", "clock", "cloud", "coin", "computer", "dog", "dress"),
    *("elephant", "fire", "fish", "flower", "forest", "guitar", "hand", "hat", "horse", "house", "kitchen", "lamp"),
    *("map", "mountain", "newspaper", "person", "phone", "plane", "river", "road", "shoe", "snow", "table", "train"),
)
"""Miscellaneous things: an image shows few of them, so nearly all pairs of an image and a thing are unrelated."""


Embed: TypeAlias = Callable[[Sequence[str]], Vectors]


def labels_recipe(spec: AnnotationSpec, model: ModelRecord, embed: Embed) -> Recipe:
    """The recipe for `Labels`; `embed` is a `text_embedding`."""
    parts = ["labels", _VERSION, model.fingerprint, *spec.labels, spec.template, spec.none_below]
    return Recipe(id="labels", fingerprint=fingerprint_of(parts), make=_labels, learn=partial(_learn, spec, embed))


def _learn(spec: AnnotationSpec, embed: Embed, live: LiveRows, _: object) -> Learned:
    """For each label the score below which an image gets none of them, the `none_below` quantile of unrelated pairs,
    and its text's vector. So the model is loaded once, and never by workers.
    """
    texts = embed([*spec.labels, *_UNRELATED])
    labels, unrelated = texts[: len(spec.labels)], texts[len(spec.labels) :]
    cut = np.quantile(sample_vectors(live) @ unrelated.T, spec.none_below)
    return Learned.of(spec.labels, np.insert(labels, 0, cut, axis=1))


def _labels(learned: Learned) -> Labels:
    return Labels(learned.names, learned.array[:, 1:], float(learned.array[0, 0]))


def text_embedding(spec: AnnotationSpec, model: ModelRecord, load: Load) -> Embed:
    """Returns the vectors, `(n, dim)` float32, unit norm, of texts in the annotation's template, by the collection's
    model, which it loads. ModelError if it cannot embed texts.
    """

    def embed(texts: Sequence[str]) -> Vectors:
        return load(model).embed_texts([spec.template.replace("{}", text) for text in texts])

    return embed


@dataclass(frozen=True)
class Labels:
    """The label with the nearest text, its cosine as `score`, and its lead over the second best as `margin` (over the
    cut if there is a single label). Below the cut the label is `NO_LABEL`, but score and margin stay those of the best.
    """

    labels: Sequence[str]
    texts: Vectors
    cut: float

    def __call__(self, batch: Batch) -> Columns:
        scores = batch["embedding"] @ self.texts.T
        columns, top = best_label(self.labels, scores, 4), scores.max(axis=1)
        if len(self.labels) == 1:
            columns["margin"] = np.round(top.astype(np.float64) - self.cut, 4)
        return {**columns, "": np.where(top < self.cut, NO_LABEL, columns[""])}


def best_label(labels: Sequence[str], scores: npt.NDArray[Any], digits: int) -> dict[str, npt.NDArray[Any]]:
    """The columns for `(n, labels)` scores, rounded to some digits: the label with the best, its `score`, and its lead
    over the next as `margin`, which is infinite for a single label.
    """
    rows, best = np.arange(len(scores)), scores.argmax(axis=1)
    top, others = scores[rows, best].astype(np.float64), scores.copy()
    others[rows, best] = -np.inf
    margin = np.round(top - others.max(axis=1), digits)
    return {"": np.array(labels, object)[best], "score": np.round(top, digits), "margin": margin}
