"""Reads the vision model's settings from config.json, without transformers, which would import torch."""

from collections.abc import Mapping
from typing import Any, Final

# The defaults of transformers, because many configurations on the hub lack some keys.
_COMMON: Final = {"hidden_size": 768, "num_attention_heads": 12, "image_size": 224, "layer_norm_eps": 1e-6}
_DINOV2: Final = {**_COMMON, "model_type": "dinov2", "hidden_act": "gelu", "patch_size": 14}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "clip": {
        **_COMMON,
        "model_type": "clip_vision_model",
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "patch_size": 32,
    },
    "siglip": {**_COMMON, "model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh", "patch_size": 16},
    "dinov2": _DINOV2,
    "dinov2_with_registers": {**_DINOV2, "model_type": "dinov2_with_registers", "patch_size": 16},
}


def vision_config(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The vision model's part of a configuration, with defaults for the types that embed."""
    if model_type in ("clip", "siglip"):
        # The first CLIP checkpoints have both, and transformers uses `vision_config_dict`.
        config = config.get("vision_config_dict") or config.get("vision_config") or {}
    return {**_DEFAULTS.get(model_type, {}), **config}


def embedding_dim(model_type: str, config: Mapping[str, Any]) -> int:
    """The length of a picture's vector."""
    if model_type == "clip":
        return int(config.get("projection_dim", 512))
    return int(vision_config(model_type, config)["hidden_size"])
