"""Finds the model to embed into a collection with, without loading it if it is known."""

from dataclasses import replace

from embedder.checkpoint import Checkpoint
from embedder.images import CropSpec
from embedder.protocol import ModelIdentity
from index.collection import Collection
from index.current import collection_model
from index.records import ModelRecord
from jobs.errors import OtherModelError, UsageError
from jobs.request import ModelSource


def wanted_model(collection: Collection, load: ModelSource | None) -> ModelRecord:
    """The requested model, else that of the collection (`index.current.collection_model`).

    Raises `UsageError` when there is none of these, and what `Checkpoint.find` and loading raise.
    """
    runs = collection.runs()
    here = collection_model(collection, runs)
    if load is None:
        if not here:
            raise UsageError(f"nothing is embedded yet in {collection.location}: name a model with --model")
        return here
    checkpoint = Checkpoint.find(load.model, load.revision)
    fingerprint = checkpoint.fingerprint()
    for record in [*([here] if here else []), *(run.model for run in reversed(runs))]:
        if record.fingerprint == fingerprint:
            return record.model_copy(update={"id": checkpoint.model_id, "revision": checkpoint.revision})
    return model_record(replace(load, device="cpu")().identity)


def model_record(identity: ModelIdentity) -> ModelRecord:
    """A model's identity as the collection records it."""
    return ModelRecord(
        id=identity.model_id, revision=identity.revision, fingerprint=identity.fingerprint, dim=identity.dim
    )


def crop_of(model: ModelRecord, load: ModelSource) -> CropSpec:
    """How the model's pictures are cropped. `OtherModelError` when there is another model in its place now."""
    checkpoint = Checkpoint.find(load.model, load.revision)
    if checkpoint.fingerprint() != model.fingerprint:
        found = model_record(replace(load, device="cpu")().identity)
        if not found.agrees_with(model):
            raise OtherModelError(
                f"{load.model} holds {found} now, the collection was embedded with {model}. Put that back, or "
                "embed everything with the one that is there by naming it with --model"
            )
    return checkpoint.preprocessing.crop
