"""Image-to-text models: crops of pictures to captions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, LogitsProcessor, PreTrainedModel, ProcessorMixin

from embedder.errors import ModelError
from embedder.models.checkpoint import Checkpoint
from embedder.models.torch_loading import load_for_task, quiet_transformers

_FORWARD = 16  # crops


@dataclass(frozen=True)
class ImageCaptioner:
    """Any checkpoint of transformers for image-to-text with a processor, on one device. `load` makes one."""

    checkpoint: Checkpoint
    model: PreTrainedModel
    processor: ProcessorMixin
    prompt: str | None
    """What each text begins with, and the captions leave out; of a chat model, what it is asked."""

    @classmethod
    def load(cls, model: str, *, prompt: str | None, question: str, device: str | None = None) -> ImageCaptioner:
        """From a local folder or hub id; raises ModelNotFoundError or ModelError. A model that chats is asked the
        `question` where there is no `prompt`.
        """
        checkpoint = Checkpoint.find(model, task="captions")
        processor = _load_processor(checkpoint)
        if processor.chat_template:
            asked = {"type": "text", "text": prompt or question}
            chat: Any = [{"role": "user", "content": [{"type": "image"}, asked]}]
            prompt = str(processor.apply_chat_template(chat, add_generation_prompt=True))
        elif prompt and checkpoint.model_type == "git":  # its processor ends a prompt as it ends a caption
            raise ModelError(f"{checkpoint.model_id} is a GIT, which takes no prompt: leave it out")
        network = load_for_task(checkpoint, AutoModelForImageTextToText, device)
        settings: Any = network.generation_config
        settings.max_length = None  # the number of new tokens counts
        return cls(checkpoint, network, processor, prompt)

    def caption(self, pixels: NDArray[np.uint8], *, max_tokens: int) -> list[str]:
        """A caption for each of `(n, side, side, 3)` uint8 RGB: always the most likely next token, up to
        `max_tokens`. Raises ModelError.
        """
        first, captions = next(self.model.parameters()), list[str]()
        network: Any = self.model
        for start in range(0, len(pixels), _FORWARD):
            pictures = [Image.fromarray(each) for each in pixels[start : start + _FORWARD]]
            with quiet_transformers(), torch.inference_mode():
                texts = [self.prompt] * len(pictures) if self.prompt else None
                inputs: Any = self.processor(images=pictures, text=texts, return_tensors="pt", padding=True)
                found = network.generate(
                    **inputs.to(first.device, first.dtype),
                    do_sample=False,
                    num_beams=1,
                    max_new_tokens=max_tokens,
                    logits_processor=[_Numbers(self.checkpoint.model_id)],
                )
            # Some return what they were given with what they add.
            given = self._texts(inputs["input_ids"]) if self.prompt else [""] * len(pictures)
            captions += [
                text.removeprefix(begun).strip() for text, begun in zip(self._texts(found), given, strict=True)
            ]
        return captions

    def _texts(self, tokens: torch.Tensor) -> list[str]:
        processor: Any = self.processor
        texts = processor.post_process_image_text_to_text(tokens, skip_special_tokens=True)
        return [str(text).strip() for text in texts]


class _Numbers(LogitsProcessor):
    """Otherwise a model that overflows in 16 bits would say something all the same."""

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if bool(scores.isnan().any()):
            raise ModelError(f"{self._model_id} gave scores that are not numbers: try device cpu")
        return scores


def _load_processor(checkpoint: Checkpoint) -> ProcessorMixin:
    auto: Any = AutoProcessor
    try:
        with quiet_transformers():
            processor = auto.from_pretrained(checkpoint.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its parts come in as many formats as weights do
        raise ModelError(
            f"{checkpoint.model_id}: its processor does not load ({type(error).__name__}: {error}): expected the files "
            "of an image processor and a tokenizer beside the weights"
        ) from error
    if not isinstance(processor, ProcessorMixin):  # transformers returns the part that it finds
        raise ModelError(
            f"{checkpoint.model_id} has no processor of pictures and text, got {type(processor).__name__} alone: "
            "expected a checkpoint that AutoProcessor loads, such as those of BLIP, GIT and LLaVA"
        )
    return processor
