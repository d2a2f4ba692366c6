"""Checkpoints converted for OpenVINO, once on each machine; they are used without torch and transformers."""

import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from embedder.errors import ModelError, UnsupportedInputError
from embedder.identity import Precision
from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.protocol import require_crops, require_texts, unit_vectors
from embedder.python_process import python_command

CACHE_DIR: Final = "LIKENESS_CACHE_DIR"
MIN_AGREEMENT: Final = 0.999
"""Minimum cosine of vectors in another precision with those of fp32, to count as the same model."""

_FORMAT_VERSION = 3  # of the files in a conversion's folder; raise it to have models converted again
_TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "spiece.model")
_TIMEOUT_S = 600
_ACTIVATIONS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}
"""How OpenVINO computes in each precision what is not a product of int8."""
_GROUP_SIZE = 64
"""Elements of a row of activations that share a scale in int8. With 128, passes of ViT-B/32 took 8% less, but another
first match of the demo lost 0.0018 of its cosine instead of 0.0014; with 32 they took 17% more, and it lost 0.0013."""

logger = logging.getLogger(__name__)


class ConvertedEmbedder:
    """A model in OpenVINO on this machine's CPUs. Several threads may embed at once.

    A picture's vector does not depend on the rest of its batch or the number of threads, not even in the last bit.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path, batch_size: int, threads: int | None) -> None:
        self.identity = checkpoint.identity
        self.crop: CropSpec = checkpoint.crop
        self.batch_size = batch_size
        info = read_info(folder)
        self.precision: Precision = info["precision"]
        self._folder, self._threads, self._text = folder, threads, info["text"]

    def embed_images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """`(n, side, side, 3)` uint8 RGB to `(n, dim)` float32, unit norm. Raises ModelError."""
        require_crops(pixels, self.crop)
        return self._embed(self._image_graph, pixels)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """`(n, dim)` float32, unit norm; texts are truncated to the model's maximum length.

        Raises UnsupportedInputError if the model or its checkpoint has no text side.
        """
        require_texts(texts)
        if "refusal" in self._text:
            raise UnsupportedInputError(self._text["refusal"])
        lowered = [text.lower() for text in texts] if self._text["lower_case"] else list(texts)
        encoded = self._tokenizer.encode_batch_fast(lowered)
        return self._embed(self._text_graph, np.array([encoding.ids for encoding in encoded], np.int64))

    def _embed(self, run: Callable[[NDArray[Any]], NDArray[np.float32]], rows: NDArray[Any]) -> NDArray[np.float32]:
        if not len(rows):
            return np.empty((0, self.identity.dim), np.float32)
        parts = np.array_split(rows, ceil(len(rows) / self.batch_size))
        vectors = np.concatenate([run(np.ascontiguousarray(part)) for part in parts]).astype(np.float32)
        return unit_vectors(vectors, self.identity.model_id, f"in {self.precision}: try precision fp32")

    @cached_property
    def _image_graph(self) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
        return load_graph(self._folder / "image.xml", self.precision, self._threads)

    @cached_property
    def _text_graph(self) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
        return load_graph(self._folder / "text.xml", self.precision, self._threads)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self._folder / "tokenizer.json"))


def load_graph(
    graph: Path | bytes, precision: Precision, threads: int | None
) -> Callable[[NDArray[Any]], NDArray[np.float32]]:
    """A converted graph, or the bytes of one in ONNX, as a thread-safe function from its only input to its only output;
    raises ModelError.
    """
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": _ACTIVATIONS[precision],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP_SIZE,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # all processes would choose the same cores
    }
    if threads:  # or else as many as there are physical cores
        options |= {"INFERENCE_NUM_THREADS": threads, "ENABLE_HYPER_THREADING": True}
    try:
        read = graph if isinstance(graph, Path) else _runtime().read_model(graph)  # bytes cannot name other files
        request = _runtime().compile_model(read, "CPU", options).create_infer_request()
    except RuntimeError as error:
        problem = str(error).strip().splitlines()[-1]
        if isinstance(graph, bytes):
            raise ModelError(f"OpenVINO cannot load it as ONNX: {problem}") from error
        raise ModelError(f"{graph} cannot be loaded ({problem}): remove {graph.parent} to convert it again") from error
    lock = threading.Lock()

    def run(rows: NDArray[Any]) -> NDArray[np.float32]:
        with lock:
            return request.infer([rows], share_inputs=True)[0]  # type: ignore[no-any-return]

    return run


@cache
def _runtime() -> Any:
    """OpenVINO's `Core`, one for the process, made in a thread of its own: its plugin for CPUs changes the stack for
    signals of the thread that loads it, and unmaps that stack when it is freed. The next signal then ends the process.
    """
    import openvino  # takes a tenth of a second, which a mistyped argument should not

    core = openvino.Core()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(core.get_versions, "CPU").result()
    return core


def conversion_folder(checkpoint: Checkpoint, precision: Precision, *, convert: bool = True) -> Path | None:
    """The folder of a checkpoint's conversion for this processor. If there is none, `convert` makes it, else None.

    Precision auto is the fastest one that agrees with fp32. Raises ModelError.
    """
    key = _key(checkpoint, precision)
    try:
        folder = _cache() / key
        if not (folder / "about.json").is_file():
            if not convert:
                return None
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_name(f"{folder.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a machine's actors start at the same time
                if not (folder / "about.json").is_file():
                    _convert(checkpoint, precision, folder)
    except OSError as error:
        raise ModelError(f"converted models cannot be stored ({error}): set {CACHE_DIR} to a folder") from error
    agreement = read_info(folder)["agreement"]
    if agreement < MIN_AGREEMENT:
        raise ModelError(
            f"{checkpoint.model_id} in {precision} is another model: the cosine of its vectors with those of fp32 is "
            f"{agreement:.4f} in the worst case, expected at least {MIN_AGREEMENT}: use precision fp32"
        )
    return folder


def read_info(folder: Path) -> dict[str, Any]:
    """What `embedder.models.export` has recorded about a conversion."""
    return json.loads((folder / "about.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _convert(checkpoint: Checkpoint, precision: Precision, folder: Path) -> None:
    """Converts in a separate process, so that torch does not stay in this one's memory."""
    # A warning, so that users know why they wait.
    logger.warning("converting %s for this processor, once: it takes up to half a minute", checkpoint.model_id)
    partial = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    command = python_command("embedder.models.export", str(checkpoint.folder), str(partial), precision)
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
        partial.replace(folder)
    except subprocess.SubprocessError as error:
        shutil.rmtree(partial, ignore_errors=True)
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
        problem = (output or str(error)).strip().splitlines()[-1]
        raise ModelError(f"{checkpoint.model_id} could not be converted for OpenVINO: {problem}") from error


def _cache() -> Path:
    """A folder inside the one that `index.collection.cache.cache_folder` names."""
    if configured := os.environ.get(CACHE_DIR):
        return Path(configured).expanduser() / "models"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "likeness"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # a container's user may have no home
        folder = Path(tempfile.gettempdir()) / f"likeness-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():  # its owner could plant other graphs
            raise ModelError(f"{folder}, where converted models are stored, is another user's: set {CACHE_DIR}")
    return folder / "models"


def _key(checkpoint: Checkpoint, precision: Precision) -> str:
    """Identifies a conversion by everything that it depends on: the model, its tokenizer and the processor."""
    digest = hashlib.sha256(f"{_FORMAT_VERSION} {checkpoint.identity.fingerprint} {_processor()}".encode())
    for name in _TEXT_FILES:
        path = checkpoint.folder / name
        digest.update(path.read_bytes() if path.is_file() else b"-")
    return f"{digest.hexdigest()[:32]}-{precision}"


def _processor() -> str:
    """The processor's name, and its features if the system lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
