"""Models with random weights: as slow as trained ones, and nothing to download."""

from itertools import chain, cycle
from pathlib import Path

import numpy as np
import torch
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPTokenizer,
    ResNetConfig,
    ResNetForImageClassification,
)
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

from benchmarks.models.captions import load_tokenizer
from benchmarks.models.train_demo_model import SIDE, build_model
from embedder.models.checkpoint import DEMO_MODEL
from jobs.demo.drawing import SHAPES, draw, random_subject

_SIDES = (64, 80, 112, 160)  # of the drawn pictures, in pixels
_BATCH, _EPOCHS = 128, 3


def save_clip(folder: Path, *, seed: int = 0, vocabulary: int | None = None) -> Path:
    """Write a CLIP of ViT-B/32's size in the Hugging Face layout, by default with our tokens; returns the folder."""
    torch.manual_seed(seed)
    tokenizer = load_tokenizer()
    text = {
        "vocab_size": vocabulary or len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return _save(folder, CLIPModel(CLIPConfig(text_config=text)), tokenizer, CLIPImageProcessorPil())


def save_small_clip(folder: Path, *, seed: int) -> Path:
    """Write a CLIP of the demo model's architecture; returns the folder."""
    torch.manual_seed(seed)
    tokenizer = load_tokenizer()
    processor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    return _save(folder, build_model(len(tokenizer), tokenizer.eos_token_id), tokenizer, processor)


def _save(folder: Path, model: CLIPModel, tokenizer: CLIPTokenizer, processor: CLIPImageProcessorPil) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def save_resnet50(folder: Path) -> Path:
    """Write an image-classification model of ResNet-50's size, with its preprocessing; returns the folder."""
    torch.manual_seed(0)
    names = {number: f"class {number}" for number in range(1000)}
    config = ResNetConfig(id2label=names, label2id={name: number for number, name in names.items()})
    ResNetForImageClassification(config).save_pretrained(folder)
    ConvNextImageProcessorPil(size={"shortest_edge": 224}, crop_pct=0.875).save_pretrained(folder)
    return folder


def save_demo_classifier(folder: Path, count: int) -> Path:
    """Write a classifier of the demo's shapes: the demo model, last layer and head trained on `count` pictures."""
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    subjects = [random_subject(rng) for _ in range(count)]
    processor = CLIPImageProcessorPil.from_pretrained(DEMO_MODEL)
    pictures = [draw(subject, (side, side), rng) for subject, side in zip(subjects, cycle(_SIDES), strict=False)]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    targets = torch.tensor([SHAPES.index(subject.shape) for subject in subjects])
    model = CLIPForImageClassification.from_pretrained(DEMO_MODEL, id2label=dict(enumerate(SHAPES)))
    # A head alone gets 93% right, because it sees the mean of the patches and the model was trained on the class token.
    trained = [*model.vision_model.encoder.layers[-1].parameters(), *model.classifier.parameters()]
    model.requires_grad_(False)
    for each in trained:
        each.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, lr=2e-3)
    batches = count // _BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=_EPOCHS * batches)
    orders = (torch.randperm(count)[: batches * _BATCH].reshape(batches, _BATCH) for _ in range(_EPOCHS))
    for batch in chain.from_iterable(orders):
        logits = model(pixel_values=pixels[batch]).logits
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, targets[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
