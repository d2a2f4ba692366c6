"""The vision model's part of config.json, read without transformers, which would import torch."""

from collections.abc import Mapping
from typing import Any, Final

# The defaults of transformers for missing keys; many configurations on the hub lack some.
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "clip": {
        "model_type": "clip_vision_model",
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 32,
    },
    "siglip": {
        "model_type": "siglip_vision_model",
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
    },
    "dinov2": {
        "model_type": "dinov2",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 14,
    },
    "dinov2_with_registers": {
        "model_type": "dinov2_with_registers",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
    },
}


def vision_config(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The vision model's part of a configuration with defaults, for a type that `Checkpoint` supports.

    If transformers reads an odd file differently, the fingerprint made from this is not that of any known model.
    """
    own = config.get("vision_config") if model_type in ("clip", "siglip") else config
    return {**_DEFAULTS[model_type], **(own or {})}
