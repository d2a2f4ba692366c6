"""Train the demo model: `python -m benchmarks.models.train_demo_model`, about an hour on two cores.

Every picture is drawn once and never seen again, so there is nothing to overfit. A picture's embedding is compared
with the text embeddings of *all* concepts of a level (cross-entropy, as in classification with a text-made
classifier), for every level of `captions.concepts`. The usual contrastive loss within the batch does badly here:
with 320 captions in all, the same caption often counts as a negative. Linear heads on the pooled output, thrown
away after training, get the vision tower going before the text tower makes sense. The run is seeded.
"""

import argparse
import math
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from benchmarks.models.captions import MAX_TOKENS, concepts, load_tokenizer, phrase
from jobs.demo.drawing import COLOURS, PATTERNS, SHAPES, draw, random_subject

SEED = 20261121
SIDE = 64
BATCH_SIZE = 256
DRAWN_SIZES = (64, 80, 112, 160)
LEVEL_WEIGHTS = {"all": 1.0, "colour+shape": 0.3, "pattern+shape": 0.3, "colour": 0.2, "shape": 0.4, "pattern": 0.4}
HEADS = {"shape": SHAPES, "colour": tuple(COLOURS), "pattern": PATTERNS}

Batch = dict[str, torch.Tensor]


class DrawnBatches(IterableDataset[Batch]):
    """`steps` batches; each depends only on the seed and its step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[Batch]:
        tokenizer = load_tokenizer()
        levels = concepts()
        index = {name: {c: i for i, c in enumerate(members)} for name, members in levels.items()}
        for step in range(self.steps):
            rng = np.random.default_rng([SEED, step])
            pixels = np.empty((BATCH_SIZE, SIDE, SIDE, 3), np.uint8)
            targets = np.empty((BATCH_SIZE, len(levels)), np.int64)
            for row in range(BATCH_SIZE):
                subject = random_subject(rng)
                size = DRAWN_SIZES[rng.integers(len(DRAWN_SIZES))]
                picture = _perhaps_jpeg(draw(subject, (size, size), rng), rng)
                pixels[row] = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
                p, c, s = subject.pattern, subject.colour, subject.shape
                here = [(p, c, s), (None, c, s), (p, None, s), (None, c, None), (None, None, s), (p, None, None)]
                targets[row] = [index[name][concept] for name, concept in zip(levels, here, strict=True)]
            phrases = [phrase(concept, rng) for members in levels.values() for concept in members]
            text = tokenizer(phrases, padding=True, return_tensors="pt")
            yield {"pixels": torch.from_numpy(pixels), "targets": torch.from_numpy(targets), **text}


def _perhaps_jpeg(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    if rng.random() >= 0.3:
        return picture
    data = BytesIO()
    picture.save(data, "JPEG", quality=int(rng.integers(60, 96)))
    return Image.open(data).convert("RGB")


def build_model(vocab_size: int, eos_token_id: int) -> CLIPModel:
    """A CLIP of 1.3 million parameters with the published architecture and random weights."""
    shared: dict[str, Any] = {
        "projection_dim": 64,
        "num_attention_heads": 4,
        "hidden_size": 128,
        "intermediate_size": 512,
    }
    vision = {**shared, "image_size": SIDE, "patch_size": 8, "num_hidden_layers": 4}
    text = {
        **shared,
        "num_hidden_layers": 2,
        "vocab_size": vocab_size,
        "max_position_embeddings": MAX_TOKENS,
        "bos_token_id": 0,
        "eos_token_id": eos_token_id,
        "pad_token_id": eos_token_id,
    }
    return CLIPModel(CLIPConfig(vision_config=vision, text_config=text, projection_dim=64))


class Trainer:
    """The model, its throw-away heads and the optimiser."""

    def __init__(self, steps: int) -> None:
        torch.manual_seed(SEED)
        self.tokenizer = load_tokenizer()
        self.model = build_model(len(self.tokenizer), self.tokenizer.eos_token_id)
        self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(128, len(words)) for name, words in HEADS.items()})
        parameters = [*self.model.parameters(), *self.heads.parameters()]
        decayed = [p for p in parameters if p.ndim > 1]
        others = [p for p in parameters if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1.5e-3, betas=(0.9, 0.98))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: _cosine(step, steps))
        self.mean = torch.tensor(OPENAI_CLIP_MEAN).view(1, 3, 1, 1)
        self.std = torch.tensor(OPENAI_CLIP_STD).view(1, 3, 1, 1)
        self.pooled = torch.compile(lambda pixels: self.model.vision_model(pixel_values=pixels).pooler_output)
        self.sizes = [len(members) for members in concepts().values()]

    def step(self, batch: Batch) -> tuple[float, float]:
        """One update; returns the loss, and the share of the batch whose own caption scored highest."""
        pixels = (batch["pixels"].permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std
        pooled = self.pooled(pixels.contiguous())
        images = functional.normalize(self.model.visual_projection(pooled), dim=-1)
        features = self.model.get_text_features(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        texts = functional.normalize(features.pooler_output, dim=-1)
        logits = images @ texts.T * self.model.logit_scale.exp().clamp(max=100)
        loss = torch.zeros(())
        levels = zip(LEVEL_WEIGHTS, torch.split(logits, self.sizes, dim=1), strict=True)
        for column, (name, scores) in enumerate(levels):
            loss = loss + LEVEL_WEIGHTS[name] * functional.cross_entropy(scores, batch["targets"][:, column])
            if name in HEADS:
                loss = loss + 0.3 * functional.cross_entropy(self.heads[name](pooled), batch["targets"][:, column])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        accuracy = (logits[:, : self.sizes[0]].argmax(1) == batch["targets"][:, 0]).float().mean()
        return float(loss), float(accuracy)

    def save(self, folder: Path) -> None:
        """Write the model in the Hugging Face layout, with the image processor's file that older readers need."""
        processor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
        self.model.save_pretrained(folder)
        both = CLIPProcessor(image_processor=processor, tokenizer=self.tokenizer)  # type: ignore[no-untyped-call]
        both.save_pretrained(folder)
        processor.save_pretrained(folder)


def _cosine(step: int, steps: int, warmup: int = 150) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()

    trainer = Trainer(options.steps)
    batches = DataLoader(DrawnBatches(options.steps), batch_size=None, num_workers=1, prefetch_factor=4)
    for step, batch in enumerate(batches, 1):
        loss, accuracy = trainer.step(batch)
        if step % 50 == 0:
            print(f"step {step}/{options.steps}  loss {loss:.3f}  caption {accuracy:.2f}", flush=True)
    trainer.save(options.out)


if __name__ == "__main__":
    main()
