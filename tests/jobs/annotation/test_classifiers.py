"""Classes and confidences agree with transformers, for pictures of all formats."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import (
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    pipeline,
)
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from embedder.models.checkpoint import DEMO_MODEL
from index.collection import Collection
from index.collection.annotations import list_annotations
from index.search import Searcher
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.command_line import Run
from tests.support.pictures.photographs import sixty_pictures, upright
from tests.support.pictures.tiny_checkpoints import TOWER

CLASSES = {number: f"class {number}" for number in range(12)}
_NAMES: dict[str, Any] = {"id2label": CLASSES, "label2id": {name: number for number, name in CLASSES.items()}}
Family = tuple[PreTrainedModel, Any, Any]
"""A model, its last layer, and its image processor."""


def resnet() -> Family:
    """A narrow ResNet, preprocessed like microsoft/resnet-50: the middle 224 of 256 pixels."""
    config = ResNetConfig(
        hidden_sizes=[16, 32, 48, 64], embedding_size=16, depths=[1] * 4, layer_type="basic", **_NAMES
    )
    model = ResNetForImageClassification(config)
    return model, model.classifier[-1], ConvNextImageProcessorPil(size={"shortest_edge": 224}, crop_pct=0.875)


def vit() -> Family:
    """A narrow ViT, preprocessed like google/vit-base-patch16-224: the whole picture, squashed."""
    model = ViTForImageClassification(ViTConfig(**TOWER, **_NAMES))
    return model, model.classifier, ViTImageProcessorPil()


@torch.no_grad()
def save(family: Callable[[], Family], pictures: list[Image.Image], folder: Path) -> None:
    """A checkpoint with random weights, whose last layer is scaled to distinguish these pictures."""
    torch.manual_seed(1)
    model, head, processor = family()
    model.train(mode=False)
    logits = model(processor(pictures, return_tensors="pt")["pixel_values"]).logits
    scale = 2 / logits.std(dim=0).mean()
    head.weight.mul_(scale)
    head.bias.sub_(logits.mean(dim=0)).mul_(scale)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Image.Image]:
    """Files, and each picture as transformers gets it: upright, in RGB, transparency over white."""
    folder, pictures = tmp_path_factory.mktemp("pictures"), {}
    for name, data in sixty_pictures():
        path = folder / name
        path.write_bytes(data)
        pictures[path] = upright(data)
    return pictures


@pytest.mark.slow
@pytest.mark.parametrize("family", [resnet, vit])
def test_classes_and_confidences_agree_with_transformers(
    family: Callable[[], Family], pictures: dict[Path, Image.Image], collection: Collection, run: Run, tmp_path: Path
) -> None:
    uris = [str(path) for path in pictures]
    add_version(collection, rows([path.name for path in pictures], unit_vectors(len(pictures)), uris=uris))
    model = tmp_path / "model"
    save(family, list(pictures.values()), model)
    done = run("annotate", collection.location, "--name", "c", "--classifier", model, "--top-k", len(CLASSES))
    assert done.code == 0, done.err
    assert list_annotations(collection)[0].runs[0].model.id == f"classes by {model}"
    classify: Any = pipeline("image-classification", str(model), device="cpu")
    searcher, classes = Searcher.open(collection), set()
    for path, picture in pictures.items():
        row = searcher.row(path.name)
        assert row is not None
        expected = {each["label"]: each["score"] for each in classify(picture, top_k=len(CLASSES))}
        assert (row["c"], row["c_score"]) == (row["c_classes"][0], row["c_scores"][0])
        assert row["c"] == next(iter(expected)), path.name
        assert dict(zip(row["c_classes"], row["c_scores"], strict=True)) == pytest.approx(expected, abs=1e-4), path.name
        classes.add(row["c"])
    assert len(classes) >= 5, "the model does not distinguish pictures, so agreement shows nothing"


def test_a_model_that_is_not_a_classifier_is_refused(collection: Collection, run: Run) -> None:
    add_run(collection, rows(["a.png"], unit_vectors(1)))
    assert run("annotate", collection.location, "--name", "c", "--classifier", "demo").code == 2
    refused = run("annotate", collection.location, "--name", "c", "--classifier", DEMO_MODEL)
    assert "expected a model for image classification, got CLIPModel" in refused.err
