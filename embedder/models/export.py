"""Converts a checkpoint for OpenVINO. `embedder.models.converted` runs it in a separate process."""

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

# Otherwise OpenVINO reports conversions to its makers.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
# ruff: noqa: E402

import numpy as np
import openvino
import torch
from numpy.typing import NDArray
from openvino import opset13
from PIL import Image
from torch import nn
from transformers import PreTrainedModel

from embedder.errors import ModelError
from embedder.identity import Precision
from embedder.models.checkpoint import Checkpoint, Preprocessing
from embedder.models.clip import image_features
from embedder.models.converted import MIN_AGREEMENT, load_graph
from embedder.models.families import FAMILIES
from embedder.models.torch_loading import PixelScale, load_tokenizer, load_weights, make_tokenize

_MIN_SPEEDUP = 1.25
"""Of a less exact precision, to be preferred."""
_BATCH_SIZE = 4
_SAMPLE_PICTURES = 16
_SAMPLE_TEXTS = (
    "a photo of a cat",
    "two dogs running on a beach",
    "a red car parked in front of an old house",
    "mountains at sunset",
    "a plate of food on a wooden table",
    "people crossing a street in the rain",
    "a close-up of a flower",
    "a black and white portrait of an old man",
    "a map",
    "an empty room with a large window",
    "blue",
    "a child's drawing of a house and a tree",
    "a screenshot of a web page with text",
    "an aeroplane above the clouds",
    "a striped red star",
    "something that nobody has ever seen, painted in the style of a woodcut from the sixteenth century",
)


class _ImageTower(nn.Module):
    """`(n, side, side, 3)` uint8 to features; includes the normalisation of pixels."""

    def __init__(self, model: PreTrainedModel, settings: Preprocessing) -> None:
        super().__init__()
        self.model, self.scaled = model, PixelScale(settings)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return image_features(self.model, self.scaled(pixels))


class _TextTower(nn.Module):
    """`(n, tokens)` int64 to features. Needs no mask: in CLIP each token only sees those before it, so padding to the
    right of the end-of-text token has no effect, and SigLIP was trained without a mask.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model.get_text_features(input_ids=input_ids).pooler_output  # type: ignore[no-any-return, operator]


def run(source: str, target: str, precision: Precision) -> None:
    """Write `image.xml`; `text.xml` and `tokenizer.json` for models that embed texts; and `about.json` with the
    precision, which for auto is the fastest that agrees with fp32, and its agreement. Raises ModelError.
    """
    checkpoint, folder = Checkpoint.find(source), Path(target)
    model = load_weights(checkpoint).to(dtype=torch.float32)  # type: ignore[call-arg]
    towers: dict[str, tuple[nn.Module, NDArray[Any]]] = {
        "image": (_ImageTower(model, checkpoint.preprocessing), _sample_pictures(checkpoint.crop.side))
    }
    text: dict[str, Any] = {"lower_case": FAMILIES[checkpoint.model_type].pads_texts}
    try:
        towers["text"] = (_TextTower(model), _save_tokenizer(checkpoint, model, folder / "tokenizer.json"))
    except ModelError as error:
        text = {"refusal": str(error)}
    candidates: list[Precision] = (
        ["fp32", "bf16", "int8"] if precision == "auto" else [*dict.fromkeys(("fp32", precision))]
    )
    for name, (tower, rows) in towers.items():
        graph = _graph(tower, rows)
        for each in candidates:
            weights = _int8_weights(graph) if each == "int8" else graph
            openvino.save_model(weights, folder / each / f"{name}.xml", compress_to_fp16=each != "fp32")
    agreement, seconds = _measure(folder, candidates, {name: rows for name, (_, rows) in towers.items()})
    chosen = _fastest(agreement, seconds) if precision == "auto" else precision
    for file in (folder / chosen).iterdir():
        file.rename(folder / file.name)
    for each in candidates:
        shutil.rmtree(folder / each)
    info = {"precision": chosen, "agreement": agreement[chosen], "text": text}
    (folder / "about.json").write_text(json.dumps(info), encoding="utf-8")


def _graph(tower: nn.Module, rows: NDArray[Any]) -> openvino.Model:
    """The tower as a graph for any number of rows, and texts of any length that the model takes."""
    example = torch.from_numpy(rows[:2])
    is_text = example.ndim == 2
    lengths = {0: torch.export.Dim.DYNAMIC} | ({1: torch.export.Dim.AUTO} if is_text else {})
    graph = openvino.convert_model(torch.export.export(tower.eval(), (example,), dynamic_shapes=(lengths,)))
    graph.reshape([-1, -1] if is_text else [-1, *rows.shape[1:]])
    return graph


def _int8_weights(graph: openvino.Model) -> openvino.Model:
    """A copy whose constant weights of products are int8, symmetric about zero, with a scale for each column.

    OpenVINO then quantizes activations too, in groups of a row, where processors have instructions for it. A vector
    does not depend on its batch, as it would with a scale for all rows (Dettmers et al. 2022, LLM.int8(), section 3).
    """
    copy = graph.clone()
    for product in copy.get_ordered_ops():
        if product.get_type_name() != "MatMul":
            continue
        constant = product.input_value(1).get_node()
        if constant.get_type_name() != "Constant":
            continue
        weights: NDArray[Any] = constant.data
        depth = -1 if product.get_attributes()["transpose_b"] else -2
        scale = np.maximum(np.abs(weights).max(axis=depth, keepdims=True) / 127, 1e-30)
        levels = opset13.convert(opset13.constant(np.rint(weights / scale).astype(np.int8)), "f32")
        product.input(1).replace_source_output(opset13.multiply(levels, opset13.constant(scale)).output(0))
    return copy


def _measure(
    folder: Path, candidates: Sequence[Precision], samples: Mapping[str, NDArray[Any]]
) -> tuple[dict[Precision, float], dict[Precision, float]]:
    """For each precision the lowest cosine of its vectors with those of fp32, the first, and the CPU seconds of a batch
    of pictures on one thread, which other load on the machine changes little.
    """
    agreement = dict.fromkeys(candidates, 1.0)
    seconds = dict.fromkeys(candidates, inf)
    for name, rows in samples.items():
        graphs = {each: load_graph(folder / each / f"{name}.xml", each, threads=1) for each in candidates}
        for start in range(0, len(rows), _BATCH_SIZE):
            batch, exact = rows[start : start + _BATCH_SIZE], None
            for each, graph in graphs.items():
                started = time.process_time()
                features = graph(batch)
                if name == "image":
                    seconds[each] = min(seconds[each], time.process_time() - started)
                vectors = features / np.linalg.norm(features, axis=1, keepdims=True)
                exact = vectors if exact is None else exact
                cosines = (vectors * exact).sum(axis=1)
                agreement[each] = float(np.minimum(agreement[each], cosines.min()))  # keeps NaN
    return agreement, seconds


def _fastest(agreement: Mapping[Precision, float], seconds: Mapping[Precision, float]) -> Precision:
    """In order of exactness, a precision must agree with fp32 and be clearly faster than the one before it."""
    chosen: Precision = "fp32"
    for each in seconds:
        if agreement[each] >= MIN_AGREEMENT and seconds[chosen] >= _MIN_SPEEDUP * seconds[each]:
            chosen = each
    return chosen


def _sample_pictures(side: int) -> NDArray[np.uint8]:
    """Colour noise from coarse to fine, with a fixed seed."""
    rng = np.random.default_rng(16)
    grids = [rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8) for cells in np.arange(_SAMPLE_PICTURES) * 2 + 2]
    return np.stack([np.asarray(Image.fromarray(grid).resize((side, side))) for grid in grids])


def _save_tokenizer(checkpoint: Checkpoint, model: PreTrainedModel, path: Path) -> NDArray[np.int64]:
    """Saves the tokenizer and returns the tokens of `_SAMPLE_TEXTS`. Raises ModelError."""
    tokenizer = load_tokenizer(checkpoint, model)
    tokens = make_tokenize(checkpoint, tokenizer)(_SAMPLE_TEXTS)["input_ids"].numpy()
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is None:
        raise ValueError(f"the tokenizer {type(tokenizer).__name__} needs transformers")
    # Padding and truncation, which the call above has set, are part of the file.
    backend.save(str(path))
    return tokens
