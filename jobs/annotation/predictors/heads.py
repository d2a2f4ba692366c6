"""Heads on the stored vectors that were trained elsewhere: linear ones in safetensors, any in ONNX."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedder.errors import ModelError
from index.collection.records.model_record import ModelRecord
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.annotation.predictors.labels import best_label
from jobs.annotation_spec import AnnotationSpec
from jobs.errors import UsageError
from jobs.values import fingerprint_of

_VERSION = 1
_WEIGHTS, _BIASES = ("weight", "weights", "coef"), ("bias", "biases", "intercept")

Run = Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]
"""From vectors, `(n, dim)`, to outputs, `(n, outputs)`."""


def head_recipe(spec: AnnotationSpec, model: ModelRecord) -> Recipe:
    """The recipe for `Head`. Raises UsageError for a file that is no head on vectors of the collection's model."""
    path = Path(str(spec.head)).expanduser()
    try:
        data = path.read_bytes()
        read = _READERS[path.suffix.lower()]
        run = read(data, model.dim)
        shape, expected = run(np.zeros((2, model.dim), np.float32)).shape, f"(n, {len(spec.labels) or 1})"
        if shape != (2, len(spec.labels) or 1):
            raise ValueError(
                f"gives outputs of the shape {shape} for 2 vectors: expected {expected}, that is one output, or one "
                "for each label (--label), in the order of the labels"
            )
    except KeyError:
        raise UsageError(f"--head is {path}: expected a file {' or '.join(_READERS)}") from None
    except (OSError, RuntimeError, ValueError, ModelError) as error:
        raise UsageError(f"--head is {path}, on {model.dim}-dimensional vectors of {model.id}: {error}") from error
    digest = hashlib.sha256(data).hexdigest()
    return Recipe(
        id=f"head {path.name}",
        fingerprint=fingerprint_of([_VERSION, model.fingerprint, digest, spec.labels]),
        make=lambda: Head(read(data, model.dim), spec.labels),  # a worker cannot get a session of ONNX Runtime
    )


@dataclass(frozen=True)
class Head:
    """The output of a head, as it is; or with `labels` of several outputs the one with the greatest, which is its
    `score`, and its lead over the next as `margin`.
    """

    run: Run
    labels: Sequence[str]

    def __call__(self, batch: Batch) -> Columns:
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            outputs = self.run(batch["embedding"]).astype(np.float64)
        if not np.isfinite(outputs).all():
            raise ValueError("the head's outputs are not all finite")
        if not self.labels:
            return {"": np.round(outputs[:, 0], 6)}
        return best_label(self.labels, outputs, 6)


def _linear(data: bytes, dim: int) -> Run:
    """A layer's `weight`, `(outputs, dim)` or `(dim,)`, and `bias`, whatever comes before these names; several outputs
    are classes, whose probabilities are given.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
    except (SafetensorError, TypeError, KeyError) as error:  # TypeError: NumPy has no bfloat16
        raise ValueError(f"it cannot be read ({error}): expected safetensors of float32 or float16") from error
    with np.errstate(over="ignore"):  # infinite weights are refused
        named = {name.rpartition(".")[2].rstrip("_"): tensor.astype(np.float32) for name, tensor in tensors.items()}
    weights, biases = ([named[name] for name in names if name in named] for names in (_WEIGHTS, _BIASES))
    weight, bias = (np.atleast_2d(weights[0]) if weights else np.empty(0)), (biases or [np.zeros(1, np.float32)])[0]
    layer = len(weights) == 1 and len(biases) < 2 and len(weights) + len(biases) == len(tensors)
    if not layer or not weight.size or weight.shape[1:] != (dim,) or bias.size not in {1, len(weight)}:
        shapes = ", ".join(f"{name} {tensor.shape}" for name, tensor in sorted(tensors.items())) or "nothing"
        raise ValueError(
            f"it has {shapes}: expected one layer, with a weight (outputs, {dim}) and a bias (outputs,); export deeper "
            "heads as ONNX"
        )
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError("expected finite weights")

    def run(vectors: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        outputs: npt.NDArray[Any] = vectors @ weight.T + bias.ravel()
        if len(weight) == 1:
            return outputs
        chances: npt.NDArray[Any] = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return chances / chances.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]

    return run


def _onnx(data: bytes, dim: int) -> Run:
    from embedder.models.converted import load_graph

    return load_graph(data, "fp32", None)


_READERS: dict[str, Callable[[bytes, int], Run]] = {".safetensors": _linear, ".onnx": _onnx}
