"""Zero-shot labels: which of some texts is nearest to an image, by the vectors that the collection has of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from embedder.protocol import Embedder
from index.collection.records import ModelRecord
from jobs.annotation.predictor import Batch, Columns, Recipe, fingerprint_of
from jobs.embedding.model_source import load_recorded
from jobs.spec import NONE

_CUT = "cut"
_UNRELATED = (
    *("airport", "apple", "baby", "beach", "bicycle", "bird", "boat", "book", "bottle", "bridge", "building", "bus"),
    *("cake", "camera", "car", "castle", "cat", "chair", "city", "clock", "cloud", "coin", "computer", "dog", "dress"),
    *("elephant", "fire", "fish", "flower", "forest", "guitar", "hand", "hat", "horse", "house", "kitchen", "lamp"),
    *("map", "mountain", "newspaper", "person", "phone", "plane", "river", "road", "shoe", "snow", "table", "train"),
)
"""Things of all kinds: an image shows a few of them at most, so that nearly all pairs with images are at random."""


@dataclass(frozen=True, kw_only=True)
class LabelTexts:
    """The texts of labels, each set into `template`, in the collection's model. `none_below` is a share, 0 … 1.

    `embedder` names the model where it is a class.
    """

    labels: Sequence[str]
    template: str
    none_below: float
    model: ModelRecord
    device: str | None = None
    embedder: str | None = None

    @property
    def recipe(self) -> Recipe:
        """Of `Labels`."""
        about = [self.model.fingerprint, *self.labels, self.template, self.none_below]
        return Recipe(
            id="labels",
            fingerprint=fingerprint_of(about),
            needs="embedding",
            make=partial(_labels, self),
            calibrate=self.calibrate,
        )

    def calibrate(self, sample: npt.NDArray[np.float32]) -> dict[str, float]:
        """The score below which an image has none of the labels: that of a `none_below` of random image/text pairs."""
        scores = sample @ self.vectors(_UNRELATED).T
        return {_CUT: float(np.quantile(scores, self.none_below))}

    def vectors(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """`(n, dim)` float32, unit norm. ModelError when the model has no text side."""
        return self._embedder.embed_texts([self.template.replace("{}", text) for text in texts])

    @cached_property
    def _embedder(self) -> Embedder:
        return load_recorded(self.model, embedder=self.embedder, device=self.device)


@dataclass(frozen=True)
class Labels:
    """The label whose text is nearest, its cosine as `score`, and the distance to the next one's as `margin` (that of a
    single label is to the cut). Below the cut the label is `NONE`; score and margin are those of the nearest still.
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
        names = np.array([*self.labels, NONE], object)
        return {
            "": names[np.where(top < self.cut, len(self.labels), best)],
            "score": np.round(top.astype(np.float64), 4),
            "margin": np.round((top - second).astype(np.float64), 4),
        }


def _labels(texts: LabelTexts, calibration: Mapping[str, float]) -> Labels:
    return Labels(texts.labels, texts.vectors(texts.labels), calibration[_CUT])
