"""Image-classification models: crops of pictures to classes with confidences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageClassification, PreTrainedModel

from embedder.errors import ModelError
from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.models.torch_loading import load_for_task

_FORWARD = 32  # crops


@dataclass(frozen=True)
class ImageClassifier:
    """Any checkpoint of transformers for image classification, on one device. `load` makes one."""

    checkpoint: Checkpoint
    model: PreTrainedModel

    @classmethod
    def load(cls, model: str, *, device: str | None = None) -> ImageClassifier:
        """From a local folder or hub id; raises ModelNotFoundError or ModelError."""
        checkpoint = Checkpoint.find(model, task="image classification")
        return cls(checkpoint, load_for_task(checkpoint, AutoModelForImageClassification, device))

    @property
    def crop(self) -> CropSpec:
        return self.checkpoint.preprocessing.crop

    @torch.inference_mode()
    def classify(self, pixels: NDArray[np.uint8], k: int) -> tuple[list[list[str]], NDArray[np.float32]]:
        """`(n, side, side, 3)` uint8 RGB to the k most likely classes of each, best first, and their confidences,
        `(n, k)`, which are 1 together for all classes unless the model may say several. Fewer if it has fewer than k.
        """
        names: Any = self.model.config.id2label
        settings = self.checkpoint.preprocessing
        first = next(self.model.parameters())
        mean, std = (torch.tensor(each, device=first.device).view(1, 3, 1, 1) for each in (settings.mean, settings.std))
        several = self.model.config.problem_type == "multi_label_classification"
        classes: list[list[str]] = []
        scores: list[NDArray[np.float32]] = []
        for start in range(0, len(pixels), _FORWARD):
            # Copied, because torch warns of read-only arrays, such as those from Arrow.
            crops = torch.from_numpy(pixels[start : start + _FORWARD].copy()).to(first.device).permute(0, 3, 1, 2)
            inputs = (crops * settings.rescale - mean) / std
            logits = self.model(pixel_values=inputs.to(first.dtype)).logits.float()
            likely = logits.sigmoid() if several else logits.softmax(dim=-1)
            top = likely.topk(min(k, likely.shape[1]), dim=-1)
            if not bool(torch.isfinite(top.values).all()):
                raise ModelError(f"{self.checkpoint.model_id} gave confidences that are not finite: try device cpu")
            classes += [[str(names[each]) for each in row] for row in top.indices.tolist()]
            scores.append(top.values.cpu().numpy())
        return classes, np.concatenate(scores)
