"""Finds the model to embed into a collection with, without loading it if it is known."""

from collections.abc import Sequence
from dataclasses import replace

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


def wanted_model(known: Sequence[ModelRecord], load: ModelSource) -> ModelRecord:
    """The requested model; it is loaded if it is none of the `known` ones, which raises what loading does."""
    checkpoint = Checkpoint.find(load.model, load.revision)
    fingerprint = checkpoint.fingerprint()
    for record in known:
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
