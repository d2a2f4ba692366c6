"""Tiny checkpoints with random weights, one for each family, written by `save_pretrained`."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    Dinov2Config,
    Dinov2Model,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from benchmarks.models.captions import load_tokenizer
from benchmarks.models.random_models import save_small_clip

TOWER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = {"<pad>": 0, "<unk>": 1, "a": 2, "red": 3, "blue": 4, "star": 5}


def save_clip(folder: Path) -> None:
    save_small_clip(folder, seed=1)


def save_deep_clip(folder: Path) -> None:
    """A CLIP with many small layers: freeing it takes as long as a large model, because that is done per tensor."""
    torch.manual_seed(4)
    tokenizer = load_tokenizer()
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    tower = {**TOWER, "hidden_size": 16, "num_hidden_layers": 60, "projection_dim": 16}
    text, vision = {**tower, **ids, "vocab_size": len(tokenizer)}, {**tower, "image_size": 32, "patch_size": 16}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)


def save_siglip(folder: Path) -> None:
    torch.manual_seed(2)
    text = {**TOWER, "vocab_size": len(WORDS), "max_position_embeddings": 8, "projection_size": 32}
    text |= {"bos_token_id": 1, "eos_token_id": 0}
    vision = {**TOWER, "image_size": 32, "patch_size": 8}
    SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    words = Tokenizer(WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", padding_side="left"
    ).save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": 32, "width": 32}, resample=2).save_pretrained(folder)


def save_dinov2(folder: Path) -> None:
    torch.manual_seed(3)
    Dinov2Model(Dinov2Config(**TOWER, image_size=56, patch_size=14)).save_pretrained(folder)
    BitImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 28, "width": 28}).save_pretrained(folder)


def noise(count: int, side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def save_blip(folder: Path) -> None:
    """A captioner that continues a prompt."""
    torch.manual_seed(5)
    ids = {"bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    text = {**TOWER, **ids, "vocab_size": len(_SAID), "max_position_embeddings": 128, "encoder_hidden_size": 32}
    vision = {**TOWER, "image_size": 32, "patch_size": 8, "initializer_range": 1.0}
    model = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision))
    with torch.no_grad():
        model.vision_model.post_layernorm.weight.mul_(1000)  # otherwise all pictures get the same caption
    model.save_pretrained(folder)
    BlipProcessor(  # type: ignore[no-untyped-call]
        BlipImageProcessorPil(size={"height": 32, "width": 32}), _talking("<bos> $A <eos>")
    ).save_pretrained(folder)


def save_llava(folder: Path) -> None:
    """A captioner with a chat template."""
    torch.manual_seed(6)
    text = LlamaConfig(**TOWER, vocab_size=len(_SAID), bos_token_id=2, eos_token_id=3, pad_token_id=0)
    vision = CLIPVisionConfig(**TOWER, image_size=32, patch_size=8)
    LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=4, vision_feature_layer=-1)
    ).save_pretrained(folder)
    LlavaProcessor(  # type: ignore[no-untyped-call]
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        _talking("<bos> $A"),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_CHAT,
    ).save_pretrained(folder)


_SAID = ["<pad>", "<unk>", "<bos>", "<eos>", "<image>", "user", "bot"]
_SAID += ["a", "the", "red", "blue", "star", "circle", "photo", "of", "on", "and"]
_CHAT = (
    "{% for message in messages %}user {% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }} {% endfor %}{% endfor %}bot "
)


def _talking(sequence: str) -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(_SAID)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(single=sequence, special_tokens=[("<bos>", 2), ("<eos>", 3)])
    names = {"bos": "<bos>", "cls": "<bos>", "eos": "<eos>", "sep": "<eos>", "pad": "<pad>", "unk": "<unk>"}
    special = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=words, additional_special_tokens=["<image>"], **special
    )
