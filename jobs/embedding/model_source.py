"""The model to embed into a collection with, which need not be loaded here if the collection knows it."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from embedder.identity import ModelIdentity, Precision
from embedder.models.checkpoint import Checkpoint
from embedder.models.load import find_model, load_embedder
from embedder.models.own import OwnModel
from embedder.protocol import Embedder
from index.collection.records import ModelRecord
from jobs.errors import OtherModelError
from jobs.spec import Resources
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
    convert: bool = field(default=True, compare=False)  # of one model, what was loaded first serves all
    own: OwnModel | None = None

    @classmethod
    def of(cls, model: ModelRecord, found: Checkpoint | OwnModel, resources: Resources, *, convert: bool) -> Self:
        """That of a recorded model, which was found."""
        return cls(
            model=model.id,
            revision=model.revision,
            device=resources.device,
            precision=resources.precision,
            batch_size=resources.batch_size,
            convert=convert,
            own=found if isinstance(found, OwnModel) else None,
        ).for_workers()

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


class KeptModel:
    """Loads a model by calling what loads it, unless that was the last to be called: then it returns that model."""

    def __init__(self) -> None:
        self._load: Callable[[], Any] | None = None
        self._model: Any = None

    def __call__(self, load: Callable[[], Any]) -> Any:
        if self._load != load:
            self._model, self._load = load(), load
        return self._model

    def forget(self) -> None:
        """Let go of the model, whose memory others need, or in whose place there is another."""
        self._load = self._model = None


def loaded_memory(found: Checkpoint | OwnModel) -> int:
    """Bytes of host memory of a process that has it loaded: measured, 1 GiB beside the weights."""
    return 2**30 + sum(path.stat().st_size for path in found.weights)


def model_record(identity: ModelIdentity, tiles: str | None = None) -> ModelRecord:
    return ModelRecord(
        id=identity.model_id,
        revision=identity.revision,
        fingerprint=identity.fingerprint,
        dim=identity.dim,
        tiles=tiles,
    )


def load_recorded(record: ModelRecord, *, embedder: str | None = None, device: str | None = None) -> Embedder:
    """A recorded model, loaded without being converted first. Raises as `recorded_model`."""
    found = recorded_model(record, embedder)
    own = found if isinstance(found, OwnModel) else None
    return ModelSource(model=record.id, revision=record.revision, device=device, convert=False, own=own)()


def recorded_model(record: ModelRecord, embedder: str | None = None) -> Checkpoint | OwnModel:
    """A recorded model, not loaded; `embedder` is the class that somebody has named. `OtherModelError` when there is
    another one in its place now, ModelError when there is none, or a class that nobody has named.
    """
    if record.is_unknown:
        raise OtherModelError(
            "the collection's vectors were imported without the name of their model, so nothing can be embedded beside "
            "them: import them into a new collection with --model, or embed everything again with `likeness reembed "
            "--model`"
        )
    model = find_model(record.id, record.revision, embedder=embedder)
    found = model_record(model.identity, record.tiles)
    if not found.agrees_with(record):
        raise OtherModelError(
            f"{record.id} has changed: it is now {found}, but the collection was embedded with {record}; restore it, "
            "or re-embed with --model or --embedder"
        )
    return model
