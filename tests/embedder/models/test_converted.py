"""Checkpoints converted for OpenVINO: the same vectors, without torch."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embedder.errors import ModelError
from embedder.identity import Precision
from embedder.models import export, load
from embedder.models.checkpoint import DEMO_MODEL, Checkpoint
from embedder.models.clip import ClipEmbedder
from embedder.models.converted import CACHE_DIR, ConvertedEmbedder, conversion_folder
from embedder.models.load import load_embedder
from embedder.protocol import Embedder
from index.collection.cache.file_cache import FileCache
from index.errors import CollectionError
from tests.support.pictures.tiny_checkpoints import noise
from tests.support.processes import python

TEXTS = ["a red star", "Two BLUE moons beside a green, dotted square " * 20, "", "☃ état"]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the demo model's conversion to int8, in a cache of its own, which tests may damage."""
    folder = conversion_folder(Checkpoint.find(str(DEMO_MODEL)), "int8")
    assert folder is not None
    monkeypatch.setenv(CACHE_DIR, str(tmp_path))
    return Path(shutil.copytree(folder, tmp_path / "models" / folder.name))


@pytest.mark.parametrize("family", ["clip", "siglip", "dinov2"])
def test_vectors_agree_with_torch(checkpoints: dict[str, Path], family: str) -> None:
    folder = str(checkpoints[family])
    ours: Embedder = load_embedder(folder, device="cpu", batch_size=3)
    exact = ClipEmbedder.load(folder, device="cpu")
    assert (type(ours), type(exact)) == (ConvertedEmbedder, ClipEmbedder)
    assert (ours.identity, ours.crop) == (exact.identity, exact.crop)
    pixels = noise(7, ours.crop.side)
    vectors = ours.embed_images(pixels)
    assert vectors.dtype == np.float32
    assert np.einsum("nd,nd->n", vectors, exact.embed_images(pixels)).min() > 0.999
    assert ours.embed_images(pixels[:0]).shape == (0, vectors.shape[1])
    if family == "dinov2":
        with pytest.raises(ModelError, match="knows pictures only"):
            ours.embed_texts(TEXTS)
        return
    assert np.einsum("nd,nd->n", ours.embed_texts(TEXTS), exact.embed_texts(TEXTS)).min() > 0.999
    assert ours.embed_texts([]).shape == (0, vectors.shape[1])
    with pytest.raises(ModelError, match="got one text"):
        ours.embed_texts("a red star")


@pytest.mark.parametrize(
    "precision", ["auto", *(pytest.param(each, marks=pytest.mark.slow) for each in ("fp32", "bf16")), "int8"]
)
def test_vectors_do_not_depend_on_batch_and_threads_to_the_last_bit(precision: Precision) -> None:
    embedder = load_embedder(str(DEMO_MODEL), precision=precision)
    assert isinstance(embedder, ConvertedEmbedder)
    assert precision in ("auto", embedder.precision)
    pixels = noise(64, embedder.crop.side)
    together = embedder.embed_images(pixels)
    on_one_thread = load_embedder(str(DEMO_MODEL), precision=precision, threads=1)
    np.testing.assert_array_equal(on_one_thread.embed_images(pixels), together)
    for rows in (slice(0, 1), slice(5, 12), slice(3, 40)):
        np.testing.assert_array_equal(embedder.embed_images(pixels[rows]), together[rows])


@pytest.mark.parametrize(
    ("agreement", "seconds", "chosen"),
    [
        ({"fp32": 1, "bf16": 0.9999, "int8": 0.9995}, {"fp32": 4.0, "bf16": 2.0, "int8": 1.5}, "int8"),
        ({"fp32": 1, "bf16": 0.9999, "int8": 0.9995}, {"fp32": 4.0, "bf16": 2.0, "int8": 1.9}, "bf16"),
        ({"fp32": 1, "bf16": 0.9999, "int8": 0.9985}, {"fp32": 4.0, "bf16": 3.9, "int8": 1.0}, "fp32"),
        ({"fp32": 1, "bf16": 0.9985, "int8": 0.9995}, {"fp32": 4.0, "bf16": 1.0, "int8": 2.0}, "int8"),
    ],
)
def test_the_fastest_precision_that_agrees_is_chosen(
    agreement: dict[Precision, float], seconds: dict[Precision, float], chosen: Precision
) -> None:
    assert export._fastest(agreement, seconds) == chosen


def test_a_converted_model_needs_no_torch_and_leaves_signals_as_they_were(demo: Path) -> None:
    """The runtime once left threads with a stack for signals that it had freed."""
    source = f"""
import gc, os, signal, sys
from embedder.models.load import load_embedder
from numpy import zeros
models = [load_embedder({str(DEMO_MODEL)!r}, device="cpu", precision="int8") for _ in range(2)]
for model in models:
    model.embed_texts(["a red star"]), model.embed_images(zeros((1, model.crop.side, model.crop.side, 3), "uint8"))
del model, models[:]
gc.collect()
print({{"torch", "transformers"}} & set(sys.modules))
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = python("-c", source)
    assert (done.returncode, done.stdout) == (0, "set()\ninterrupted\n")


def test_conversions_are_not_reported_to_the_makers_of_the_runtime() -> None:
    from openvino.tools.ovc import telemetry_utils  # after embedder.models.export, as in a conversion

    assert telemetry_utils.tm.__name__ == "openvino.tools.ovc.telemetry_stub"


def test_int8_that_is_another_model_is_refused_with_the_figure(demo: Path) -> None:
    about = json.loads((demo / "about.json").read_text())
    (demo / "about.json").write_text(json.dumps({**about, "agreement": 0.9871}))
    with pytest.raises(ModelError, match=r"0\.9871 in the worst case, expected at least 0\.999: use precision fp32"):
        load_embedder(str(DEMO_MODEL), precision="int8")


def test_a_damaged_conversion_is_named(demo: Path) -> None:
    (demo / "image.bin").write_bytes(b"")
    embedder = load_embedder(str(DEMO_MODEL), precision="int8")
    with pytest.raises(ModelError, match=r"image\.xml cannot be loaded .*: remove .* to convert it again"):
        embedder.embed_images(noise(1, embedder.crop.side))


def test_a_conversion_belongs_to_a_tokenizer(demo: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(DEMO_MODEL, tmp_path / "other"))
    assert conversion_folder(Checkpoint.find(str(other)), "int8", convert=False) == demo
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + "\n")
    assert conversion_folder(Checkpoint.find(str(other)), "int8", convert=False) is None


def test_torch_is_used_if_a_model_cannot_be_converted(
    copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "a file"))
    (tmp_path / "a file").write_text("")
    assert isinstance(load_embedder(str(copied), device="cpu"), ClipEmbedder)
    assert "continuing with torch" in caplog.text
    with pytest.raises(ModelError, match=rf"converted models cannot be stored .*: set {CACHE_DIR} to a folder"):
        load_embedder(str(copied), precision="int8")


@pytest.mark.parametrize(("end", "message"), [("exit 3", "OpenVINO: noise$"), ("sleep 9", "out after 0.5 seconds$")])
def test_a_failed_conversion_says_why(
    end: str, message: str, copied: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\necho noise >&2\n{end}\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("embedder.models.converted._TIMEOUT_S", 0.5)
    with pytest.raises(ModelError, match=message):
        load_embedder(str(copied), precision="int8")


def test_a_conversion_is_not_disturbed_by_files_named_like_modules(
    copied: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It gets as far as a module of this name on the path, which ends it."""
    for folder, name in (("here", "embedder"), ("script", "types"), ("script", "openvino")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.py").write_text(f"raise SystemExit('imported {name}')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "script")
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    with pytest.raises(ModelError, match=r"OpenVINO: imported openvino$"):
        conversion_folder(Checkpoint.find(str(copied)), "fp32")


@pytest.mark.filterwarnings("ignore")  # torch warns of itself
def test_a_checkpoint_is_converted(copied: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In this process, which has loaded torch; those of other tests may be in the cache since an earlier run."""

    def run(command: list[str], **_: object) -> None:
        export.run(*json.loads(command[-1])[2])

    config = json.loads((copied / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        config[tower]["num_hidden_layers"] = 1  # each takes a second
    (copied / "config.json").write_text(json.dumps(config))
    here = SimpleNamespace(run=run, SubprocessError=subprocess.SubprocessError)
    monkeypatch.setattr("embedder.models.converted.subprocess", here)
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    ours = load_embedder(str(copied), device="cpu", precision="fp32")
    exact = ClipEmbedder.load(str(copied), device="cpu")
    pixels = noise(2, ours.crop.side)
    np.testing.assert_allclose(ours.embed_images(pixels), exact.embed_images(pixels), atol=1e-5)
    np.testing.assert_allclose(ours.embed_texts(TEXTS), exact.embed_texts(TEXTS), atol=1e-5)


def set_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, path: str) -> None:
    """Set an environment variable to a path below `tmp_path`, which has a `file`, and is where /tmp would be."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for name in (CACHE_DIR, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / path))


@pytest.mark.parametrize(
    ("variable", "path", "folder"),
    [
        (CACHE_DIR, "here", "here"),
        ("XDG_CACHE_HOME", "caches", "caches/likeness"),
        ("HOME", "home", "home/.cache/likeness"),
        ("XDG_CACHE_HOME", "file", f"likeness-{os.getuid()}"),
    ],
)
def test_models_are_stored_beside_index_files(
    demo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, path: str, folder: str
) -> None:
    set_cache(monkeypatch, tmp_path, variable, path)
    assert FileCache.from_environment().folder == tmp_path / folder
    stored = shutil.copytree(demo, tmp_path / folder / "models" / demo.name)
    assert conversion_folder(Checkpoint.find(str(DEMO_MODEL)), "int8", convert=False) == stored


@pytest.mark.parametrize(
    ("variable", "path", "temporary", "problem"),
    [
        (CACHE_DIR, "file/below", "", rf"cannot be .*Not a directory.*: set {CACHE_DIR} to a folder"),
        ("XDG_CACHE_HOME", "file", "file", rf"cannot be .*Not a directory.*: set {CACHE_DIR} to a folder"),
        ("XDG_CACHE_HOME", "file", "", rf"likeness-\d+, .* is another user's: set {CACHE_DIR}"),
    ],
)
def test_a_cache_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, path: str, temporary: str, problem: str
) -> None:
    """In /tmp anybody can create a folder with this user's id."""
    set_cache(monkeypatch, tmp_path, variable, path)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / temporary))
    other = os.getuid() + 1
    (tmp_path / f"likeness-{other}").mkdir()
    monkeypatch.setattr("os.getuid", lambda: other)
    with pytest.raises(CollectionError, match=problem):
        FileCache.from_environment()
    with pytest.raises(ModelError, match=problem):
        conversion_folder(Checkpoint.find(str(DEMO_MODEL)), "int8")


def test_a_small_job_awaits_no_conversion(copied: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "none"))
    assert isinstance(load_embedder(str(copied), device="cpu", convert=False), ClipEmbedder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8", "device": "cuda"}, "int8 is only for CPUs, but the device is cuda"),
        ({"batch_size": 0}, "at least 1, got 0 and None"),
        ({"threads": 0}, "at least 1, got 64 and 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_embedder(str(DEMO_MODEL), **options)  # type: ignore[arg-type]


def test_torch_is_used_on_a_machine_with_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_ACCELERATORS", (__file__,))
    assert isinstance(load_embedder(str(DEMO_MODEL)), ClipEmbedder)
