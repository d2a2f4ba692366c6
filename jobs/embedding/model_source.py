"""The model that embeds into a collection: found, recorded, and loaded where it is needed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from embedder.identity import ModelIdentity, Precision
from embedder.machine import usable_cpus
from embedder.models.checkpoint import Checkpoint
from embedder.models.load import find_known_model, find_model, load_embedder
from embedder.models.own_embedder import OwnModel
from embedder.protocol import Embedder
from embedder.python_class import what_changed
from index.collection.collection import Snapshot
from index.collection.records.model_record import ModelRecord
from index.versions.servable import collection_model
from jobs.errors import OtherModelError, UsageError
from jobs.spec import JobSpec, Resources
from jobs.values import DEFAULT_MODEL


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Loads the model in the process that calls it, such as an actor. `batch_size` is images per forward pass.

    `found` is the model if this process has found it already, so its weights are not hashed again. Other processes find
    their own; but a class goes with it, as they may not name one.
    """

    model: str
    revision: str | None = None
    device: str | None = None
    precision: Precision = "auto"
    batch_size: int = 64
    convert: bool = field(default=True, compare=False)  # `ModelCache` reuses a model whether or not it was converted
    found: Checkpoint | OwnModel | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, model: ModelRecord, found: Checkpoint | OwnModel, resources: Resources, *, convert: bool) -> Self:
        """The source of a recorded model that was found."""
        return cls(
            model=model.id,
            revision=model.revision,
            device=resources.device,
            precision=resources.precision,
            batch_size=resources.batch_size,
            convert=convert,
            found=found,
        )

    def __call__(self) -> Embedder:
        # Ray gives a worker one OpenMP thread per reserved CPU, so one. On a CPU the forward pass should use the cores
        # that decoding leaves free, and the kernel divides these better than a fixed split.
        return load_embedder(
            self.found or self.model,
            revision=self.revision,
            device=self.device,
            precision=self.precision,
            batch_size=self.batch_size,
            threads=usable_cpus(),
            convert=self.convert,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            "found": self.found if isinstance(self.found, OwnModel) else None,
        }


class ModelCache:
    """Keeps the last model, found and loaded, for all that a process embeds: finding one reads all of its weights."""

    def __init__(self) -> None:
        self._name: tuple[str, str | None] | None = None
        self._found: Checkpoint | OwnModel | None = None
        self._load: Callable[[], Any] | None = None
        self._model: Any = None

    def find(self, name: str, revision: str | None, embedder: str | None) -> Checkpoint | OwnModel:
        """What `find_model` finds, or found last; `embedder` is the class that the user named, if any."""
        if self._found is None or self._name != (name, revision):
            self._found, self._name = find_model(name, revision, allowed=(embedder,)), (name, revision)
        return self._found

    def find_recorded(
        self, record: ModelRecord, embedder: str | None, model: str | None = None
    ) -> Checkpoint | OwnModel:
        """What `recorded_model` finds, unless the last one is that model."""
        if self._found is None or self._found.identity.fingerprint != record.fingerprint:
            self.forget()  # it may hold another model of the same name
            self._found, self._name = recorded_model(record, embedder, model), None
        return self._found

    def load(self, load: Callable[[], Any]) -> Any:
        """What `load` returns, or returned last."""
        if self._load != load:
            self._model, self._load = load(), load
        return self._model

    def forget(self) -> None:
        """Release the model, to free its memory or because its files were replaced."""
        self._load = self._model = None


def named_model(spec: JobSpec, command: str) -> str | None:
    """The model that a job names, or that it gives a new collection: `reembed` has none for that."""
    return spec.embedder or spec.model or (None if command == "reembed" else DEFAULT_MODEL)


def choose_model(spec: JobSpec, snapshot: Snapshot, cache: ModelCache, command: str) -> ModelRecord:
    """The model to embed with. UsageError if none is named or known, OtherModelError if it is refused."""
    location = snapshot.collection.location
    current = collection_model(snapshot)
    # A first run that was stopped, or refused for its rejects, has chosen the model too.
    default = current or next((run.model for run in reversed(snapshot.unfinished)), None)
    tiles = spec.tiles or (default.tiles if default else None)
    named = spec.embedder or spec.model
    if named is None and default and spec.revision is None:
        model = default.model_copy(update={"tiles": tiles})
    else:
        if (name := named or (default.id if default else named_model(spec, command))) is None:
            raise UsageError(f"nothing is embedded yet in {location}: name a model with --model")
        model = model_record(cache.find(name, spec.revision, spec.embedder).identity, tiles)
    if command != "reembed" and current and not current.agrees_with(model):
        if current.fingerprint == model.fingerprint:
            raise OtherModelError(
                f"{location} was embedded {_with_tiles(current)}, not {_with_tiles(model)}: leave --tiles out, or "
                "name another folder for a new collection; `likeness reembed` with --tiles embeds everything again"
            )
        changed = what_changed(model.id, current.id)
        raise OtherModelError(
            f"{location} was embedded with {current}, not with {model}{changed}: their vectors cannot be compared. "
            "Use that model, or name another folder for a new collection; `likeness reembed` with --model or "
            "--embedder changes the model"
        )
    return model


def _with_tiles(model: ModelRecord) -> str:
    return f"with tiles {model.tiles}" if model.tiles else "without tiles"


def loaded_memory(checkpoint: Checkpoint | OwnModel) -> int:
    """Host memory of a process with the model loaded, in bytes: the weights and 1 GiB, as measured."""
    return 2**30 + sum(path.stat().st_size for path in checkpoint.weights)


def model_record(identity: ModelIdentity, tiles: str | None = None) -> ModelRecord:
    return ModelRecord(
        id=identity.model_id,
        revision=identity.revision,
        fingerprint=identity.fingerprint,
        dim=identity.dim,
        tiles=tiles,
    )


Load: TypeAlias = Callable[[ModelRecord], Embedder]
"""Loads a recorded model. Raises what `recorded_model` raises."""


def load_recorded(
    record: ModelRecord, *, model: str | None = None, embedder: str | None = None, device: str | None = None
) -> Embedder:
    """Load what `recorded_model` finds, without converting it first."""
    return ModelSource.of(record, recorded_model(record, embedder, model), Resources(device=device), convert=False)()


def recorded_model(record: ModelRecord, embedder: str | None = None, model: str | None = None) -> Checkpoint | OwnModel:
    """Find a recorded model without loading it; the user may name its class, `embedder`, or its new place, `model`.
    Raises OtherModelError if another model is in its place, ModelError if none is or it is a class that was not named.
    """
    if record.is_unknown:
        raise OtherModelError(
            "the collection's vectors were imported without the name of their model, so nothing can be added to them: "
            "import them into a new collection with --model, or embed everything again with `likeness reembed --model`"
        )
    source = find_known_model(record.id, record.revision, model=model, allowed=(embedder,))
    found = model_record(source.identity, record.tiles)
    if not found.agrees_with(record):
        if model:
            raise OtherModelError(
                f"--model names {found}, but the collection was embedded with {record}: name the new place of that "
                "model, or embed everything again with `likeness reembed --model`"
            )
        raise OtherModelError(
            f"{record.id} has changed: it is now {found}, but the collection was embedded with {record}"
            f"{what_changed(found.id, record.id)}; restore it, or re-embed with --model or --embedder"
        )
    return source
