"""Image-classification models: from crops of pictures to classes with confidences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageClassification, PreTrainedModel

from embedder.errors import ModelError
from embedder.models.checkpoint import Checkpoint
from embedder.models.torch_loading import PixelScale, copy_to, load_for_task

_BATCH_SIZE = 32


@dataclass(frozen=True)
class ImageClassifier:
    """Any image-classification checkpoint of transformers, on one device. Made by `load`."""

    checkpoint: Checkpoint
    model: PreTrainedModel

    @classmethod
    def load(cls, model: str, *, device: str | None = None) -> ImageClassifier:
        """From a local folder or hub id; raises ModelNotFoundError or ModelError."""
        checkpoint = Checkpoint.find(model, task="image classification")
        return cls(checkpoint, load_for_task(checkpoint, AutoModelForImageClassification, device))

    @torch.inference_mode()
    def classify(self, pixels: NDArray[np.uint8], k: int) -> tuple[list[list[str]], NDArray[np.float32]]:
        """`(n, side, side, 3)` uint8 RGB to the k most likely classes of each, best first, and their confidences,
        `(n, k)`; fewer if the model has fewer than k. Confidences of all classes sum to 1, except for a multi-label
        model. Raises ModelError.
        """
        names: Any = self.model.config.id2label
        weights = next(self.model.parameters())
        scaled = PixelScale(self.checkpoint.preprocessing, weights.device)
        is_multi_label = self.model.config.problem_type == "multi_label_classification"
        classes: list[list[str]] = []
        scores: list[NDArray[np.float32]] = []
        for start in range(0, len(pixels), _BATCH_SIZE):
            crops = copy_to(weights.device, pixels[start : start + _BATCH_SIZE])
            logits = self.model(pixel_values=scaled(crops).to(weights.dtype)).logits.float()
            confidences = logits.sigmoid() if is_multi_label else logits.softmax(dim=-1)
            top = confidences.topk(min(k, confidences.shape[1]), dim=-1)
            if not bool(torch.isfinite(top.values).all()):
                raise ModelError(f"{self.checkpoint.model_id} gave confidences that are not finite: try device cpu")
            classes += [[str(names[index]) for index in row] for row in top.indices.tolist()]
            scores.append(top.values.cpu().numpy())
        return classes, np.concatenate(scores)
