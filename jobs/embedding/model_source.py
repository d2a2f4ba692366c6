"""The model to embed into a collection with, which need not be loaded here if the collection knows it."""

import os
from dataclasses import dataclass, replace
from typing import Self

from embedder.identity import ModelIdentity, Precision
from embedder.models.checkpoint import Checkpoint
from embedder.models.load import find_model, load_embedder
from embedder.models.own import OwnModel
from embedder.protocol import Embedder
from index.collection.records import ModelRecord
from jobs.errors import OtherModelError
from jobs.values import DEMO_MODEL, model_named


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Loads the model where it is called: in an actor, on its machine. `batch_size` images go in a forward pass.

    `own` stands in place of everything else.
    """

    model: str
    revision: str | None = None
    device: str | None = None
    precision: Precision = "auto"
    batch_size: int = 64
    convert: bool = True
    own: OwnModel | None = None

    def __call__(self) -> Embedder:
        if self.own is not None:
            return self.own(self.batch_size)
        # Ray gives a worker as many OpenMP threads as it has CPUs reserved, which is one. On a CPU the forward pass
        # should have the cores that decoding leaves free, and the kernel shares them out better than a fixed split.
        return load_embedder(
            model_named(self.model),
            revision=self.revision,
            device=self.device,
            precision=self.precision,
            batch_size=self.batch_size,
            threads=os.cpu_count(),
            convert=self.convert,
        )

    def for_workers(self) -> Self:
        """The same on other machines, where the demo model may lie elsewhere."""
        return replace(self, model="demo") if self.model == str(DEMO_MODEL) else self


def loaded_memory(found: Checkpoint | OwnModel) -> int:
    """Bytes of host memory of a process that has it loaded: measured, 1 GiB beside the weights."""
    return 2**30 + sum(path.stat().st_size for path in found.weights)


def model_record(identity: ModelIdentity) -> ModelRecord:
    return ModelRecord(
        id=identity.model_id, revision=identity.revision, fingerprint=identity.fingerprint, dim=identity.dim
    )


def recorded_model(record: ModelRecord, embedder: str | None = None) -> Checkpoint | OwnModel:
    """A recorded model, not loaded; `embedder` is the class that somebody has named. `OtherModelError` when there is
    another one in its place now, ModelError when there is none, or a class that nobody has named.
    """
    if record.is_unknown:
        raise OtherModelError(
            "the collection's vectors were imported without the name of their model, so nothing can be embedded beside "
            "them: import them into a new collection with --model, or embed all anew with `likeness reembed --model`"
        )
    model = find_model(record.id, record.revision, embedder=embedder)
    found = model_record(model.identity)
    if not found.agrees_with(record):
        raise OtherModelError(
            f"{record.id} is {found} now, the collection was embedded with {record}. Put that back, or embed "
            "everything with the one that is there by naming it with --model or --embedder"
        )
    return model
