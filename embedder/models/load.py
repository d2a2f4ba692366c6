"""Loads a model: with torch on a GPU, with OpenVINO on CPUs, which needs neither torch nor transformers."""

import logging
import sys
from collections.abc import Container
from pathlib import Path
from typing import Final

from embedder.errors import ModelError, ModelNotFoundError
from embedder.identity import Precision
from embedder.machine import cpu_quota
from embedder.models.checkpoint import Checkpoint
from embedder.models.converted import ConvertedEmbedder, conversion_folder
from embedder.models.own_embedder import OwnEmbedder, OwnModel
from embedder.protocol import Embedder
from embedder.python_class import PythonClass, is_class_name

_ACCELERATORS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel", "/dev/dxg")

logger = logging.getLogger(__name__)


def find_model(
    model: str, revision: str | None = None, *, allowed: Container[str | None] = ()
) -> Checkpoint | OwnModel:
    """A checkpoint, or a class that is one of `allowed`; neither is loaded. Raises ModelError.

    A `model` that a collection names may be a class too, but a collection may come from anyone, so the class is only
    imported if the user has named it.
    """
    if model in allowed:
        own = OwnModel(PythonClass.in_working_directory(model))
        _ = own.identity  # raises errors now, not when it is first needed
        return own
    if is_class_name(model):
        raise ModelError(
            f"{model} is a Python class, and its code runs only if you name it: give `--embedder {model}`, in a "
            f'job\'s file `embedder: "{model}"`, for a server also LIKENESS_EMBEDDER, in Python embedder="{model}"'
        )
    return Checkpoint.find(model, revision)


def find_known_model(
    known: str,
    known_revision: str | None,
    *,
    model: str | None = None,
    revision: str | None = None,
    allowed: Container[str | None] = (),
) -> Checkpoint | OwnModel:
    """What `find_model` finds where a collection says that its model is; or at its new place `model`, if it has moved.
    Whether it is the same one is for the caller to check.
    """
    try:
        return find_model(model or known, revision or (None if model else known_revision), allowed=allowed)
    except ModelNotFoundError as error:
        if model:
            raise
        raise ModelNotFoundError(
            f"{error}. If the collection's model has moved, name its new place: --model, in a job's file `model`, "
            "for a server also LIKENESS_MODEL, in Python model="
        ) from error


def load_embedder(
    model: str | Checkpoint | OwnModel,
    *,
    revision: str | None = None,
    device: str | None = None,
    precision: Precision = "auto",
    batch_size: int = 64,
    threads: int | None = None,
    convert: bool = True,
) -> Embedder:
    """Load what `find_model` found, or a checkpoint from a local folder or hub id; raises ModelNotFoundError or
    ModelError.

    `device` is cuda, mps or cpu (by default the first available), `batch_size` limits a forward pass, `threads` are CPU
    threads. Without `convert`, a checkpoint that has not been converted on this machine is loaded with torch:
    converting it, once, takes as long as embedding some hundred pictures.
    """
    if batch_size < 1 or (threads is not None and threads < 1):
        raise ModelError(f"expected a batch size and threads of at least 1, got {batch_size} and {threads}")
    if isinstance(model, OwnModel):
        return OwnEmbedder(model, batch_size)
    if precision == "int8" and device not in (None, "cpu"):
        raise ModelError(f"int8 is only for CPUs, but the device is {device}: expected precision auto, fp32 or bf16")
    on_cpu = device == "cpu" or precision == "int8" or (device is None and not _may_have_accelerator())
    checkpoint = Checkpoint.find(model, revision) if isinstance(model, str) else model
    if on_cpu:
        try:
            if folder := conversion_folder(checkpoint, precision, convert=convert or precision == "int8"):
                return ConvertedEmbedder(checkpoint, folder, batch_size, threads or cpu_quota())
        except ModelError as error:
            if precision == "int8":
                raise
            logger.warning("%s; continuing with torch", error)
    from embedder.models.clip import ClipEmbedder  # torch and transformers take seconds to import

    return ClipEmbedder.load(checkpoint, device=device, precision=precision, batch_size=batch_size, threads=threads)


def _may_have_accelerator() -> bool:
    """Whether to load torch to find out, which takes seconds on a Linux machine that clearly has no accelerator."""
    return sys.platform != "linux" or any(Path(path).exists() for path in _ACCELERATORS)
