"""Converts a checkpoint for ONNX Runtime. `embedder.models.converted` runs it in a separate process."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from transformers import PreTrainedModel

from embedder.errors import ModelError
from embedder.models.checkpoint import Checkpoint, Preprocessing
from embedder.models.clip import image_features
from embedder.models.families import FAMILIES
from embedder.models.quantize import compare, prefers_int8, to_int8
from embedder.models.torch_loading import PixelScale, load_tokenizer, load_weights, make_tokenize

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


def run(checkpoint: str, folder: str, precision: str) -> None:
    """`export` in a process of its own, see `python_command`."""
    export(Checkpoint.find(checkpoint), Path(folder), precision)


def export(checkpoint: Checkpoint, folder: Path, precision: str) -> None:
    """Write `image.onnx`; `text.onnx` and `tokenizer.json` for models that embed texts; and `about.json` with the
    chosen precision, its agreement with float32 and its speedup. Raises ModelError.
    """
    model = load_weights(checkpoint).to(dtype=torch.float32)  # type: ignore[call-arg]
    towers: dict[str, tuple[nn.Module, NDArray[Any]]] = {
        "image": (_ImageTower(model, checkpoint.preprocessing), _sample_pictures(checkpoint.crop.side))
    }
    text: dict[str, Any] = {"lower_case": FAMILIES[checkpoint.model_type].pads_texts}
    try:
        towers["text"] = (_TextTower(model), _save_tokenizer(checkpoint, model, folder / "tokenizer.json"))
    except ModelError as error:
        text = {"refusal": str(error)}
    for name, (tower, rows) in towers.items():
        graph = _graph(tower, rows)
        _save(to_int8(graph), folder / "int8" / f"{name}.onnx")
        _save(graph, folder / "fp32" / f"{name}.onnx")
    compared = {name: compare(folder, name, rows) for name, (_, rows) in towers.items()}
    agreement, speedup = min(cosine for cosine, _ in compared.values()), compared["image"][1]
    use_int8 = precision == "int8" or prefers_int8(agreement, speedup)
    chosen, rejected = ("int8", "fp32") if use_int8 else ("fp32", "int8")
    shutil.rmtree(folder / rejected)
    for file in (folder / chosen).iterdir():
        file.rename(folder / file.name)
    (folder / chosen).rmdir()
    info = {"precision": chosen, "agreement": agreement, "gain": speedup, "text": text}
    (folder / "about.json").write_text(json.dumps(info), encoding="utf-8")


def _graph(tower: nn.Module, rows: NDArray[Any]) -> onnx.ModelProto:
    """The tower as a graph for any number of rows, and texts of any length that the model takes."""
    example = torch.from_numpy(rows[:2])
    lengths = {0: torch.export.Dim.DYNAMIC} | ({1: torch.export.Dim.AUTO} if example.ndim == 2 else {})
    program = torch.onnx.export(tower.eval(), (example,), dynamo=True, verbose=False, dynamic_shapes=(lengths,))
    assert program is not None  # with dynamo
    return program.model_proto


def _save(graph: onnx.ModelProto, path: Path) -> None:
    """Moves the weights out of `graph` into a separate file, because an ONNX file holds at most 2 GiB."""
    path.parent.mkdir(exist_ok=True)
    onnx.save(graph, path, save_as_external_data=True, location=f"{path.stem}.weights")


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
