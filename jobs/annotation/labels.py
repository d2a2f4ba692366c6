"""Zero-shot labels: which of some texts is nearest to an image, by the vectors that the collection has of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from index.collection.records import ModelRecord
from jobs.annotation.predictor import Batch, Columns, Recipe, fingerprint_of
from jobs.embedding.model_source import load_recorded
from jobs.spec import NO_LABEL, AnnotationSpec

_CUT = "cut"
_UNRELATED = (
    *("airport", "apple", "baby", "beach", "bicycle", "bird", "boat", "book", "bottle", "bridge", "building", "bus"),
    *("cake", "camera", "car", "castle", "cat", "chair", "city", "clock", "cloud", "coin", "computer", "dog", "dress"),
    *("elephant", "fire", "fish", "flower", "forest", "guitar", "hand", "hat", "horse", "house", "kitchen", "lamp"),
    *("map", "mountain", "newspaper", "person", "phone", "plane", "river", "road", "shoe", "snow", "table", "train"),
)
"""Things of all kinds: an image shows a few of them at most, so that nearly all pairs with images are at random."""


def labels_recipe(spec: AnnotationSpec, model: ModelRecord, *, device: str | None, embedder: str | None) -> Recipe:
    """Of `Labels`, with texts in the collection's model, which `embedder` names where it is a class.

    Its predictor raises ModelError when the model has no text side.
    """
    load = cache(partial(load_recorded, model, embedder=embedder, device=device))

    def vectors(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return load().embed_texts([spec.template.replace("{}", text) for text in texts])

    def calibrate(sample: npt.NDArray[np.float32]) -> dict[str, float]:
        """The score below which an image has none of the labels: that of a `none_below` of random image/text pairs."""
        return {_CUT: float(np.quantile(sample @ vectors(_UNRELATED).T, spec.none_below))}

    def make(calibration: Mapping[str, float]) -> Labels:
        return Labels(spec.labels, vectors(spec.labels), calibration[_CUT])

    about = [model.fingerprint, *spec.labels, spec.template, spec.none_below]
    return Recipe(id="labels", fingerprint=fingerprint_of(about), needs="embedding", make=make, calibrate=calibrate)


@dataclass(frozen=True)
class Labels:
    """The label whose text is nearest, its cosine as `score`, and the distance to the next one's as `margin` (that of a
    single label is to the cut). Below the cut the label is `NO_LABEL`; score and margin are those of the nearest still.
    """

    labels: Sequence[str]
    texts: npt.NDArray[np.float32]
    cut: float

    def __call__(self, batch: Batch) -> Columns:
        scores = batch["embedding"] @ self.texts.T
        rows, best = np.arange(len(scores)), scores.argmax(axis=1)
        top = scores[rows, best]
        others = scores.copy()
        others[rows, best] = -np.inf
        second = others.max(axis=1) if len(self.labels) > 1 else np.float32(self.cut)
        names = np.array([*self.labels, NO_LABEL], object)
        return {
            "": names[np.where(top < self.cut, len(self.labels), best)],
            "score": np.round(top.astype(np.float64), 4),
            "margin": np.round((top - second).astype(np.float64), 4),
        }
