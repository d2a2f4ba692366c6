"""The embeddings of sixty photographs agree with the reference: the stock image processor and model, in float32.

The reference gets each picture upright. This tests decoding in draft mode, conversion to RGB, cropping rotated
pictures, resizing, normalising and the model.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model, PreTrainedModel, SiglipConfig, SiglipModel
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from embedder.images.decode import decode_image
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from tests.support.pictures.photographs import sixty_pictures, upright

Reference = tuple[PreTrainedModel, Any]
"""A model, and the image processor that comes with it."""
TINY: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL_TEXT = {**TINY, "num_hidden_layers": 1, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2}


def clip() -> Reference:
    """ViT-B/32's vision model, width, patches and heads as published, with 4 of its 12 layers to save time."""
    config = CLIPConfig(vision_config={"num_hidden_layers": 4}, text_config=SMALL_TEXT)
    return distinguishing(CLIPModel(config)), CLIPImageProcessorPil()


def siglip() -> Reference:
    """SigLIP 2's preprocessing, the whole picture squashed bilinearly, and a narrow model."""
    config = SiglipConfig(vision_config={**TINY, "image_size": 224, "patch_size": 16}, text_config=SMALL_TEXT)
    return distinguishing(SiglipModel(config)), SiglipImageProcessorPil(resample=2)


def dinov2() -> Reference:
    """DINOv2's preprocessing, whose crop is smaller than the resized picture, and a narrow model."""
    model = distinguishing(Dinov2Model(Dinov2Config(**TINY, image_size=518, patch_size=14)))
    return model, BitImageProcessorPil(size={"shortest_edge": 256})


def demo() -> Reference:
    """A trained model: at its 64 pixels a change of a few grey levels has more effect than at 224."""
    return CLIPModel.from_pretrained(DEMO_MODEL), CLIPImageProcessorPil.from_pretrained(DEMO_MODEL)


def saved(family: Callable[[], Reference], folder: Path) -> Reference:
    """A reference in eval mode. Saves a checkpoint of it."""
    torch.manual_seed(20261121)
    model, processor = family()
    model.train(False)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


@torch.inference_mode()
def embed(model: PreTrainedModel, processor: Any, images: list[Image.Image]) -> NDArray[np.float32]:
    """`(n, dim)`, unit norm."""
    inputs = torch.cat([processor(image, return_tensors="pt")["pixel_values"] for image in images])
    output = getattr(model, "get_image_features", model)(pixel_values=inputs).pooler_output
    vectors: NDArray[np.float32] = torch.nn.functional.normalize(output, dim=-1).numpy()
    return vectors


@torch.no_grad()
def distinguishing(model: PreTrainedModel) -> PreTrainedModel:
    """The model with random weights rescaled so that the vectors depend on the pictures.

    Otherwise attention would add hardly anything to the class token, which is the same for every picture, and all
    vectors would agree, whatever is done to the pixels.
    """
    for name, weights in model.named_parameters():
        if name.endswith(("class_embedding", "cls_token")):
            weights.zero_()
        elif "position_embedding" in name:
            weights.mul_(0.1)
        elif name.endswith(("v_proj.weight", "out_proj.weight", "value.weight", "attention.output.dense.weight")):
            weights.mul_(10)
    return model


@pytest.fixture(scope="module")
def pictures() -> dict[str, bytes]:
    return dict(sixty_pictures())


@pytest.mark.slow
@pytest.mark.parametrize("family", [clip, siglip, dinov2, demo])
def test_every_embedding_agrees(pictures: dict[str, bytes], family: Callable[[], Reference], tmp_path: Path) -> None:
    expected = embed(*saved(family, tmp_path), [upright(data) for data in pictures.values()])
    embedder = ClipEmbedder.load(str(tmp_path), device="cpu", batch_size=20)

    def disagreeing(draft: bool, bar: float) -> dict[str, float]:
        crops = [decode_image(data, embedder.crop, draft=draft).pixels for data in pictures.values()]
        cosines = np.einsum("nd,nd->n", embedder.embed_images(np.stack(crops)), expected)
        return {name: float(cosine) for name, cosine in zip(pictures, cosines, strict=True) if cosine < bar}

    assert len(pictures) == 60
    assert disagreeing(draft=False, bar=0.9999) == {}
    assert disagreeing(draft=True, bar=0.999) == {}
    between = (expected @ expected.T)[np.triu_indices(60, 1)]
    assert between.mean() < (0.9 if family is demo else 0.5), (
        "the model does not distinguish pictures, so its agreement shows nothing"
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpus_dtype_agrees_with_float32_on_the_cpu(pictures: dict[str, bytes], tmp_path: Path) -> None:
    saved(clip, tmp_path)
    on_cpu = ClipEmbedder.load(str(tmp_path), device="cpu")
    on_gpu = ClipEmbedder.load(str(tmp_path), device="cuda")
    crops = np.stack([decode_image(data, on_cpu.crop).pixels for data in pictures.values()])
    assert np.einsum("nd,nd->n", on_cpu.embed_images(crops), on_gpu.embed_images(crops)).min() >= 0.999
