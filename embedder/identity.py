"""The identity of a model. Apart from `embedder.protocol`, so that the server's client need not import pillow."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["auto", "fp32", "bf16", "int8"]
"""The number format of a forward pass. auto: 16 bits on a GPU; on CPUs the one that measured as fastest of those that
agree with fp32. int8 is only for CPUs. bf16 is fp32 on CPUs that have no instructions for it."""


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """Identifies the model that made a vector. Vectors can be compared if and only if their `fingerprint`s are equal.

    `fingerprint` covers weights, architecture and preprocessing, and is the same for every copy of a
    checkpoint; `model_id` and `revision` only say where this copy came from.
    """

    model_id: str
    revision: str | None
    fingerprint: str
    dim: int
