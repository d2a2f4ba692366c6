"""What adds columns to images, and the rows that it makes of a block."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedder.identity import ModelIdentity
from embedder.images import CropSpec
from embedder.models.checkpoint import Checkpoint
from index.collection.records import ModelRecord
from index.collection.rows import EMBEDDING, REJECT_COLUMNS, embedding_type, vectors_of
from jobs.embedding.embed_rows import crops_of
from jobs.embedding.model_source import loaded_memory
from jobs.errors import JobError
from jobs.sources.listing import refuse, with_columns

Needs = Literal["image", "embedding", "file"]
NEEDS: tuple[Needs, ...] = get_args(Needs)
Batch = Mapping[str, npt.NDArray[Any]]
Columns = Mapping[str, Any]

EMBEDDED_HASH = "embedded_hash"
"""A block's column with the hash of the bytes that were embedded, beside `content_hash`, that of those read now."""
_BROKEN = 8
"""A new predictor that fails on every image of a block of so many is at fault itself."""


class Predictor(Protocol):
    """Called with a batch: `image_id` (n,) strings, and what it needs: `image` (n, side, side, 3) uint8 RGB,
    `embedding` (n, dim) float32 of unit norm, or `file` (n,) bytes. Returns columns of n values, by what follows the
    annotation's name; "" for the name alone. A list may have an exception for an image that has no value.
    """

    def __call__(self, batch: Batch, /) -> Columns: ...


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to make a predictor on a worker, and what it needs of an image.

    `fingerprint` (SHA-256, hex) changes with whatever changes its columns. `calibrate` measures once what all of its
    runs share, which `make` is called with; it gets a sample of the vectors, `(n, dim)`.
    """

    id: str
    fingerprint: str
    needs: Needs
    make: Callable[[Mapping[str, float]], Predictor]
    calibrate: Callable[[npt.NDArray[np.float32]], dict[str, float]] | None = None
    memory: int = 2**30
    """Bytes that a process of it takes, for Ray."""
    crop: CropSpec = field(default_factory=lambda: CropSpec(side=224, shortest_edge=None))
    draft: bool = True
    """Large JPEGs may be decoded at reduced scale."""

    @property
    def record(self) -> ModelRecord:
        """What runs say that their rows were made by."""
        return ModelRecord(id=self.id, revision=None, fingerprint=self.fingerprint, dim=0)

    def loader(self, name: str, calibration: Mapping[str, float], *, proven: bool) -> Callable[[], LoadedPredictor]:
        """Makes the predictor of an annotation of this name; see `LoadedPredictor.proven`."""
        return partial(_load, self.make, calibration, name, self.record, proven)


def checkpoint_recipe(checkpoint: Checkpoint, about: Any, make: Callable[[Mapping[str, float]], Predictor]) -> Recipe:
    """Of a predictor that a checkpoint is; its pictures are prepared exactly as transformers does it."""
    return Recipe(
        id=checkpoint.model_id,
        fingerprint=fingerprint_of(about),
        needs="image",
        make=make,
        memory=loaded_memory(checkpoint),
        crop=checkpoint.preprocessing.crop,
        draft=False,  # confidences of near ties would be others
    )


def fingerprint_of(about: Any) -> str:
    """SHA-256 (hex) of what decides a predictor's columns, as JSON."""
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


@dataclass(frozen=True)
class LoadedPredictor:
    """A predictor in the process that calls it, for `jobs.embedding.stages.EmbedBlock`."""

    name: str
    identity: ModelIdentity
    predict: Predictor
    proven: bool
    """It has made rows before: what is left may be nothing but the images that it fails on."""

    def columns(self, batch: Batch) -> tuple[pa.Table, dict[int, BaseException]]:
        """The columns of a batch, by their full names, and why some of its images have none.

        JobError when one that is not `proven` fails on all of many, and for columns that no image can have.
        """
        count, failed = len(batch["image_id"]), dict[int, BaseException]()
        try:
            columns, failed = self._called(batch)
        except JobError:
            raise
        except (Exception, SystemExit) as error:
            columns, failed = pa.table({}), {0: error}
            if count > 1:
                columns, failed = self._one_by_one(batch)
        if len(failed) == count >= _BROKEN and not self.proven:
            raise JobError(
                f"{self.identity.model_id} failed on each of {count} images, the last with "
                f"{_error_text(failed[count - 1])}: mend it, and run the same command again"
            ) from failed[count - 1]
        return (columns if len(failed) < count else pa.table({})), failed

    def _one_by_one(self, batch: Batch) -> tuple[pa.Table, dict[int, BaseException]]:
        """As `columns`: those that it does not fail on keep theirs."""
        count = len(batch["image_id"])
        parts: list[pa.Table] = []
        failed: dict[int, BaseException] = {}
        for row in range(count):
            part, why = self.columns({key: values[row : row + 1] for key, values in batch.items()})
            if why:
                failed[row] = why[0]
            else:
                parts.append(part)
        if not parts:
            return pa.table({}), failed
        require_one_type(self.identity.model_id, [part.schema for part in parts])
        whole = pa.concat_tables(parts, promote_options="permissive")
        positions = np.full(count, -1)
        positions[[row for row in range(count) if row not in failed]] = np.arange(len(parts))
        return whole.take(pa.array(positions, mask=positions < 0)), failed

    def _called(self, batch: Batch) -> tuple[pa.Table, dict[int, BaseException]]:
        found, count = self.predict(batch), len(batch["image_id"])
        wrong = [key for key in found if not re.fullmatch(r"[A-Za-z0-9_]*", str(key))]
        if wrong or not found:
            raise JobError(
                f"{self.identity.model_id} returns {f'the column {wrong[0]!r}' if wrong else 'no columns'}: expected a "
                'mapping from "", or letters, digits and _, to the values of the batch'
            )
        failed = {
            row: value
            for values in found.values()
            if isinstance(values, list)
            for row, value in enumerate(values)
            if isinstance(value, BaseException)
        }
        columns = {f"{self.name}_{key}" if key else self.name: _array(values, failed) for key, values in found.items()}
        for name, values in columns.items():
            if len(values) != count:
                raise ValueError(f"column {name}: expected {count} values, got {len(values)}")
        return pa.table(columns), failed


def require_one_type(predictor: str, schemas: Sequence[pa.Schema]) -> None:
    """JobError names a column that has types of which none holds the values of the other. Numbers become the wider."""
    try:
        pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise JobError(
            f"{predictor} returns a column with values of two types ({error}), so nothing was published: give it one "
            "type, and the class another `version` if it sets one; or drop the annotation (`likeness columns --drop`)"
        ) from error


def annotated_rows(table: pa.Table, loaded: LoadedPredictor) -> pa.Table:
    """The rows of an annotation for a block with `pixels`, `embedding` or `file`, which is null in a reject."""
    if EMBEDDED_HASH in table.column_names:
        table = _only_as_embedded(table)
    content = next(name for name in _READ if name in table.column_names)
    kept = np.flatnonzero(table[content].is_valid().to_numpy())
    columns: pa.Table = pa.table({})
    failed: dict[int, BaseException] = {}
    if len(kept):
        needed, read = _READ[content]
        ids = np.array(table["image_id"].take(kept).to_pylist(), object)
        columns, failed = loaded.columns({"image_id": ids, needed: read(table[content].drop_null())})
    rows = table.select(
        [name for name in ("image_id", "uri", "content_hash", *REJECT_COLUMNS) if name in table.column_names]
    )
    rows = rows.append_column(EMBEDDING, pa.array([None] * len(table), embedding_type(0)))
    at = np.full(len(table), -1)
    at[kept] = np.arange(len(kept))
    taken = columns.take(pa.array(at, mask=at < 0))
    rows = with_columns(rows, {name: taken[name] for name in taken.column_names})
    reasons = {row: ("predict", type(error).__name__, _error_text(error), True) for row, error in failed.items()}
    return refuse(rows, {int(kept[row]): reason for row, reason in reasons.items()})


def _only_as_embedded(table: pa.Table) -> pa.Table:
    """`table` with the hashes that the collection has; an image whose bytes are others now is a reject.

    Also if they do not decode: that says nothing of the bytes that were embedded, which may come back.
    """
    listed = table[EMBEDDED_HASH].cast(pa.string())
    changed: Any = pc.not_equal(table["content_hash"], listed).fill_null(False)
    reason = ("fetch", "changed", "changed since it was embedded: `likeness reembed` embeds it again", True)
    columns: dict[str, Any] = {"content_hash": listed}
    for name in ("pixels", "file"):
        if name in table.column_names:
            kind: Any = table[name].type
            columns[name] = pc.if_else(changed, pa.scalar(None, kind), table[name])
    return refuse(with_columns(table, columns), dict.fromkeys(np.flatnonzero(changed.to_numpy()).tolist(), reason))


def _load(
    make: Callable[[Mapping[str, float]], Predictor],
    calibration: Mapping[str, float],
    name: str,
    record: ModelRecord,
    proven: bool,
) -> LoadedPredictor:
    identity = ModelIdentity(model_id=record.id, revision=None, fingerprint=record.fingerprint, dim=record.dim)
    return LoadedPredictor(name, identity, make(calibration), proven)


def _array(values: Any, failed: Collection[int]) -> pa.Array[Any]:
    if failed:
        values = [None if row in failed else value for row, value in enumerate(values)]
    elif isinstance(values, np.ndarray) and values.ndim > 1:
        values = list(values)
    array: pa.Array[Any] = pa.array(values)
    return array


def _files(values: Any) -> npt.NDArray[np.object_]:
    files = np.empty(len(values), object)
    files[:] = values.to_pylist()
    return files


_READ: dict[str, tuple[Needs, Callable[[Any], npt.NDArray[Any]]]] = {
    "pixels": ("image", crops_of),
    EMBEDDING: ("embedding", vectors_of),
    "file": ("file", _files),
}
"""What a block has of its images, and how a batch has it."""


def _error_text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"[:500]
    return text.encode("utf-8", "replace").decode()  # Arrow takes no lone surrogates
