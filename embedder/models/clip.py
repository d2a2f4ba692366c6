"""CLIP-family models: from crops of pictures, or texts, to unit vectors."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from embedder.errors import ModelError
from embedder.freed_memory import keep_freed_memory
from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.models.torch_loading import (
    PixelScale,
    Tokens,
    copy_to,
    load_tokenizer,
    load_weights,
    make_tokenize,
    pick_device,
    pick_dtype,
)
from embedder.protocol import require_crops, require_texts, unit_vectors

logger = logging.getLogger(__name__)


class ClipEmbedder:
    """A CLIP, SigLIP, fixed-resolution SigLIP 2 or (pictures only) DINOv2 model on one device.

    Made by `load`. Several threads may embed at once. `model` is the transformers model, in eval mode.
    """

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, batch_size: int) -> None:
        self.model = model
        self._checkpoint = checkpoint
        self.identity = checkpoint.identity
        self.crop: CropSpec = checkpoint.crop
        self.batch_size = batch_size
        self._device = next(model.parameters()).device
        self._dtype = next(model.parameters()).dtype
        self._scaled = PixelScale(checkpoint.preprocessing, self._device)

    @classmethod
    def load(
        cls,
        model: str | Checkpoint,
        *,
        device: str | None = None,
        precision: str = "auto",
        batch_size: int = 64,
        threads: int | None = None,
    ) -> "ClipEmbedder":
        """Load a checkpoint, or one from a local folder or hub id; raises ModelNotFoundError or ModelError.

        `device` is cuda, mps or cpu (by default the first available), `precision` auto, fp32 or bf16. `batch_size`
        limits a forward pass and is halved when a CUDA device runs out of memory. `threads` sets torch's CPU threads
        for the whole process.
        """
        torch_device = pick_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        if torch_device.type == "cpu":
            keep_freed_memory()
        # In a thread that ends, because libgomp keeps a team of threads for each thread that has computed. If there are
        # more threads than cores, they sleep after each loop, 500 times in a pass of ViT-B/32: a sixth more time.
        with ThreadPoolExecutor(1, "likeness-load") as thread:
            checkpoint = Checkpoint.find(model) if isinstance(model, str) else model
            dtype = pick_dtype(torch_device, precision)
            return thread.submit(cls._load, checkpoint, torch_device, dtype, batch_size).result()

    @classmethod
    def _load(cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, batch_size: int) -> "ClipEmbedder":
        network = load_weights(checkpoint)
        try:
            network.to(device=device, dtype=dtype)  # type: ignore[call-arg]
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"{checkpoint.model_id} does not fit in the memory of {device}: free some, or use a CPU"
            ) from error
        _require_fit(checkpoint, network)
        return cls(checkpoint, network, batch_size)

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 RGB to `(n, dim)` float32, unit norm. Raises ModelError."""
        require_crops(pixels, self.crop)

        def forward(start: int, stop: int) -> torch.Tensor:
            crops = copy_to(self._device, pixels[start:stop])
            return image_features(self.model, self._scaled(crops).to(self._dtype))

        return self._embed(len(pixels), forward)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`(n, dim)` float32, unit norm; texts are truncated to the model's maximum length.

        Raises UnsupportedInputError if the model or its checkpoint has no text side.
        """
        require_texts(texts)

        def forward(start: int, stop: int) -> torch.Tensor:
            tokens = {key: ids.to(self._device) for key, ids in self._tokenize(texts[start:stop]).items()}
            return self.model.get_text_features(**tokens).pooler_output  # type: ignore[no-any-return, operator]

        return self._embed(len(texts), forward)

    @cached_property
    def _tokenize(self) -> Callable[[Sequence[str]], Tokens]:
        """Loaded for the first texts: pictures can be embedded without it. Raises UnsupportedInputError."""
        return make_tokenize(self._checkpoint, load_tokenizer(self._checkpoint, self.model))

    @torch.inference_mode()
    def _embed(self, count: int, forward: Callable[[int, int], torch.Tensor]) -> NDArray[np.float32]:
        """Run `forward(start, stop)` over `count` rows in batches, and normalise the results."""
        # They stay on the device until the end: a GPU computes a batch while the next one is prepared.
        parts, start = [torch.empty((0, self.identity.dim), device=self._device)], 0
        while start < count:
            # Batches of about the same size, because a small rest would be rounded differently.
            remaining = count - start
            stop = start + ceil(remaining / ceil(remaining / self.batch_size))
            try:
                parts.append(forward(start, stop).float())
            except torch.OutOfMemoryError as error:
                self._halve(stop - start, error)
                continue
            start = stop
        vectors = torch.cat(parts).cpu().numpy()
        advice = f"in {self._dtype}: try device cpu, which computes in float32"
        return unit_vectors(vectors, self.identity.model_id, advice)

    def _halve(self, failed: int, error: torch.OutOfMemoryError) -> None:
        """Sets the batch size to half of the one that did not fit; raises ModelError if that was a single input."""
        if failed == 1:
            raise ModelError(
                f"{self._device} has no memory left for a single input of {self.identity.model_id}: stop "
                "other programs that use it, give each actor more of a GPU, or use a smaller model or a CPU"
            ) from error
        self.batch_size = min(self.batch_size, failed // 2)
        logger.warning("out of memory with a batch of %d, continuing with %d", failed, self.batch_size)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def image_features(model: PreTrainedModel, inputs: torch.Tensor) -> torch.Tensor:
    """`(n, dim)`, not normalised: the projected output of a two-tower model, else the pooled class token."""
    encode = getattr(model, "get_image_features", model)
    return encode(pixel_values=inputs).pooler_output  # type: ignore[no-any-return]


@torch.inference_mode()
def _require_fit(checkpoint: Checkpoint, model: PreTrainedModel) -> None:
    """Raises ModelError if the model does not take its image processor's crops, or its vectors have another length."""
    side, dim = checkpoint.crop.side, checkpoint.identity.dim
    blank = next(model.parameters()).new_zeros(1, 3, side, side)
    try:
        got = image_features(model, blank).shape[1]
        if got != dim:
            raise ValueError(f"vectors of {got} dimensions, config.json says {dim}")
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"{checkpoint.model_id} does not take the crops of {side} × {side} pixels that its image "
            f"processor makes ({error}): the settings belong to another model"
        ) from error
