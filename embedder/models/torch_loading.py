"""Loads a checkpoint's model and tokenizer with torch and transformers."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from embedder.errors import ModelError, UnsupportedInputError
from embedder.freed_memory import keep_freed_memory
from embedder.machine import usable_cpus
from embedder.models.checkpoint import Checkpoint, Preprocessing
from embedder.models.families import FAMILIES

Tokens = dict[str, torch.Tensor]

_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")


def load_weights(checkpoint: Checkpoint, kind: Any = AutoModel) -> PreTrainedModel:
    """The model on the CPU, in eval mode and in the dtype of its weights; raises ModelError."""
    try:
        with quiet_transformers():
            model, report = kind.from_pretrained(
                checkpoint.folder,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # otherwise the error only points to a table in the log
                dtype="auto",
            )
    except Exception as error:  # each format of weights has its own errors
        raise ModelError(
            f"{checkpoint.model_id}: the weights in {_names(checkpoint.weights)} cannot be loaded "
            f"({type(error).__name__}: {error}): download or save the checkpoint again"
        ) from error
    # transformers fills missing weights with random numbers, and only warns.
    shapes = {key: f"{key} ({tuple(got)}, expected {tuple(ours)})" for key, got, ours in report["mismatched_keys"]}
    missing = sorted({*report["missing_keys"]} - shapes.keys()) + [shapes[key] for key in sorted(shapes)]
    if missing:
        raise ModelError(
            f"{checkpoint.model_id}: {_names(checkpoint.weights)} has no fitting weights for {missing[:3]}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}: it does not belong to the model in "
            "config.json"
        )
    return model.eval()  # type: ignore[no-any-return]


def load_for_task(checkpoint: Checkpoint, kind: Any, device: str | None) -> PreTrainedModel:
    """A model of one of transformers' classes for tasks, on a device and in its dtype; raises ModelError."""
    model = load_weights(checkpoint, kind)
    torch_device = pick_device(device)
    if torch_device.type == "cpu":
        keep_freed_memory()
        torch.set_num_threads(usable_cpus())  # Ray gives a worker one for each reserved CPU, see `ModelSource`
    model.to(device=torch_device, dtype=pick_dtype(torch_device))  # type: ignore[call-arg]
    return model


def pick_device(name: str | None) -> torch.device:
    """The requested device, else the best available one: cuda, mps, cpu. Raises ModelError."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"expected a device such as cuda, cuda:1, mps or cpu, got '{name}'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device '{name}' was requested, but torch {torch.__version__} sees no CUDA device")
    return device


def pick_dtype(device: torch.device, precision: str = "auto") -> torch.dtype:
    """The dtype for a precision; for auto bfloat16 on CUDA devices that support it, else float16; float32 on others."""
    if precision != "auto":
        return torch.float32 if precision == "fp32" else torch.bfloat16
    if device.type != "cuda":
        return torch.float32  # measured: bfloat16 is far slower on CPUs without AMX
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def load_tokenizer(checkpoint: Checkpoint, model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer, which pads and truncates as in the model's training.

    Raises UnsupportedInputError if texts cannot be embedded.
    """
    if not hasattr(model, "get_text_features"):
        raise UnsupportedInputError(
            f"{checkpoint.model_id} ({checkpoint.model_type}) knows pictures only: search by a picture, or "
            "embed the collection with a CLIP or SigLIP model"
        )
    # Without these files transformers makes an empty tokenizer, to which all words are the same.
    if not any((checkpoint.folder / name).is_file() for name in _VOCABULARIES):
        raise UnsupportedInputError(
            f"{checkpoint.model_id}: pictures can be embedded, but texts cannot, because there is no tokenizer: "
            f"expected one of {', '.join(_VOCABULARIES)} in {checkpoint.folder}"
        )
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each format of tokenizers has its own errors
        hint = "" if "entencepiece" not in str(error) else "; `pip install sentencepiece protobuf`"
        raise UnsupportedInputError(
            f"{checkpoint.model_id}: pictures can be embedded, but texts cannot, because the tokenizer does not "
            f"load ({type(error).__name__}: {str(error).strip().splitlines()[0]}){hint}"
        ) from error
    tokenizer.model_max_length = min(tokenizer.model_max_length, model.config.text_config.max_position_embeddings)
    tokenizer.padding_side = "right"
    return tokenizer


class PixelScale(nn.Module):
    """From crops, `(n, side, side, 3)` uint8, to a model's input: `(pixel · rescale − mean) / std` for each channel."""

    def __init__(self, settings: Preprocessing, device: torch.device | None = None) -> None:
        super().__init__()
        mean, std = torch.tensor(settings.mean, device=device), torch.tensor(settings.std, device=device)
        self._scale = (settings.rescale / std).view(1, 3, 1, 1)
        self._shift = (mean / std).view(1, 3, 1, 1)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        return crops.permute(0, 3, 1, 2).float() * self._scale - self._shift


def copy_to(device: torch.device, pixels: NDArray[np.uint8]) -> torch.Tensor:
    """A copy of crops on a device: torch warns about read-only arrays, such as those from Arrow. For a GPU they go
    through pinned memory, so that nobody waits until they have arrived.
    """
    crops = torch.empty(pixels.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
    crops.numpy()[:] = pixels
    return crops.to(device, non_blocking=device.type == "cuda")


def make_tokenize(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[str]], Tokens]:
    """A thread-safe function from texts to the text model's input."""
    pads = FAMILIES[checkpoint.model_type].pads_texts
    lock = threading.Lock()  # each call sets padding and truncation on a fast tokenizer

    def tokenize(texts: Sequence[str]) -> Tokens:
        with lock:
            return dict(
                tokenizer(
                    [text.lower() for text in texts] if pads else list(texts),
                    padding="max_length" if pads else "longest",
                    truncation=True,
                    return_attention_mask=not pads,
                    return_tensors="pt",
                )
            )

    return tokenize


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keeps transformers from logging and drawing progress bars: everything important raises an exception."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _names(files: Sequence[Path]) -> str:
    return ", ".join(file.name for file in files[:3]) + (" …" if len(files) > 3 else "")
