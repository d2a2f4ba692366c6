"""The families of models that embed, and what must be known of each to read its config.json without transformers, which
would import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class Family:
    """`vision` are transformers' defaults for the vision model, because many configurations on the hub lack some keys.

    With `has_text`, these settings are a part of the configuration. `projection_dim` is the default of the vectors'
    length; None: there is no projection. With `pads_texts`, texts are lower-cased, padded to the full length and used
    without a mask, as SigLIP was trained: its vector is from the last position, CLIP's from the end-of-text token.

    A key of the configuration that changes vectors belongs in `_ARITHMETIC_KEYS` of `checkpoint.py`, too.
    """

    vision: Mapping[str, Any]
    has_text: bool = False
    projection_dim: int | None = None
    pads_texts: bool = False


_COMMON: Final = {"hidden_size": 768, "num_attention_heads": 12, "image_size": 224, "layer_norm_eps": 1e-6}
_CLIP: Final = {**_COMMON, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32}
_SIGLIP: Final = {**_COMMON, "hidden_act": "gelu_pytorch_tanh", "patch_size": 16}
_DINOV2: Final = {**_COMMON, "hidden_act": "gelu", "patch_size": 14}
FAMILIES: Final = {
    "clip": Family(vision={**_CLIP, "model_type": "clip_vision_model"}, has_text=True, projection_dim=512),
    "siglip": Family(vision={**_SIGLIP, "model_type": "siglip_vision_model"}, has_text=True, pads_texts=True),
    "dinov2": Family(vision={**_DINOV2, "model_type": "dinov2"}),
    "dinov2_with_registers": Family(vision={**_DINOV2, "model_type": "dinov2_with_registers", "patch_size": 16}),
}
"""By `model_type`."""


def vision_config(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The vision model's part of a configuration, with defaults for the types that embed."""
    family = FAMILIES.get(model_type) or Family(vision={})
    if family.has_text:
        # The first CLIP checkpoints have both, and transformers uses `vision_config_dict`.
        config = config.get("vision_config_dict") or config.get("vision_config") or {}
    return {**family.vision, **config}


def embedding_dim(model_type: str, config: Mapping[str, Any]) -> int:
    """The length of a picture's vector."""
    if (default := FAMILIES[model_type].projection_dim) is not None:
        return int(config.get("projection_dim", default))
    return int(vision_config(model_type, config)["hidden_size"])
