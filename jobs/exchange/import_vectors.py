"""Imports vectors that were made elsewhere as a run of a collection: all that are sound, and rejects of the others."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from embedder.images.exif import EXIF_COLUMNS
from embedder.models.load import find_model
from index.collection import Collection, writing
from index.collection.collection import Snapshot
from index.collection.layout import MANIFEST, run_path
from index.collection.records import UNKNOWN_MODEL, ModelRecord
from index.collection.rows import EMBEDDING, STATE_COLUMNS, TEXT, embedding_column
from index.errors import NotACollectionError
from index.storage.bucket_address import without_secrets
from index.storage.storage import Storage, canonical_address
from index.versions.servable import collection_model
from jobs.embedding.commit import WrittenRun, commit
from jobs.embedding.model_source import model_record
from jobs.embedding.report import EmbedReport
from jobs.errors import OtherModelError, SourceError, TooManyRejectsError
from jobs.exchange.check_vectors import Problems, unit_rows
from jobs.exchange.vector_files import ID_COLUMNS, VectorPart, find_vectors, named_rows
from jobs.planning.image_filter import ImageFilter
from jobs.planning.plan import Plan, write_block
from jobs.sources.files import require_source_exists
from jobs.sources.listing import FILE_FACTS, LISTING, Column, listing_table, refuse, with_columns
from jobs.sources.tables import URI_COLUMNS, absolute_uris, require_texts
from jobs.values import MAX_REJECT_RATE

_STAGE = "import"
_BLOCK = 4096  # rows of a file: 8 MB of vectors of 512 dimensions
_OURS = tuple(name for name in (*LISTING.names, *FILE_FACTS.names, *EXIF_COLUMNS) if name not in ("image_id", "uri"))
"""Columns that mean in an export what they mean in a row; in other tools' files they may mean anything."""


@dataclass(kw_only=True)
class VectorImport:
    """Vectors of `source` become rows of `collection`. Nothing is committed unless `run` returns.

    `model`, or the class `embedder`, says what made them: its identity becomes theirs. Neither: what an export names,
    else a model that is unknown, so that vectors of other sources are refused. `normalised` counts vectors that were
    not of unit norm.
    """

    source: str
    collection: str
    model: str | None = None
    revision: str | None = None
    embedder: str | None = None
    ids: str | None = None
    uri_column: str | None = None
    embedding_column: str | None = None
    max_reject_rate: float = MAX_REJECT_RATE
    progress: Callable[[int, int], None] = lambda *_: None
    normalised: int = field(default=0, init=False)

    def run(self) -> EmbedReport:
        """Raises SourceError for a source that is not as expected, OtherModelError, and TooManyRejectsError."""
        require_source_exists(self.source)
        with suppress(NotACollectionError):
            if Collection.open(self.source).runs():
                raise SourceError(f"{without_secrets(self.source)} is a collection: `likeness export` it first")
        parts = find_vectors(self.source, ids=self.ids, embedding_column=self.embedding_column)
        if not parts:
            raise SourceError(f"{without_secrets(self.source)} has no rows: expected at least one vector")
        for part in parts:
            self._uri_column_of(part)
        model = self._model(parts, _common_dim(parts))
        ids, problems = named_rows(parts)
        self._require_same_model(
            Collection.open_or_empty(self.collection).snapshot(), model
        )  # before one is made there
        with writing(Collection.create_or_open(self.collection), "import") as leased:
            snapshot = leased.snapshot()
            self._require_same_model(snapshot, model)
            listing = pa.table({"image_id": ids})
            live = snapshot.live().of_model(model).read(STATE_COLUMNS)
            address = canonical_address(Storage.open(self.source).location)
            # Not the folder itself: a job that embeds that neither deletes these rows nor goes on with them.
            plan = Plan(
                source=canonical_address(f"import:{address}"),
                model=model,
                listing=listing,
                todo=listing,
                live=live,
                run=None,
                files=[],
                image_filter=ImageFilter(exif=any(part.rows.model and part.column_of(EXIF_COLUMNS) for part in parts)),
            )
            written = WrittenRun.begin(plan, leased)
            with _committed_or_removed(leased, written.run.run_id):
                for block in self._blocks(parts, ids, problems, model.dim):
                    written.files.append(write_block(leased, written.run.run_id, plan.attempt, block))
                    leased.check_lease_if_overdue()
                    written.report.rejected += block.num_rows - block["error_reason"].null_count
                    written.report.embedded += block["error_reason"].null_count
                    self.progress(written.report.embedded + written.report.rejected, len(ids))
                commit(leased, [written], self.max_reject_rate)
        return written.report

    def _model(self, parts: Sequence[VectorPart], dim: int) -> ModelRecord:
        source, recorded = without_secrets(self.source), [part.rows.model for part in parts]
        if (name := self.embedder or self.model) is not None:
            model = model_record(find_model(name, self.revision, embedder=self.embedder).identity)
            for each in recorded:
                if each and not each.is_unknown and not each.agrees_with(model):
                    raise OtherModelError(f"{source} was exported with vectors of {each}, and --model names {model}")
        elif len({each and each.fingerprint for each in recorded}) > 1:
            of = {
                str(each or "a model that is not named"): part.file.name
                for part, each in zip(parts, recorded, strict=True)
            }
            files = ", ".join(f"{name} of {made_by}" for made_by, name in of.items())
            raise OtherModelError(
                f"{source} has vectors of several models ({files}): import them one by one, each "
                "model's into a collection of its own"
            )
        elif first := recorded[0]:
            model = first
        else:
            address = canonical_address(Storage.open(self.source).location)
            fingerprint = hashlib.sha256(f"unknown model of {address}".encode()).hexdigest()
            model = ModelRecord(id=UNKNOWN_MODEL, revision=None, fingerprint=fingerprint, dim=dim)
        if model.dim != dim:
            raise OtherModelError(
                f"{source} has vectors of {dim} dimensions, {model} makes {model.dim}: name the model that made them"
            )
        return model

    def _require_same_model(self, snapshot: Snapshot, model: ModelRecord) -> None:
        location, there = snapshot.collection.location, collection_model(snapshot.collection, snapshot.committed)
        if there is None or there.agrees_with(model):
            return
        if model.is_unknown:
            raise OtherModelError(
                f"{location} holds vectors of {there}, and {without_secrets(self.source)} does not name "
                "its model: name the model with --model if it is the same, else import into another collection"
            )
        raise OtherModelError(
            f"{location} holds vectors of {there}, not of {model}: they cannot be compared. Import into "
            "another collection"
        )

    def _blocks(self, parts: Sequence[VectorPart], ids: Column, problems: Problems, dim: int) -> Iterator[pa.Table]:
        """Rows as they are written, with a reason for each that is refused."""
        start = 0
        for part in parts:
            first = start
            for columns, vectors, wrong in part.blocks(_BLOCK, dim):
                wrong |= {row: problems[start + row] for row in range(len(vectors)) if start + row in problems}
                found, normalised = unit_rows(vectors, wrong)
                self.normalised += normalised
                rows = self._columns(part, columns, ids.slice(start, len(found)), start - first)
                file, missing = part.file.name, np.zeros(len(found), bool)
                missing[list(wrong)] = True
                yield refuse(
                    rows.append_column(EMBEDDING, embedding_column(found, missing)),
                    {
                        row: (_STAGE, reason, f"row {start - first + row} of {file}: {message}", False)
                        for row, (reason, message) in wrong.items()
                    },
                )
                start += len(found)

    def _uri_column_of(self, part: VectorPart) -> str | None:
        """The column of addresses. SourceError when it is not there, or has none."""
        usual = ("uri", "image_path") if part.rows.model else (*URI_COLUMNS, "image_path")
        found = part.column_of((self.uri_column,) if self.uri_column else usual)
        if found is None and self.uri_column:
            raise SourceError(f"{part.file.uri} has no column `{self.uri_column}`, which --uri-column names")
        if found is not None:
            require_texts(part.rows.file, found, part.rows.schema.field(found).type)
        return found

    def _columns(self, part: VectorPart, columns: pa.Table, ids: Column, first: int) -> pa.Table:
        """Everything but the vectors: a row's own columns as an export has them, and metadata."""
        exported, uri = part.rows.model is not None, self._uri_column_of(part)
        ours = [name for name in _OURS if exported and name in columns.column_names]
        own: dict[str, Column] = {"image_id": ids, **{name: columns[name] for name in ours if name in LISTING.names}}
        if uri is not None:
            named = columns[uri].cast(TEXT)
            own["uri"] = named if exported else absolute_uris(part.rows.file, named)
        elif (cell := part.pictures) is not None:
            own["uri"] = pa.array([f"{part.file.uri}#row={first + row}&column={cell}" for row in range(len(ids))], TEXT)
        taken = {part.column_of(ID_COLUMNS), uri, *ours}
        rows = listing_table(own, {name: columns[name] for name in columns.column_names if name not in taken})
        return with_columns(rows, {name: columns[name] for name in ours if name not in LISTING.names})


@contextmanager
def _committed_or_removed(collection: Collection, run_id: str) -> Iterator[None]:
    """No import goes on with an earlier one. A run of too many rejects stays, for `likeness rejects` to list them."""
    try:
        yield
    except TooManyRejectsError:
        raise
    except BaseException:
        if not collection.storage.is_file(run_path(run_id, MANIFEST)):
            collection.storage.delete(run_path(run_id))
        raise


def _common_dim(parts: Sequence[VectorPart]) -> int:
    dims = [part.dim() for part in parts]
    for part, dim in zip(parts, dims, strict=True):
        if dim != dims[0]:
            raise SourceError(
                f"{part.file.uri} has vectors of {dim} dimensions, {parts[0].file.uri} of {dims[0]}: expected one"
            )
    return dims[0]
