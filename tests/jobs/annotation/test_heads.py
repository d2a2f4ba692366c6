"""Heads that were trained elsewhere: their outputs become columns, and files that are no heads are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from index.collection import Collection
from tests.support.collections.hand_made import DIM, indexed, metadata_of, rows, unit_vectors
from tests.support.command_line import Run
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
    collection: Collection, run: Run, tmp_path: Path, names: tuple[str, str | None], shape: tuple[int, ...]
) -> None:
    tensors = {names[0]: WEIGHT[0].reshape(shape)} | ({names[1]: BIAS[:1]} if names[1] else {})
    save_file(tensors, tmp_path / "points.safetensors")
    done = run("annotate", collection.location, "--name", "points", "--head", tmp_path / "points.safetensors")
    assert (done.code, done.err) == (0, "")
    expected = VECTORS @ WEIGHT[0] + (BIAS[0] if names[1] else 0)
    assert column(collection, "points") == pytest.approx(expected, abs=1e-5)
    assert "points_margin" not in metadata_of(collection)[IDS[0]]


def test_several_outputs_are_named_by_labels(collection: Collection, run: Run, tmp_path: Path) -> None:
    path, labels = tmp_path / "Köpfe.safetensors", ["safe", "racy", "hässlich"]
    save_file({"weight": WEIGHT.astype(np.float16), "bias": BIAS}, path)
    named = [option for label in labels for option in ("--label", label)]
    assert run("annotate", collection.location, "--name", "nsfw", "--head", path, *named).code == 0
    chances = torch.softmax(torch.from_numpy(VECTORS @ WEIGHT.T + BIAS), dim=1).numpy()
    ordered = np.sort(chances, axis=1)
    assert column(collection, "nsfw") == [labels[best] for best in chances.argmax(axis=1)]
    assert column(collection, "nsfw_score") == pytest.approx(ordered[:, -1], abs=1e-3)
    assert column(collection, "nsfw_margin") == pytest.approx(ordered[:, -1] - ordered[:, -2], abs=1e-3)
    again = run("annotate", collection.location, "--name", "nsfw", "--head", path, *named).out
    assert "0 of 30 images annotated, 30 were up to date" in again
    assert (
        "--name nsfw has head Köpfe.safetensors, 30 images"
        in run("annotate", collection.location, "--name", "nsfw", "--clusters", "2").err
    )
    save_file({"weight": -WEIGHT, "bias": BIAS}, path)
    assert (
        "30 of 30 images annotated"
        in run("annotate", collection.location, "--name", "nsfw", "--head", path, *named).out
    )
    assert column(collection, "nsfw") != [labels[best] for best in chances.argmax(axis=1)]


@pytest.mark.parametrize("outputs", [1, 2])
def test_onnx_gives_what_its_graph_does(collection: Collection, run: Run, tmp_path: Path, outputs: int) -> None:
    (tmp_path / "head.onnx").write_bytes(one_layer(WEIGHT[:outputs]))
    labels = ["--label", "one", "--label", "two"] if outputs == 2 else []
    done = run("annotate", collection.location, "--name", "deep", "--head", tmp_path / "head.onnx", *labels)
    assert (done.code, done.err) == (0, "")
    expected = 1 / (1 + np.exp(-VECTORS @ WEIGHT[:outputs].T))
    assert column(collection, "deep_score" if labels else "deep") == pytest.approx(expected.max(axis=1), abs=1e-5)


def tensors(**named: Any) -> Callable[[Path], None]:
    return lambda path: save_file(named, path)


WRONG: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "of another model": (
        "h.safetensors",
        tensors(weight=np.ones((1, 512), np.float32)),
        "on 8-dimensional vectors of hand-made: it has weight (1, 512): expected one layer, with a weight (outputs, 8)",
    ),
    "with classes but no labels": (
        "h.safetensors",
        tensors(weight=WEIGHT, bias=BIAS),
        "outputs of the shape (2, 3) for 2 vectors: expected (n, 1)",
    ),
    "of two layers": (
        "h.safetensors",
        lambda path: save_file({"0.weight": WEIGHT, "2.weight": WEIGHT[:1]}, path),
        "it has 0.weight (3, 8), 2.weight (1, 8): expected one layer",
    ),
    "without a weight": ("h.safetensors", tensors(scale=WEIGHT), "it has scale (3, 8): expected one layer"),
    "with a bias of another shape": (
        "h.safetensors",
        tensors(weight=WEIGHT, bias=BIAS[:2]),
        "it has bias (2,), weight (3, 8): expected",
    ),
    "not finite": ("h.safetensors", tensors(weight=np.full((1, DIM), np.nan, np.float32)), "expected finite weights"),
    "too large for float32": ("h.safetensors", tensors(weight=np.full((1, DIM), 1e300)), "expected finite weights"),
    "without outputs": (
        "h.safetensors",
        tensors(weight=np.ones((0, DIM), np.float32)),
        "it has weight (0, 8): expected",
    ),
    "in bfloat16": (
        "h.safetensors",
        lambda path: save_torch_file({"weight": torch.ones(1, DIM, dtype=torch.bfloat16)}, path),
        "expected safetensors of float32 or float16",
    ),
    "damaged": ("h.safetensors", lambda path: path.write_bytes(b"\xff" * 40), "expected safetensors of"),
    "a pickle": ("h.pt", lambda path: torch.save({"weight": torch.ones(1, DIM)}, path), "a file .safetensors or .onnx"),
    "a folder": ("h.onnx", Path.mkdir, "Is a directory"),
    "missing": ("h.onnx", lambda path: None, "No such file"),
    "damaged ONNX": ("h.onnx", lambda path: path.write_bytes(b"\x08\x08" * 40), "OpenVINO cannot load it as ONNX"),
    "ONNX of another model": ("h.onnx", lambda path: path.write_bytes(one_layer(np.ones((1, 9), np.float32))), "9"),
    "ONNX for one row": ("h.onnx", lambda path: path.write_bytes(one_layer(WEIGHT[:1], rows=1)), "h.onnx, on 8-dim"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_head_is_refused(collection: Collection, run: Run, tmp_path: Path, case: str) -> None:
    name, write, expected = WRONG[case]
    write(tmp_path / name)
    done = run("annotate", collection.location, "--name", "points", "--head", tmp_path / name)
    assert done.code == 2
    assert f"--head is {tmp_path / name}" in done.err
    assert expected in done.err


def test_a_single_output_takes_no_label_and_may_not_overflow(
    collection: Collection, run: Run, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    save_file(
        {"weight": np.full((1, DIM), 3e38, np.float32), "bias": np.full(1, 3e38, np.float32)},
        tmp_path / "h.safetensors",
    )
    command = "annotate", collection.location, "--name", "points", "--head", tmp_path / "h.safetensors"
    assert "a head with one output has no labels" in run(*command, "--label", "good").err
    done = run(*command)
    assert (done.code, not recwarn.list) == (1, True)
    assert "the head's outputs are not all finite" in done.err
