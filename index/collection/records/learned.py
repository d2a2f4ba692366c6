"""What predictors have learned from a collection, and the vectors of saved searches: an array, by names."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Base64Bytes, Field, model_validator

from index.collection.records.bounds import Name
from index.collection.records.record import Record


class Learned(Record):
    """What a predictor learned once from a collection: a vector, `dim` float32 numbers, for each of some names."""

    format: Literal[1] = 1
    names: tuple[Name, ...]
    vectors: Base64Bytes = Field(repr=False)  # Ray logs the arguments of its operators

    @model_validator(mode="after")
    def _has_a_vector_for_each_name(self) -> Self:
        if not self.names or not self.vectors or len(self.vectors) % (4 * len(self.names)):
            raise ValueError(f"has {len(self.vectors):,} bytes for {len(self.names):,} names")
        return self

    @classmethod
    def of(cls, names: Sequence[str], vectors: npt.NDArray[np.float32]) -> Self:
        return cls(names=tuple(names), vectors=b64encode(vectors.astype("<f4").tobytes()))

    @property
    def array(self) -> npt.NDArray[np.float32]:
        """`(n, dim)` float32."""
        return np.frombuffer(self.vectors, "<f4").reshape(len(self.names), -1).astype(np.float32)
