"""Loading every supported family from tiny checkpoints, and properties of the vectors."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPModel, CLIPTokenizer, SiglipModel
from transformers.utils import logging as transformers_logging

from embedder.errors import ModelError
from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.models.clip import ClipEmbedder
from embedder.models.torch_loading import pick_device, pick_dtype
from embedder.protocol import Embedder
from tests.support.pictures.tiny_checkpoints import noise
from tests.support.processes import python

Load = Callable[..., ClipEmbedder]
"""Loads the model of a family."""


@pytest.fixture
def load(checkpoints: dict[str, Path]) -> Load:
    return lambda family, **options: ClipEmbedder.load(str(checkpoints[family]), device="cpu", **options)


@pytest.mark.parametrize(
    ("family", "dim", "crop"),
    [
        ("clip", 64, CropSpec(side=64, shortest_edge=64)),
        ("siglip", 32, CropSpec(side=32, shortest_edge=None, resample=Image.Resampling.BILINEAR)),
        ("dinov2", 32, CropSpec(side=28, shortest_edge=32)),
    ],
)
def test_every_family(load: Load, checkpoints: dict[str, Path], family: str, dim: int, crop: CropSpec) -> None:
    """Each has unit vectors that do not depend on their batch, of the length in its checkpoint."""
    embedder: Embedder = load(family, batch_size=3)
    assert Checkpoint.find(str(checkpoints[family])).identity == embedder.identity
    pixels = noise(7, crop.side)
    pixels.setflags(write=False)  # like arrays from Arrow
    vectors = embedder.embed_images(pixels)
    assert embedder.crop == crop
    assert embedder.identity.dim == dim
    assert vectors.shape == (7, dim)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for row in range(7):
        np.testing.assert_allclose(embedder.embed_images(pixels[row : row + 1])[0], vectors[row], atol=1e-5)
    assert embedder.embed_images(pixels[:0]).shape == (0, dim)


def test_a_local_model_is_named_by_its_absolute_path(
    load: Load, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoints["clip"].parent)
    identity = ClipEmbedder.load("clip", device="cpu").identity
    assert identity == load("clip").identity
    assert identity.model_id == str(checkpoints["clip"].resolve())
    assert identity.revision is None


def test_clip_texts_agree_with_the_model_given_each_text_alone(load: Load, checkpoints: dict[str, Path]) -> None:
    texts = ["a red star", "the striped purple moon on a dark background", "red " * 100]
    model, tokenizer = (
        CLIPModel.from_pretrained(checkpoints["clip"]),
        CLIPTokenizer.from_pretrained(checkpoints["clip"]),
    )
    with torch.inference_mode():
        expected = np.concatenate([
            model.get_text_features(**tokenizer([text], return_tensors="pt", truncation=True)).pooler_output
            for text in texts
        ])  # fmt: skip

    embedder = load("clip", batch_size=2)
    vectors = embedder.embed_texts(texts)
    assert vectors.dtype == np.float32
    assert embedder.embed_texts([]).shape == (0, 64)
    np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)


def test_siglip_texts_are_lowered_and_padded_on_the_right(load: Load, checkpoints: dict[str, Path]) -> None:
    model = SiglipModel.from_pretrained(checkpoints["siglip"])
    tokens = torch.tensor([[2, 3, 5, 0, 0, 0, 0, 0], [3] * 8])
    with torch.inference_mode():
        expected = model.get_text_features(input_ids=tokens).pooler_output.numpy()

    vectors = load("siglip").embed_texts(["A red STAR", "red " * 12])
    np.testing.assert_allclose(vectors, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "embed", "message"),
    [
        ("clip", lambda clip: clip.embed_texts("red"), r"pass \['red'\]"),
        ("clip", lambda clip: clip.embed_images(noise(2, 32)), r"uint8 \(n, 64, 64, 3\), got uint8 \(2, 32, 32, 3\)"),
        ("clip", lambda clip: clip.embed_images(noise(1, 64).astype(np.float32)), "got float32"),
        ("dinov2", lambda dino: dino.embed_texts(["red"]), r"\(dinov2\) knows pictures only: search by a picture"),
    ],
)
def test_invalid_input_is_refused(load: Load, family: str, embed: Callable[[Embedder], object], message: str) -> None:
    embedder = load(family)
    with pytest.raises(ModelError, match=message):
        embed(embedder)


def test_without_a_tokenizer_pictures_work_and_texts_raise_the_reason(copied: Path) -> None:
    for file in copied.glob("tokenizer*"):
        file.unlink()
    embedder = ClipEmbedder.load(str(copied), device="cpu")
    assert embedder.embed_images(noise(1, 64)).shape == (1, 64)
    with pytest.raises(ModelError, match=r"because there is no tokenizer: expected one of tokenizer.json"):
        embedder.embed_texts(["red"])


def test_out_of_memory_halves_the_batch_down_to_one_picture(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = load("clip", batch_size=16)
    pixels, encode = noise(20, 64), vars(CLIPModel)["get_image_features"]
    expected, largest = embedder.embed_images(pixels), 5

    def limited(pixel_values: torch.Tensor) -> Any:
        if len(pixel_values) > largest:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return encode(embedder.model, pixel_values=pixel_values)

    monkeypatch.setattr(embedder.model, "get_image_features", limited)
    np.testing.assert_allclose(embedder.embed_images(pixels), expected, atol=1e-5)
    assert embedder.batch_size == 5
    largest = 0
    with pytest.raises(ModelError, match=r"no memory left for a single input .* use a smaller model"):
        embedder.embed_images(pixels)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_vector_without_direction_is_an_error(load: Load, value: float) -> None:
    embedder = load("clip")
    with torch.no_grad():
        embedder.model.get_submodule("visual_projection").get_parameter("weight").fill_(value)

    with pytest.raises(ModelError, match=r"gave 2 of 2 inputs a vector that is zero or not finite \(.* number 0\)"):
        embedder.embed_images(noise(2, 64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_nearly_the_same_float32_vectors_and_the_same_fingerprint(
    load: Load, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    exact = load("clip")
    monkeypatch.setattr("embedder.models.clip.pick_dtype", lambda *_: dtype)
    half = load("clip")
    pixels = noise(4, 64)
    vectors = half.embed_images(pixels)
    assert vectors.dtype == np.float32
    assert half.identity == exact.identity
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.einsum("nd,nd->n", vectors, exact.embed_images(pixels)).min() > 0.999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "expected a device such as cuda"),
        ({"device": "cuda"}, r"device 'cuda' was requested, but torch .* sees no CUDA device"),
    ],
)
def test_invalid_options_are_refused(
    checkpoints: dict[str, Path], options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=message):
        ClipEmbedder.load(str(checkpoints["clip"]), **options)


@pytest.mark.parametrize("bfloat16", [True, False])
def test_cuda_is_preferred_with_the_best_half_precision_it_has(monkeypatch: pytest.MonkeyPatch, bfloat16: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bfloat16)
    assert pick_device(None).type == "cuda"
    assert pick_dtype(pick_device("cuda:0")) == (torch.bfloat16 if bfloat16 else torch.float16)
    assert pick_dtype(pick_device("cpu")) == torch.float32


def test_loading_is_silent_and_leaves_the_logging_of_transformers_as_it_was(
    checkpoints: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    ClipEmbedder.load(str(checkpoints["clip"]), device="cpu")
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled() == bars


def test_threads_are_set(load: Load) -> None:
    before = torch.get_num_threads()
    try:
        load("clip", threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_the_actor_does_not_import_torch() -> None:
    code = "import sys, jobs.embedding.stages; print('torch' in sys.modules)"
    assert python("-c", code).stdout == "False\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.slow
def test_loading_leaves_no_openmp_threads_behind(checkpoints: dict[str, Path]) -> None:
    code = (
        "import os, sys, time; from embedder.models.clip import ClipEmbedder\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "before, deadline = threads(), time.monotonic() + 20\n"
        "ClipEmbedder.load(sys.argv[1], device='cpu')\n"
        "while threads() > before and time.monotonic() < deadline: time.sleep(0.01)\n"  # they end by themselves
        "print(threads() - before)"
    )
    assert python("-c", code, checkpoints["clip"], OMP_NUM_THREADS="4").stdout == "0\n"
