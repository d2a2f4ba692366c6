"""Finds the model to embed into a collection with, without loading it."""

from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from embedder.protocol import ModelIdentity
from index.collection.collection import Snapshot
from index.collection.records import ModelRecord
from index.versions.current import collection_model
from jobs.embedding.request import ModelSource
from jobs.errors import OtherModelError


def known_models(snapshot: Snapshot) -> list[ModelRecord]:
    """The collection's own (`index.versions.current.collection_model`) first, then those of the runs, newest first."""
    there = collection_model(snapshot.collection, snapshot.committed)
    return [*([there] if there else []), *(run.model for run in reversed(snapshot.committed))]


def wanted_model(load: ModelSource) -> ModelRecord:
    """The requested model, without loading it."""
    return model_record(Checkpoint.find(load.model, load.revision).identity)


def model_record(identity: ModelIdentity) -> ModelRecord:
    """A model's identity as the collection records it."""
    return ModelRecord(
        id=identity.model_id, revision=identity.revision, fingerprint=identity.fingerprint, dim=identity.dim
    )


def crop_of(model: ModelRecord, load: ModelSource) -> CropSpec:
    """How the model's pictures are cropped. `OtherModelError` when there is another model in its place now."""
    checkpoint = Checkpoint.find(load.model, load.revision)
    found = model_record(checkpoint.identity)
    if not found.agrees_with(model):
        raise OtherModelError(
            f"{load.model} holds {found} now, the collection was embedded with {model}. Put that back, or "
            "embed everything with the one that is there by naming it with --model"
        )
    return checkpoint.preprocessing.crop
