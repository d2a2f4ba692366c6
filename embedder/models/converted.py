"""A checkpoint as ONNX Runtime reads it: made once on each machine, and used without torch and transformers."""

import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedder.errors import ModelError, UnsupportedInputError
from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.protocol import require_crops, require_texts

CACHE_DIR: Final = "LIKENESS_CACHE_DIR"
MIN_AGREEMENT: Final = 0.999
"""Cosine that int8 vectors must have with those of float32: then they are the same model's."""

_FORM = 2  # of the files here: older ones are made again
_TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "spiece.model")
_TIMEOUT_S = 600

logger = logging.getLogger(__name__)


class ConvertedEmbedder:
    """A model in ONNX Runtime on this machine's CPUs. Several threads may embed at once.

    A picture's vector does not depend on the others of its batch, not even in its last bit.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path, batch_size: int, threads: int | None) -> None:
        self.identity = checkpoint.identity
        self.crop: CropSpec = checkpoint.preprocessing.crop
        self.batch_size = batch_size
        about = read_about(folder)
        self.precision: str = about["precision"]
        self._folder, self._threads, self._text = folder, threads, about["text"]

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 RGB to `(n, dim)` float32, unit norm. Raises ModelError."""
        require_crops(pixels, self.crop)
        return self._embed(self._image, pixels)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`(n, dim)` float32, unit norm; texts are cut at the model's limit of tokens.

        Raises UnsupportedInputError if the model or its checkpoint has no text side.
        """
        require_texts(texts)
        if "refusal" in self._text:
            raise UnsupportedInputError(self._text["refusal"])
        lowered = [text.lower() for text in texts] if self._text["lower_case"] else list(texts)
        encoded = self._tokenizer.encode_batch_fast(lowered)
        return self._embed(self._words, np.array([one.ids for one in encoded], np.int64))

    def _embed(self, run: Callable[[NDArray[Any]], NDArray[np.float32]], rows: NDArray[Any]) -> NDArray[np.float32]:
        if not len(rows):
            return np.empty((0, self.identity.dim), np.float32)
        parts = np.array_split(rows, ceil(len(rows) / self.batch_size))
        vectors = np.concatenate([run(np.ascontiguousarray(part)) for part in parts]).astype(np.float32)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        bad = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
        if len(bad):
            raise ModelError(
                f"{self.identity.model_id} gave {len(bad)} of {len(rows)} inputs a vector that is zero or not finite "
                f"(the first is number {bad[0]}) in {self.precision}: try precision fp32; if that fails too, the "
                "weights are damaged"
            )
        return vectors / norms  # type: ignore[no-any-return]

    @cached_property
    def _image(self) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
        return run_of(self._folder / "image.onnx", self._threads)

    @cached_property
    def _words(self) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
        return run_of(self._folder / "text.onnx", self._threads)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._folder / "tokenizer.json"))


def run_of(path: Path, threads: int | None) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """The graph of a file as a function from its one input to its one output; raises ModelError."""
    import onnxruntime  # a tenth of a second that a mistyped argument should not cost

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 4  # errors are raised
    # Threads that wait awake take the cores that decoding needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes are no part of its interface
        problem = str(error).strip()
        raise ModelError(f"{path} cannot be loaded ({problem}): remove {path.parent} to convert it again") from error
    name = session.get_inputs()[0].name
    return lambda rows: session.run(None, {name: rows})[0]


def converted(checkpoint: Checkpoint, wanted: str, *, make: bool = True) -> Path | None:
    """The folder of a checkpoint's conversion for this processor, made now if there is none and `make`.

    `wanted` is int8, or auto: int8 if it agrees and is fast enough, else float32. Raises ModelError.
    """
    key = _key(checkpoint, wanted)
    try:
        folder = _cache() / key
        if not (folder / "about.json").is_file():
            if not make:
                return None
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_name(f"{folder.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # actors of one machine start together
                if not (folder / "about.json").is_file():
                    _make(checkpoint, wanted, folder)
    except OSError as error:
        raise ModelError(f"converted models cannot be stored ({error}): set {CACHE_DIR} to a folder") from error
    about = read_about(folder)
    if wanted == "int8" and about["agreement"] < MIN_AGREEMENT:
        raise ModelError(
            f"{checkpoint.model_id} in int8 is another model: the cosine of its vectors with those of float32 is "
            f"{about['agreement']:.4f} in the worst case, expected at least {MIN_AGREEMENT}: use precision fp32"
        )
    return folder


def read_about(folder: Path) -> dict[str, Any]:
    """What `embedder.models.export` has written about the conversion."""
    return json.loads((folder / "about.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _make(checkpoint: Checkpoint, wanted: str, folder: Path) -> None:
    """In a process of its own, so that torch does not stay in this one's memory."""
    # A warning, as those who wait should know why.
    logger.warning("converting %s for this processor, once: it takes up to half a minute", checkpoint.model_id)
    partial = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    command = [sys.executable, "-m", "embedder.models.export", str(checkpoint.folder), str(partial), wanted]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        partial.replace(folder)
    except subprocess.SubprocessError as error:
        shutil.rmtree(partial, ignore_errors=True)
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise ModelError(f"{checkpoint.model_id} could not be converted for ONNX Runtime: {lines[-1]}") from error


def _cache() -> Path:
    """Below the folder that `index.versions.file_cache` uses too."""
    if named := os.environ.get(CACHE_DIR):
        return Path(named).expanduser() / "models"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "likeness"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # a container's user may have no home
        folder = Path(tempfile.gettempdir()) / f"likeness-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():  # its owner could put other graphs there
            raise ModelError(f"{folder}, where converted models are stored, is another user's: set {CACHE_DIR}")
    return folder / "models"


def _key(checkpoint: Checkpoint, wanted: str) -> str:
    """Of all that the conversion depends on: the model, its tokenizer, and for a choice the processor."""
    digest = hashlib.sha256(f"{_FORM} {checkpoint.identity.fingerprint} {_processor()}".encode())
    for name in _TEXT_FILES:
        path = checkpoint.folder / name
        digest.update(path.read_bytes() if path.is_file() else b"-")
    return f"{digest.hexdigest()[:32]}-{wanted}"


def _processor() -> str:
    """Its name and what it can do, where the system says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
