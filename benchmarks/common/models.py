"""Models of real size with random weights: what costs time is real, and there is nothing to download."""

from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

from jobs.demo.captions import build_tokenizer


def save_clip(folder: Path, *, seed: int = 0) -> Path:
    """Write a CLIP of ViT-B/32's size in the Hugging Face layout; returns the folder."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    text = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    CLIPModel(CLIPConfig(text_config=text)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)
    return folder
