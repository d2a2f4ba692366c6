"""Heads that were trained elsewhere: their outputs become columns, and files that are no heads are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from safetensors.torch import save as save_torch

from index.collection import Collection
from tests.support.collections.hand_made import DIM, indexed, metadata_of, rows, unit_vectors
from tests.support.command_line import Result, Run
from tests.support.pictures.onnx_graph import one_layer

IDS = [f"{number:02}.jpg" for number in range(30)]
VECTORS = unit_vectors(len(IDS), seed=3)
WEIGHT, BIAS = 3 * unit_vectors(3, seed=4), np.array([0.5, -0.5, 0], np.float32)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("template"), rows(IDS, VECTORS))


def column(collection: Collection, name: str) -> list[Any]:
    shown = metadata_of(collection)
    return [shown[image_id][name] for image_id in IDS]


@pytest.fixture
def annotate(collection: Collection, run: Run, tmp_path: Path) -> Callable[..., Result]:
    """Writes a head, if there is one, and annotates `points` with it."""

    def command(name: str, head: bytes | None, *labels: str) -> Result:
        if head is not None:
            (tmp_path / name).write_bytes(head)
        options = [option for label in labels for option in ("--label", label)]
        return run("annotate", collection.location, "--name", "points", "--head", tmp_path / name, *options)

    return command


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (("weight", "bias"), (1, DIM)),
        (("linear.weight", "linear.bias"), (DIM,)),
        (("coef_", "intercept_"), (1, DIM)),
        (("head.weight", None), (DIM,)),
    ],
    ids=str,
)
def test_a_head_with_one_output_gives_it_as_it_is(
    collection: Collection, annotate: Callable[..., Result], names: tuple[str, str | None], shape: tuple[int, ...]
) -> None:
    tensors = {names[0]: WEIGHT[0].reshape(shape)} | ({names[1]: BIAS[:1]} if names[1] else {})
    done = annotate("points.safetensors", save(tensors))
    assert (done.code, done.err) == (0, "")
    expected = VECTORS @ WEIGHT[0] + (BIAS[0] if names[1] else 0)
    assert column(collection, "points") == pytest.approx(expected, abs=1e-5)
    assert "points_margin" not in metadata_of(collection)[IDS[0]]


def test_several_outputs_are_named_by_labels(collection: Collection, annotate: Callable[..., Result], run: Run) -> None:
    labels, name = ["safe", "racy", "hässlich"], "Köpfe.safetensors"
    head = save({"weight": WEIGHT.astype(np.float16), "bias": BIAS})
    assert annotate(name, head, *labels).code == 0
    chances = torch.softmax(torch.from_numpy(VECTORS @ WEIGHT.T + BIAS), dim=1).numpy()
    ordered = np.sort(chances, axis=1)
    named = [labels[best] for best in chances.argmax(axis=1)]
    assert column(collection, "points") == named
    assert column(collection, "points_score") == pytest.approx(ordered[:, -1], abs=1e-3)
    assert column(collection, "points_margin") == pytest.approx(ordered[:, -1] - ordered[:, -2], abs=1e-3)
    assert "0 of 30 images annotated, 30 were up to date" in annotate(name, head, *labels).out
    refused = run("annotate", collection.location, "--name", "points", "--clusters", "2").err
    assert "--name points has head Köpfe.safetensors, 30 images" in refused
    other = save({"weight": -WEIGHT, "bias": BIAS})
    assert "30 of 30 images annotated" in annotate(name, other, *labels).out
    assert column(collection, "points") != named


@pytest.mark.parametrize("labels", [(), ("one", "two")])
def test_onnx_gives_what_its_graph_does(
    collection: Collection, annotate: Callable[..., Result], labels: tuple[str, ...]
) -> None:
    weight = WEIGHT[: len(labels) or 1]
    done = annotate("head.onnx", one_layer(weight), *labels)
    assert (done.code, done.err) == (0, "")
    expected = 1 / (1 + np.exp(-VECTORS @ weight.T))
    assert column(collection, "points_score" if labels else "points") == pytest.approx(expected.max(axis=1), abs=1e-5)


ONES = np.ones((1, DIM), np.float32)
WRONG: dict[str, tuple[str, bytes | None, str]] = {
    "of another model": (
        "h.safetensors",
        save({"weight": np.ones((1, 512), np.float32)}),
        "on 8-dimensional vectors of hand-made: it has weight (1, 512): expected one layer, with a weight (outputs, 8)",
    ),
    "with classes but no labels": (
        "h.safetensors",
        save({"weight": WEIGHT, "bias": BIAS}),
        "outputs of the shape (2, 3) for 2 vectors: expected (n, 1)",
    ),
    "of two layers": (
        "h.safetensors",
        save({"0.weight": WEIGHT, "2.weight": WEIGHT[:1]}),
        "it has 0.weight (3, 8), 2.weight (1, 8): expected one layer",
    ),
    "without a weight": ("h.safetensors", save({"scale": WEIGHT}), "it has scale (3, 8): expected one layer"),
    "with a bias of another shape": (
        "h.safetensors",
        save({"weight": WEIGHT, "bias": BIAS[:2]}),
        "it has bias (2,), weight (3, 8): expected",
    ),
    "not finite": ("h.safetensors", save({"weight": ONES * np.nan}), "expected finite weights"),
    "too large for float32": ("h.safetensors", save({"weight": np.full((1, DIM), 1e300)}), "expected finite weights"),
    "without outputs": ("h.safetensors", save({"weight": ONES[:0]}), "it has weight (0, 8): expected"),
    "in bfloat16": (
        "h.safetensors",
        save_torch({"weight": torch.ones(1, DIM, dtype=torch.bfloat16)}),
        "expected safetensors of float32 or float16",
    ),
    "damaged": ("h.safetensors", b"\xff" * 40, "expected safetensors of"),
    "a pickle": ("h.pt", b"", "a file .safetensors or .onnx"),
    "a folder": ("", None, "Is a directory"),
    "missing": ("h.onnx", None, "No such file"),
    "damaged ONNX": ("h.onnx", b"\x08\x08" * 40, "OpenVINO cannot load it as ONNX"),
    "ONNX of another model": ("h.onnx", one_layer(np.ones((1, 9), np.float32)), "9"),
    "ONNX for one row": ("h.onnx", one_layer(WEIGHT[:1], rows=1), "h.onnx, on 8-dim"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_head_is_refused(annotate: Callable[..., Result], tmp_path: Path, case: str) -> None:
    name, head, expected = WRONG[case]
    done = annotate(name, head)
    assert done.code == 2
    assert f"--head is {tmp_path / name}" in done.err
    assert expected in done.err


def test_a_single_output_takes_no_label_and_may_not_overflow(
    annotate: Callable[..., Result], recwarn: pytest.WarningsRecorder
) -> None:
    head = save({"weight": ONES * np.float32(3e38), "bias": np.full(1, 3e38, np.float32)})
    assert "a head with one output has no labels" in annotate("h.safetensors", head, "good").err
    done = annotate("h.safetensors", head)
    assert (done.code, not recwarn.list) == (1, True)
    assert "the head's outputs are not all finite" in done.err
