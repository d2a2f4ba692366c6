"""The model that made the vectors of a run or a version."""

from index.collection.records.bounds import Dim, Name, Tiles
from index.collection.records.record import Record
from index.tiles import Box, tile_boxes

UNKNOWN_MODEL = "(unknown)"
"""Stands for a model's id if vectors were imported without the name of their model."""

UNKNOWN_MODEL_MESSAGE = (
    "the vectors were imported without the name of their model, so pictures and words cannot be compared with "
    "them. Search by the ids of images or by vectors, or import them into a new collection with --model"
)


class ModelRecord(Record):
    """The model of some vectors. `fingerprint` covers weights, configuration and preprocessing; for an unknown model it
    identifies the source that the vectors were imported from. `tiles` is the grid of parts that have vectors too; None:
    only whole pictures have vectors.
    """

    id: Name
    revision: Name | None
    fingerprint: Name
    dim: Dim
    tiles: Tiles | None = None

    def agrees_with(self, other: "ModelRecord") -> bool:
        """Whether rows of both may be in one index, no matter where the copies of the model are."""
        return (self.fingerprint, self.tiles) == (other.fingerprint, other.tiles)

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The parts of a picture that have vectors of their own."""
        return tile_boxes(self.tiles)

    @property
    def is_unknown(self) -> bool:
        return self.id == UNKNOWN_MODEL

    def __str__(self) -> str:
        if self.is_unknown:
            return f"an unknown model ({self.dim} dimensions, imported without a model's name)"
        tiles = f", tiles {self.tiles}" if self.tiles else ""
        return f"{self.id}{f'@{self.revision}' if self.revision else ''} (fingerprint {self.fingerprint[:12]}{tiles})"
