"""Image-to-text models: from crops of pictures to captions."""

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

_BATCH_SIZE = 16


@dataclass(frozen=True)
class ImageCaptioner:
    """Any image-to-text checkpoint of transformers that has a processor, on one device. Made by `load`."""

    checkpoint: Checkpoint
    model: PreTrainedModel
    processor: ProcessorMixin
    prompt: str | None
    """The start of each text, which is not part of the caption; for a chat model, the whole chat."""

    @classmethod
    def load(cls, model: str, *, prompt: str | None, question: str, device: str | None = None) -> ImageCaptioner:
        """From a local folder or hub id; raises ModelNotFoundError or ModelError. A chat model gets the `question` if
        there is no `prompt`.
        """
        checkpoint = Checkpoint.find(model, task="captions")
        processor = _load_processor(checkpoint)
        if processor.chat_template:
            text = {"type": "text", "text": prompt or question}
            chat: Any = [{"role": "user", "content": [{"type": "image"}, text]}]
            prompt = str(processor.apply_chat_template(chat, add_generation_prompt=True))
        elif prompt and checkpoint.model_type == "git":  # its processor ends a prompt like a caption
            raise ModelError(f"{checkpoint.model_id} is a GIT model, which takes no prompt: leave it out")
        network = load_for_task(checkpoint, AutoModelForImageTextToText, device)
        settings: Any = network.generation_config
        settings.max_length = None  # max_new_tokens is the limit
        return cls(checkpoint, network, processor, prompt)

    def caption(self, pixels: NDArray[np.uint8], *, max_tokens: int) -> list[str]:
        """A caption for each of `(n, side, side, 3)` uint8 RGB, by greedy decoding of up to `max_tokens` tokens.
        Raises ModelError.
        """
        weights, captions = next(self.model.parameters()), list[str]()
        network: Any = self.model
        for start in range(0, len(pixels), _BATCH_SIZE):
            pictures = [Image.fromarray(picture) for picture in pixels[start : start + _BATCH_SIZE]]
            with quiet_transformers(), torch.inference_mode():
                texts = [self.prompt] * len(pictures) if self.prompt else None
                inputs: Any = self.processor(images=pictures, text=texts, return_tensors="pt", padding=True)
                tokens = network.generate(
                    **inputs.to(weights.device, weights.dtype),
                    do_sample=False,
                    num_beams=1,
                    max_new_tokens=max_tokens,
                    logits_processor=[_RefuseNaN(self.checkpoint.model_id)],
                )
            # Some models return the prompt with the caption.
            prompts = self._decode(inputs["input_ids"]) if self.prompt else [""] * len(pictures)
            captions += [
                text.removeprefix(prompt).strip() for text, prompt in zip(self._decode(tokens), prompts, strict=True)
            ]
        return captions

    def _decode(self, tokens: torch.Tensor) -> list[str]:
        processor: Any = self.processor
        texts = processor.post_process_image_text_to_text(tokens, skip_special_tokens=True)
        return [str(text).strip() for text in texts]


class _RefuseNaN(LogitsProcessor):
    """A model that overflows in 16 bits would otherwise return meaningless captions."""

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
    except Exception as error:  # each format of its parts has its own errors
        raise ModelError(
            f"{checkpoint.model_id}: its processor does not load ({type(error).__name__}: {error}): expected the files "
            "of an image processor and a tokenizer beside the weights"
        ) from error
    if not isinstance(processor, ProcessorMixin):  # transformers returns the part that it finds
        raise ModelError(
            f"{checkpoint.model_id} has no processor of pictures and text, only {type(processor).__name__}: "
            "expected a checkpoint that AutoProcessor loads, such as those of BLIP, GIT and LLaVA"
        )
    return processor
