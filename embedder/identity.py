"""The identity of a model. Not in `embedder.protocol`, so that a client of the server need not import pillow."""

from dataclasses import dataclass


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
