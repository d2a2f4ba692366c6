"""The caller's side of the processes that read lines, which run `embedder.ocr.line_worker`."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple, Self

from embedder.errors import ImageError, ModelNotFoundError
from embedder.images.decode import Region
from embedder.images.decoder_pool import DecodePool, Lane

MAX_PIXELS: Final = 1_500_000
"""Larger pictures are reduced to so many: 1,414 × 1,061 of 4:3."""
_MEMORY: Final = 3 * 2**30
"""Address space beside the models, in bytes; half of it is used, and a quarter is memory."""
# Limits of the worker keep a picture far below these.
_CPU_S: Final = 180.0
_WALL_S: Final = 900.0


class Line(NamedTuple):
    """A line of text, where it is in the upright picture, and the confidence, 0 … 1."""

    text: str
    box: Region
    confidence: float


class OcrModels(NamedTuple):
    """The files of RapidOCR's models: one finds lines, the other reads them."""

    detection: Path
    recognition: Path

    @classmethod
    def find(cls) -> Self:
        """Those of the installed package, which is not imported. Raises ModelNotFoundError if it is not installed."""
        spec = find_spec("rapidocr")
        if spec is None or spec.origin is None:
            raise ModelNotFoundError("reading words needs RapidOCR: pip install 'likeness[ocr]'")
        folder = Path(spec.origin).parent / "models"
        models = cls(folder / "PP-OCRv6_det_small.onnx", folder / "PP-OCRv6_rec_small.onnx")
        if missing := [file.name for file in models if not file.is_file()]:
            raise ModelNotFoundError(
                f"{folder} has no {' and no '.join(missing)}: expected rapidocr 3.10, pip install 'likeness[ocr]'"
            )
        return models

    def digests(self) -> list[str]:
        """SHA-256 of each file, hex."""
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in self]


class LineReader:
    """Reads lines in one process for each core, which start when first needed. Thread-safe; blocks."""

    def __init__(self) -> None:
        self._decoders = DecodePool()
        self._lane = Lane(_MEMORY, worker="embedder.ocr.line_worker")

    def read(self, data: bytes) -> list[Line]:
        """The lines in a picture's file, from top to bottom; raises ImageError."""
        picture = self._decoders.whole_picture(data, MAX_PIXELS)
        task = {"size": picture.size, "cpu_s": _CPU_S, "wall_s": _WALL_S}
        try:
            facts, _ = self._lane.ask(task, picture.tobytes())
        except ImageError as error:
            raise ImageError(error.reason, f"reading its words: {error.message}", retryable=error.retryable) from error
        return [_line(*line) for line in facts["lines"]]


def _line(text: str, box: list[float], confidence: float) -> Line:
    left, top, width, height = box
    return Line(text, (left, top, width, height), confidence)
