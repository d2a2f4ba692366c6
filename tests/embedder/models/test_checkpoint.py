"""What a checkpoint's folder must contain, how its settings are read, and what its fingerprint depends on."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPModel,
    CLIPVisionConfig,
    Dinov2Config,
    Dinov2WithRegistersConfig,
    PreTrainedConfig,
    SiglipVisionConfig,
)

from embedder.errors import ModelError, ModelNotFoundError
from embedder.images import CropSpec
from embedder.models.checkpoint import DEMO_MODEL, Checkpoint
from embedder.models.clip import ClipEmbedder
from embedder.models.families import vision_config
from tests.support.pictures.tiny_checkpoints import noise

Change = Callable[[Path], object]


@pytest.fixture
def original(checkpoints: dict[str, Path]) -> Path:
    return checkpoints["clip"]


def load(folder: Path) -> ClipEmbedder:
    return ClipEmbedder.load(str(folder), device="cpu")


def fingerprint(folder: Path) -> str:
    return Checkpoint.find(str(folder)).identity.fingerprint


def rewritten(name: str, text: str | None = None, **changes: Any) -> Change:
    """Replaces a file's text, or changes its JSON."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(text or json.dumps(json.loads(path.read_text()) | changes))

    return change


config = partial(rewritten, "config.json")
settings = partial(rewritten, "preprocessor_config.json")


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        content = load_file(folder / "model.safetensors")
        change(content)
        save_file(content, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def truncate_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def test_a_copied_and_a_saved_again_checkpoint_are_the_same(original: Path, copied: Path, tmp_path: Path) -> None:
    expected = fingerprint(original)
    model = CLIPModel.from_pretrained(copied)
    for name, shard in (("one", "1GB"), ("many", "1MB")):
        model.save_pretrained(tmp_path / name, max_shard_size=shard)
        settings = json.loads((copied / "preprocessor_config.json").read_text())
        (tmp_path / name / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    for folder in (copied, tmp_path / "one", tmp_path / "many"):
        assert load(folder).identity.fingerprint == expected


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("clip", CLIPVisionConfig),
        ("siglip", SiglipVisionConfig),
        ("dinov2", Dinov2Config),
        ("dinov2_with_registers", Dinov2WithRegistersConfig),
    ],
)
def test_defaults_of_a_configuration_are_those_of_transformers(model_type: str, config: type[PreTrainedConfig]) -> None:
    ours = vision_config(model_type, {})
    theirs = config().to_dict()
    assert ours == {name: theirs[name] for name in ours}
    assert len(ours) == 7
    assert vision_config(model_type, {"vision_config": {"patch_size": 3}, "patch_size": 3})["patch_size"] == 3


def change_epsilon(folder: Path) -> None:
    vision = json.loads((folder / "config.json").read_text())["vision_config"]
    config(vision_config={**vision, "layer_norm_eps": 1e-6})(folder)


PROJECTION = "visual_projection.weight"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(weights(lambda content: content[PROJECTION][0, 0].add_(0.001)), id="a weight"),
        pytest.param(change_epsilon, id="epsilon"),
        pytest.param(settings(image_mean=[0.5, 0.5, 0.5]), id="mean"),
        pytest.param(settings(resample=2), id="resample"),
    ],
)
def test_whatever_changes_the_vectors_changes_the_fingerprint(original: Path, copied: Path, change: Change) -> None:
    change(copied)
    assert fingerprint(copied) != fingerprint(original)


def test_the_settings_of_the_first_clip_checkpoints_are_read_as_the_same_crop(original: Path, copied: Path) -> None:
    settings = json.loads((copied / "preprocessor_config.json").read_text())
    old = {key: settings[key] for key in ("do_center_crop", "do_resize", "image_mean", "image_std", "resample")}
    (copied / "preprocessor_config.json").write_text(json.dumps({**old, "size": 64, "crop_size": 64}))
    assert fingerprint(copied) == fingerprint(original)


def test_pytorch_weights_are_read_if_there_are_no_safetensors(original: Path, copied: Path) -> None:
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    embedder = load(copied)
    assert np.array_equal(embedder.embed_images(noise(2, 64)), load(original).embed_images(noise(2, 64)))


def lose_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "first.safetensors"}}')


def test_a_bare_size_without_a_crop_is_the_side_of_the_square(copied: Path) -> None:
    path = copied / "preprocessor_config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**{key: content[key] for key in ("image_mean", "image_std", "resample")}, "size": 64}))
    assert load(copied).crop == CropSpec(side=64, shortest_edge=None)


UNFIT: dict[str, tuple[Change, str]] = {
    "no config": (without("config.json"), r"it has no config\.json: give the folder"),
    "no weights": (without("model.safetensors"), r"no weights: expected model\.safetensors or pytorch_model\.bin"),
    "a shard short": (lose_shard, r"lacks \['first\.safetensors'\] named in model\.safetensors\.index\.json"),
    "broken config": (rewritten("config.json", "{"), r"config\.json cannot be read"),
    "config of a list": (rewritten("config.json", "[]"), "expected a JSON object, got list"),
    "another family": (config(model_type="bert"), "expected a model of type clip, .* got bert"),
    "naflex": (config(model_type="siglip2"), "NaFlex .* use a checkpoint of fixed resolution"),
    "truncated weights": (truncate_weights, r"model\.safetensors cannot be loaded"),
    "a weight short": (
        weights(lambda content: content.pop(PROJECTION)),
        r"no fitting weights for \['visual_projection\.weight'\]",
    ),
    "a weight of another shape": (
        weights(lambda content: content.update({PROJECTION: content[PROJECTION][:5].clone()})),
        r"no fitting weights for \['visual_projection\.weight \(\(5, \d+\), expected \(64, \d+\)\)'\]: it does not",
    ),
    "no preprocessing": (without("preprocessor_config.json"), r"expected preprocessor_config\.json"),
    "oblong crop": (settings(crop_size={"height": 64, "width": 32}), "is not square"),
    "no centre crop": (settings(do_center_crop=False), "without a centre crop"),
    "crop beyond the picture": (settings(size={"shortest_edge": 32}), "side <= shortest_edge"),
    "no resize": (settings(do_resize=False), "not resized"),
    "size of a list": (settings(size=[64, 64]), "AttributeError: 'list' object"),
    "longest edge": (settings(size={"longest_edge": 64}), "KeyError: 'height'"),
    "one channel": (settings(image_mean=[0.5]), "three channels"),
    "another crop": (settings(size=96, crop_size=96), "does not take the crops of 96 × 96 pixels"),
}


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x40" + bytes(99)])
def test_a_file_that_is_not_safetensors_is_named(copied: Path, content: bytes) -> None:
    (copied / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors is not a safetensors file .* `git lfs pull`"):
        fingerprint(copied)


def test_the_demo_model_has_the_same_name_wherever_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Checkpoint.find("demo")
    monkeypatch.setattr("embedder.models.checkpoint.DEMO_MODEL", Path(shutil.copytree(DEMO_MODEL, tmp_path / "demo")))
    there = Checkpoint.find("demo")
    assert here.folder != there.folder == tmp_path / "demo"
    assert here.identity == there.identity
    assert here.identity.model_id == "demo"


@pytest.mark.parametrize(
    ("model", "revision", "message"),
    [
        ("demo", "main", "only hub ids have revisions: leave 'main' out"),
        ("~nobody-here/model", None, r"there is no folder .*~nobody-here/model: give the folder"),
        (".", "main", "only hub ids have revisions: leave 'main' out"),
    ],
)
def test_what_is_no_checkpoint_is_named(model: str, revision: str | None, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Checkpoint.find(model, revision)


@pytest.mark.parametrize("damage", UNFIT)
def test_a_damaged_or_unfit_checkpoint_says_what_is_wrong(copied: Path, damage: str) -> None:
    spoil, message = UNFIT[damage]
    spoil(copied)
    with pytest.raises(ModelError, match=message) as caught:
        load(copied)
    assert isinstance(caught.value, ModelNotFoundError) == (damage in ("no config", "no weights", "a shard short"))
