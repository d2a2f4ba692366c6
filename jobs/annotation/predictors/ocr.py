"""The predictor of `likeness annotate --ocr`."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from embedder.errors import ImageError
from embedder.machine import usable_cpus
from embedder.ocr.line_reader import MAX_PIXELS, Line, LineReader, OcrModels
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.values import fingerprint_of

_VERSION = 1
"""Changes with whatever affects the columns beside the models, so that all pictures are read again."""
_MEMORY = 2**31
"""Of the processes on a worker with few cores, in bytes."""


def ocr_recipe() -> Recipe:
    """The recipe for lines of text. Raises ModelNotFoundError if RapidOCR is not installed."""
    parts = ["ocr", _VERSION, MAX_PIXELS, *OcrModels.find().digests()]
    return Recipe(id="ocr by PP-OCRv6", fingerprint=fingerprint_of(parts), needs="file", make=Ocr, memory=_MEMORY)


class Ocr:
    """The text of a picture's lines, joined by newlines; and the `boxes` and `confidences` of these lines.

    A picture without words has "", no boxes and no confidences: null means that it has not been read.
    """

    def __init__(self) -> None:
        self._reader = LineReader()

    def __call__(self, batch: Batch) -> Columns:
        pool = ThreadPoolExecutor(usable_cpus())
        try:
            read = list(pool.map(self._read, batch["file"]))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an interrupted job does not wait for the others
        lines = [[] if isinstance(each, ImageError) else each for each in read]
        return {
            "": [each if isinstance(each, ImageError) else "\n".join(line.text for line in each) for each in read],
            "boxes": pa.array([[line.box for line in each] for each in lines], pa.list_(pa.list_(pa.float64()))),
            "confidences": pa.array([[line.confidence for line in each] for each in lines], pa.list_(pa.float64())),
        }

    def _read(self, file: bytes) -> Sequence[Line] | ImageError:
        try:
            return self._reader.read(file)
        except ImageError as error:
            return error
