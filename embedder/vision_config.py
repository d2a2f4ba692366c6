"""What config.json says of the vision model, read without transformers, whose import takes torch along."""

from collections.abc import Mapping
from typing import Any, Final

# What transformers fills in where a configuration is silent, as many on the hub are.
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

    Where transformers reads an odd file otherwise, the fingerprint made from this is of no model that is known.
    """
    own = config.get("vision_config") if model_type in ("clip", "siglip") else config
    return {**_DEFAULTS[model_type], **(own or {})}
