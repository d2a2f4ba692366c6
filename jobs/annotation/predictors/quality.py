"""The predictor of `likeness annotate --quality`."""

from __future__ import annotations

from typing import ClassVar

from embedder.images.quality import MEASURED_CROP, measure
from jobs.annotation.predictor import Batch, Columns, Needs


class Quality:
    """A column for each of `embedder.images.quality.MEASURES`."""

    needs: ClassVar[Needs] = "image"
    side: ClassVar[int] = MEASURED_CROP.side
    version: ClassVar[str] = "1"

    def __call__(self, batch: Batch) -> Columns:
        measured = [measure(image) for image in batch["image"]]
        return {name: [each[name] for each in measured] for name in measured[0]}
