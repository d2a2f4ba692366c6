"""A process that reads lines of text in pictures; `embedder.ocr.line_reader` starts it.

RapidOCR prepares what its two models take and reads what they return. They run here, not in its engines, which write to
the terminal and let OpenVINO keep code for each shape of picture, over a gigabyte after fifty.
"""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import openvino
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rapidocr.ch_ppocr_det.main import TextDetector
from rapidocr.ch_ppocr_det.utils import DBPostProcess, DetPreProcess
from rapidocr.ch_ppocr_rec.utils import CTCLabelDecode
from rapidocr.utils.process_img import get_rotate_crop_image

from embedder.errors import ImageError
from embedder.images.decoder_worker import answer_tasks
from embedder.ocr.line_reader import OcrModels

Pixels = NDArray[np.uint8]
Box = NDArray[np.int32]

_OPENVINO: Final = {
    "INFERENCE_NUM_THREADS": 1,
    "NUM_STREAMS": 1,
    "CPU_RUNTIME_CACHE_CAPACITY": 0,
    "ENABLE_CPU_PINNING": False,  # all processes would choose the same core
}
_MIN_SIDE: Final = 16
"""Pixels; in smaller pictures there is nothing to read."""
_MAX_LINES: Final = 1_000
_HEIGHT: Final = 48
"""Pixels to which each line is scaled to be read."""
_MIN_WIDTH: Final = 320
"""Pixels of a line of that height; a shorter one is padded, as in the model's training."""
_MAX_WIDTH: Final = 100 * _HEIGHT
"""Longer lines are left out. Memory grows by 9 kB for each pixel."""
_MAX_TOTAL_WIDTH: Final = 400_000
"""Of a picture's lines; the rest is left out. A full page of small print has 150,000, and takes 10 s on one core."""
_MIN_CONFIDENCE: Final = 0.5


def run(descriptor: int, memory: int, niceness: int) -> None:
    """Read pictures, see `answer_tasks`."""
    cv2.setNumThreads(1)
    answer_tasks(partial(_answer, _Models(OcrModels.find())), descriptor, memory, niceness)


def _answer(models: _Models, task: dict[str, Any], data: bytes, _: Connection) -> tuple[dict[str, Any], bytes]:
    width, height = task["size"]
    if min(width, height) < _MIN_SIDE:
        return {"lines": []}, b""
    try:
        return {"lines": models.read(Image.frombytes("RGB", (width, height), data))}, b""
    except Exception as error:  # OpenCV and OpenVINO raise nearly anything
        return vars(ImageError("ocr_failed", f"{type(error).__name__}: {error}"[:500], retryable=True)), b""


class _Models:
    """The models, and the parts of RapidOCR with their settings for PP-OCRv6 (`config.yaml` in its package)."""

    def __init__(self, files: OcrModels) -> None:
        core = openvino.Core()
        recognition = core.read_model(files.recognition)
        characters = recognition.get_rt_info(["framework", "character"]).astype(str).splitlines()
        self._detect = self._compiled(core, files.detection)
        self._recognise = self._compiled(core, recognition)
        self._prepare = DetPreProcess(limit_side_len=2**31, limit_type="max")
        self._boxes = DBPostProcess(box_thresh=0.5, max_candidates=_MAX_LINES, unclip_ratio=1.6, use_dilation=True)
        self._decode = CTCLabelDecode(characters)

    @staticmethod
    def _compiled(core: openvino.Core, model: Path | openvino.Model) -> Any:
        return core.compile_model(model, "CPU", _OPENVINO)

    def read(self, picture: Image.Image) -> list[tuple[str, list[float], float]]:
        """Text, box and confidence of each line, from top to bottom."""
        lines = []
        pixels = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])  # BGR, as in the models' training
        total = 0
        for box in self._find(picture):
            line = _line_pixels(pixels, box)
            if line.shape[1] > _MAX_WIDTH:
                continue
            if (total := total + line.shape[1]) > _MAX_TOTAL_WIDTH:
                break
            [(text, confidence)], _ = self._decode(self._recognise(_padded(line))[0])
            if text.strip() and confidence >= _MIN_CONFIDENCE:
                lines.append((text.strip(), _fractions(box, picture.size), round(confidence, 4)))
        return lines

    def _find(self, picture: Image.Image) -> Box:
        """The corners of each line, `(n, 4, 2)` int32, from top to bottom."""
        # In grey with full contrast, because lines on strong colours would be overlooked. They are read in colour.
        grey = np.asarray(ImageOps.autocontrast(picture.convert("L")).convert("RGB"))
        prepared = self._prepare(grey)
        boxes, _ = self._boxes(self._detect(prepared)[0], grey.shape[:2])
        return TextDetector.sorted_boxes(boxes)


def _line_pixels(pixels: Pixels, box: Box) -> Pixels:
    """A line, turned level, `(_HEIGHT, width, 3)`."""
    crop = get_rotate_crop_image(pixels, box.astype(np.float32))
    width = max(1, round(_HEIGHT * crop.shape[1] / crop.shape[0]))
    return np.asarray(cv2.resize(crop, (min(width, _MAX_WIDTH + 1), _HEIGHT)), np.uint8)


def _padded(line: Pixels) -> NDArray[np.float32]:
    """What the model takes: `(1, 3, _HEIGHT, width)`, from -1 to 1."""
    padded = np.zeros((1, 3, _HEIGHT, max(_MIN_WIDTH, line.shape[1])), np.float32)
    padded[0, :, :, : line.shape[1]] = line.transpose(2, 0, 1) / 127.5 - 1
    return padded


def _fractions(box: Box, size: tuple[int, int]) -> list[float]:
    """Left, top, width and height of the rectangle around a box, as fractions of the picture."""
    corners = np.clip(box / np.array(size), 0, 1)
    start = corners.min(axis=0)
    rectangle: list[float] = np.concatenate([start, corners.max(axis=0) - start]).round(4).tolist()
    return rectangle
