"""Loads a model: on a GPU by torch, on CPUs by ONNX Runtime, which needs neither torch nor transformers."""

import logging
import sys
from pathlib import Path
from typing import Final

from embedder.errors import ModelError
from embedder.identity import Precision
from embedder.models.checkpoint import Checkpoint
from embedder.models.converted import ConvertedEmbedder, converted
from embedder.models.own import OwnModel
from embedder.protocol import Embedder
from embedder.python_class import PythonClass, is_class_name

_ACCELERATORS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel", "/dev/dxg")

logger = logging.getLogger(__name__)


def find_model(model: str, revision: str | None = None, *, embedder: str | None = None) -> Checkpoint | OwnModel:
    """A checkpoint, or the class `embedder` that somebody has named; neither is loaded. Raises ModelError.

    A `model` that a collection names may be a class too, and a collection may come from anybody: its code runs only if
    the user names it.
    """
    if embedder is not None:
        found = OwnModel(PythonClass.in_working_directory(embedder))
        _ = found.identity  # now, and not when it is first needed, so that a mistake is known at once
        return found
    if is_class_name(model):
        raise ModelError(
            f"{model} is a class of Python, and its code runs only if you name it: give `--embedder {model}`, in a "
            f'job\'s file `embedder: "{model}"`, for a server also LIKENESS_EMBEDDER, in Python embedder="{model}"'
        )
    return Checkpoint.find(model, revision)


def load_embedder(
    model: str | Checkpoint,
    *,
    revision: str | None = None,
    device: str | None = None,
    precision: Precision = "auto",
    batch_size: int = 64,
    threads: int | None = None,
    convert: bool = True,
) -> Embedder:
    """Load a checkpoint by local folder or hub id, or one that is found; raises ModelNotFoundError or ModelError.

    `device` is cuda, mps or cpu (by default the first there is), `batch_size` bounds a forward pass, `threads` are the
    CPU's. Without `convert` a checkpoint that was not converted on this machine yet is loaded by torch: converting
    takes as long as some hundred pictures, once.
    """
    if precision == "int8" and device not in (None, "cpu"):
        raise ModelError(f"int8 is for CPUs, and device is {device}: expected precision auto, fp32 or bf16")
    on_cpu = device == "cpu" or precision == "int8" or (device is None and not _may_have_accelerator())
    if on_cpu and precision in ("auto", "int8"):
        if batch_size < 1 or (threads is not None and threads < 1):
            raise ModelError(f"expected a batch size and threads of at least 1, got {batch_size} and {threads}")
        model = Checkpoint.find(model, revision) if isinstance(model, str) else model  # once: its identity is a hash
        try:
            if folder := converted(model, precision, make=convert or precision == "int8"):
                return ConvertedEmbedder(model, folder, batch_size, threads)
        except ModelError as error:
            if precision == "int8":
                raise
            logger.warning("%s; continuing with torch", error)
    from embedder.models.clip import ClipEmbedder  # torch and transformers take seconds

    return ClipEmbedder.load(
        model, revision=revision, device=device, precision=precision, batch_size=batch_size, threads=threads
    )


def _may_have_accelerator() -> bool:
    """Whether torch must be asked: it takes seconds to say that a plain Linux machine has none."""
    return sys.platform != "linux" or any(Path(path).exists() for path in _ACCELERATORS)
