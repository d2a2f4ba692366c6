"""The identity of a model. Not in `embedder.protocol`, so that a client of the server need not import pillow."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["auto", "fp32", "bf16", "int8"]
"""What a forward pass computes in. auto: on a GPU its 16 bits; on CPUs int8 where that was measured to be faster and to
agree with fp32, else fp32. int8 is for CPUs alone."""


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """The model of a vector. Vectors can be compared if and only if their `fingerprint`s are equal.

    `fingerprint` covers weights, architecture and preprocessing, and is the same for every copy of a
    checkpoint; `model_id` and `revision` only say where this copy came from.
    """

    model_id: str
    revision: str | None
    fingerprint: str
    dim: int
