"""Predictors, which add columns to images, and the rows made from their values."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import Rejected
from embedder.identity import ModelIdentity
from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from index.collection.live_rows import LiveRows
from index.collection.records.learned import Learned
from index.collection.records.model_record import ModelRecord
from index.collection.rows import EMBEDDING, REJECT_COLUMNS, embedding_type, vectors_of
from jobs.embedding.embed_rows import crops_of
from jobs.embedding.model_source import loaded_memory
from jobs.errors import JobError
from jobs.sources.listing import refuse, with_columns
from jobs.values import fingerprint_of

Needs = Literal["image", "embedding", "file"]
NEEDS: tuple[Needs, ...] = get_args(Needs)
Batch = Mapping[str, npt.NDArray[Any]]
Columns = Mapping[str, Any]

EMBEDDED_HASH = "embedded_hash"
"""A block's column with the hash of the embedded bytes; its `content_hash` is that of the bytes read now."""
_MIN_FAILURES = 8
"""If a new predictor fails on every image of a block of at least this size, it is taken to be broken itself."""


class Predictor(Protocol):
    """Called with a batch: `image_id`, `(n,)` strings, and what it needs: `image`, `(n, side, side, 3)` uint8 RGB,
    `embedding`, `(n, dim)` float32, unit norm, or `file`, `(n,)` bytes. Returns columns of n values by their suffix to
    the annotation's name, "" for the name alone. A list may have exceptions for images without a value.
    """

    def __call__(self, batch: Batch, /) -> Columns: ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to make a predictor on a worker, and what it needs of an image: by default its stored vector.

    `id` begins with the kind of its columns (`kind_of`). `fingerprint` (SHA-256, hex) changes with everything that
    affects them. `make` takes no arguments, or if there is a `learn`, what this made once, when the predictor was new,
    of the collection's rows and those of its other annotations.
    """

    id: str
    fingerprint: str
    needs: Needs = "embedding"
    make: Callable[..., Predictor]
    learn: Callable[[LiveRows, Sequence[LiveRows]], Learned] | None = None
    memory: int = 2**30
    """Memory that a worker process needs, in bytes; reserved in Ray."""
    crop: CropSpec = field(default_factory=lambda: CropSpec(side=224, shortest_edge=None))
    draft: bool = True
    """Large JPEGs may be decoded at reduced scale."""
    on_ray: bool = True
    """Ray's workers can make it, in other processes."""
    waiting: str | None = None
    """A column with lists of what a row still waits for: such a row is made again, like that of a retryable reject."""

    @property
    def record(self) -> ModelRecord:
        """The predictor, as its runs record it."""
        return ModelRecord(id=self.id, revision=None, fingerprint=self.fingerprint, dim=0)

    def load(self, name: str, learned: Learned | None, proven: bool) -> LoadedPredictor:
        """The predictor in the process that calls this, such as a worker; see there."""
        identity = ModelIdentity(model_id=self.id, revision=None, fingerprint=self.fingerprint, dim=0)
        predict = self.make() if learned is None else self.make(learned)
        return LoadedPredictor(name, identity, predict, proven)


def checkpoint_recipe(kind: str, checkpoint: Checkpoint, parts: Any, make: Callable[[], Predictor]) -> Recipe:
    """The recipe for a checkpoint, with pictures prepared as by transformers; `parts` are for `fingerprint_of`."""
    return Recipe(
        id=f"{kind} by {checkpoint.model_id}",
        fingerprint=fingerprint_of(parts),
        needs="image",
        make=make,
        memory=loaded_memory(checkpoint),
        crop=checkpoint.preprocessing.crop,
        draft=False,  # would change the confidences of near ties
    )


@dataclass(frozen=True)
class LoadedPredictor:
    """A predictor in the process that calls it, for `jobs.embedding.stages.EmbedBlock`."""

    name: str
    identity: ModelIdentity
    predict: Predictor
    proven: bool
    """Whether it has made rows before: then all images left may be ones that it fails on."""

    def columns(self, batch: Batch) -> tuple[pa.Table, dict[int, BaseException]]:
        """The columns of a batch by their full names, and the errors of images without values by position.

        Raises JobError for invalid columns, or if a predictor that is not `proven` fails on all of many images.
        """
        count, failed = len(batch["image_id"]), dict[int, BaseException]()
        try:
            columns, failed = self._call(batch)
        except JobError:
            raise
        except (Exception, SystemExit) as error:
            columns, failed = pa.table({}), {0: error}
            if count > 1:
                columns, failed = self._one_by_one(batch)
        if len(failed) == count >= _MIN_FAILURES and not self.proven:
            raise JobError(
                f"{self.identity.model_id} failed on each of {count} images, the last with "
                f"{_error_text(failed[count - 1])}: fix the predictor, and run the same command again"
            ) from failed[count - 1]
        return (columns if len(failed) < count else pa.table({})), failed

    def _one_by_one(self, batch: Batch) -> tuple[pa.Table, dict[int, BaseException]]:
        """Like `columns`, with a call for each image, so that only those that it fails on have no values."""
        count = len(batch["image_id"])
        parts: list[pa.Table] = []
        failed: dict[int, BaseException] = {}
        for row in range(count):
            part, errors = self.columns({key: values[row : row + 1] for key, values in batch.items()})
            if errors:
                failed[row] = errors[0]
            else:
                parts.append(part)
        if not parts:
            return pa.table({}), failed
        require_one_type(self.identity.model_id, [part.schema for part in parts])
        whole = pa.concat_tables(parts, promote_options="permissive")
        positions = np.full(count, -1)
        positions[[row for row in range(count) if row not in failed]] = np.arange(len(parts))
        return whole.take(pa.array(positions, mask=positions < 0)), failed

    def _call(self, batch: Batch) -> tuple[pa.Table, dict[int, BaseException]]:
        result, count = self.predict(batch), len(batch["image_id"])
        invalid = [key for key in result if not re.fullmatch(r"[A-Za-z0-9_]*", str(key))]
        if invalid or not result:
            raise JobError(
                f"{self.identity.model_id} returns {f'the column {invalid[0]!r}' if invalid else 'no columns'}: "
                'expected a mapping from "", or letters, digits and _, to the values of the batch'
            )
        failed = {
            row: value
            for values in result.values()
            if isinstance(values, list)
            for row, value in enumerate(values)
            if isinstance(value, BaseException)
        }
        columns = {f"{self.name}_{key}" if key else self.name: _array(values, failed) for key, values in result.items()}
        for name, values in columns.items():
            if len(values) != count:
                raise ValueError(f"column {name}: expected {count} values, got {len(values)}")
        return pa.table(columns), failed


def require_one_type(predictor: str, schemas: Sequence[pa.Schema]) -> None:
    """Raises JobError if a column has types that do not unify. Numbers take the widest type."""
    try:
        pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise JobError(
            f"{predictor} returns a column with values of two types ({error}), so nothing was published: give it one "
            "type, and change the class's `version` if it has one, or drop the annotation "
            "(`likeness columns COLLECTION --drop NAME`)"
        ) from error


def annotated_rows(table: pa.Table, loaded: LoadedPredictor) -> pa.Table:
    """The rows of an annotation for a block with `pixels`, `embedding` or `file`, which is null in a reject."""
    if EMBEDDED_HASH in table.column_names:
        table = _reject_changed(table)
    content = next(name for name in _READERS if name in table.column_names)
    usable = np.flatnonzero(table[content].is_valid().to_numpy())
    columns: pa.Table = pa.table({})
    failed: dict[int, BaseException] = {}
    if len(usable):
        needed, read = _READERS[content]
        ids = _objects(table["image_id"].take(usable))
        columns, failed = loaded.columns({"image_id": ids, needed: read(table[content].drop_null())})
    rows = table.select(
        [name for name in ("image_id", "uri", "content_hash", *REJECT_COLUMNS) if name in table.column_names]
    )
    rows = rows.append_column(EMBEDDING, pa.array([None] * len(table), embedding_type(0)))
    positions = np.full(len(table), -1)
    positions[usable] = np.arange(len(usable))
    values = columns.take(pa.array(positions, mask=positions < 0))
    rows = with_columns(rows, {name: values[name] for name in values.column_names})
    return refuse(rows, {int(usable[row]): _reason(error) for row, error in failed.items()})


def _reason(error: BaseException) -> tuple[str, str, str, bool]:
    if isinstance(error, Rejected):
        return error.stage, error.reason, error.message, error.retryable
    return "predict", type(error).__name__, _error_text(error), True


def _reject_changed(table: pa.Table) -> pa.Table:
    """`table` with the hashes that the collection has; images whose bytes have changed since become rejects.

    This also replaces a decoding error, which says nothing about the embedded bytes: they may come back.
    """
    embedded = table[EMBEDDED_HASH].cast(pa.string())
    changed: Any = pc.not_equal(table["content_hash"], embedded).fill_null(False)
    reason = ("fetch", "changed", "changed since it was embedded: `likeness reembed` embeds it again", True)
    columns: dict[str, Any] = {"content_hash": embedded}
    for name in ("pixels", "file"):
        if name in table.column_names:
            kind: Any = table[name].type
            columns[name] = pc.if_else(changed, pa.scalar(None, kind), table[name])
    return refuse(with_columns(table, columns), dict.fromkeys(np.flatnonzero(changed.to_numpy()).tolist(), reason))


def _array(values: Any, failed: Collection[int]) -> pa.Array[Any]:
    if failed and not isinstance(values, pa.Array):
        values = [None if row in failed else value for row, value in enumerate(values)]
    elif isinstance(values, np.ndarray) and values.ndim > 1:
        values = list(values)
    array: pa.Array[Any] = values if isinstance(values, pa.Array) else pa.array(values)
    return array


def _objects(values: Any) -> npt.NDArray[np.object_]:
    return np.array(values.to_pylist(), object)


_READERS: dict[str, tuple[Needs, Callable[[Any], npt.NDArray[Any]]]] = {
    "pixels": ("image", crops_of),
    EMBEDDING: ("embedding", vectors_of),
    "file": ("file", _objects),
}
"""For each column of content that a block may have: its key in a batch, and the function that reads it."""


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"[:500]
    return text.encode("utf-8", "replace").decode()  # Arrow refuses lone surrogates
