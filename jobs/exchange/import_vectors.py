"""Imports vectors that were made elsewhere as a run of a collection, with rejects for unusable ones."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedder.fetch.uris import cell_uri
from embedder.images.exif import EXIF_COLUMNS, EXIF_VERSION
from embedder.models.load import find_model
from index.collection import Collection, writing
from index.collection.annotations import annotation_logs, belongs_to
from index.collection.collection import Snapshot
from index.collection.layout import MANIFEST, run_path
from index.collection.merged.merge import merge_runs
from index.collection.records.model_record import UNKNOWN_MODEL, ModelRecord
from index.collection.records.run_manifest import RowFile, RunCounts, RunSettings, RunStart
from index.collection.rows import EMBEDDING, TEXT, embedding_column
from index.errors import NotACollectionError
from index.storage.bucket_address import without_secrets
from index.storage.scratch import Scratch
from index.storage.storage import canonical_address
from index.versions.servable import collection_model
from jobs.embedding.model_source import model_record
from jobs.embedding.report import EmbedReport
from jobs.errors import OtherModelError, SourceError, TooManyRejectsError
from jobs.exchange.check_vectors import unit_rows
from jobs.exchange.vector_files import RowIds, VectorPart, find_vectors
from jobs.limits import require_few_rejects
from jobs.planning.plan import write_block
from jobs.sources.files import require_source_exists, source_address
from jobs.sources.list_columns import URI_COLUMNS
from jobs.sources.list_tables import absolute_uris, require_texts
from jobs.sources.listing import (
    FILE_FACTS,
    LISTING,
    UNNAMED_INDEX,
    Column,
    left_out_note,
    listing_table,
    refuse,
    renaming_notes,
    unnamed_index,
    with_columns,
)
from jobs.values import MAX_REJECT_RATE

_STAGE = "import"
_BLOCK = 4096  # rows per file: 8 MB of vectors of 512 dimensions
_ROW_COLUMNS = tuple(
    name for name in (*LISTING.names, *FILE_FACTS.names, *EXIF_COLUMNS) if name not in ("image_id", "uri")
)
"""Columns that an export copies from rows. In files of other tools the same names may mean anything."""


@dataclass(kw_only=True)
class VectorImport:
    """Adds the vectors of `source` as rows to `collection`. Nothing is committed unless `run` returns.

    `model` or the class `embedder` names the model that made them. The default is the model that an export names, else
    an unknown one, so that vectors of other sources are refused. `normalised` counts vectors that were not of unit
    norm. `notes` gets the names of files by what to say about their columns.
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
    notes: dict[str, list[str]] = field(default_factory=dict, init=False)
    _annotations: Sequence[str] = field(default=(), init=False)

    def run(self) -> EmbedReport:
        """Raises SourceError for an unusable source, OtherModelError, and TooManyRejectsError."""
        require_source_exists(self.source)
        with suppress(NotACollectionError):
            if Collection.open(self.source).runs():
                raise SourceError(f"{without_secrets(self.source)} is a collection: `likeness export` it first")
        with Scratch("import") as scratch:
            return self._run(scratch.path)

    def _run(self, scratch: Path) -> EmbedReport:
        parts = find_vectors(self.source, scratch, ids=self.ids, embedding_column=self.embedding_column)
        if not parts:
            raise SourceError(f"{without_secrets(self.source)} has no rows: expected at least one vector")
        for part in parts:
            self._uri_column_of(part)
        model = self._model(parts, _common_dim(parts))
        ids = RowIds.write(parts, scratch / "ids.parquet")
        # Also before the collection is created.
        self._require_same_model(Collection.open_or_empty(self.collection).snapshot(), model)
        with writing(Collection.create_or_open(self.collection), "import") as leased:
            self._require_same_model(leased.snapshot(), model)
            self._annotations = list(annotation_logs(leased))
            address = source_address(self.source)
            # A source of its own: a job that embeds the same folder neither deletes these rows nor resumes this run.
            source = canonical_address(f"import:{address}")
            exif = any(part.rows.model and part.first_column(EXIF_COLUMNS) for part in parts)
            settings = RunSettings(exif=EXIF_VERSION * exif)
            run, files = leased.start_run(source, model, settings=settings), list[RowFile]()
            report, reasons = EmbedReport(listed=sum(map(len, parts)), already_there=0), Counter[str]()
            with _discard_on_error(leased, run.run_id):
                for block in self._blocks(ids):
                    files.append(write_block(leased, run.run_id, 1, block))
                    leased.raise_if_lease_lost()
                    reasons.update(map(str, block["error_reason"].drop_null().to_pylist()))
                    report.rejected = reasons.total()
                    report.embedded += block["error_reason"].null_count
                    self.progress(report.done, report.listed)
                report.set_reasons(Counter(dict(sorted(reasons.items()))))
                self._commit(leased, run, files, report)
            merge_runs(leased)
        return report

    def _commit(self, leased: Collection, run: RunStart, files: list[RowFile], report: EmbedReport) -> None:
        if report.done != report.listed:
            source = without_secrets(self.source)
            raise SourceError(f"{source} had {report.listed} rows, but {report.done} were read: it has changed since")
        require_few_rejects(report.reject_reasons, report.unfiltered, self.max_reject_rate, "import it again")
        counts = RunCounts(
            listed=report.listed,
            already_there=0,
            deleted=0,
            embedded=report.embedded,
            filtered=0,
            rejected=report.rejected,
        )
        leased.commit_run(run, files, counts=counts)

    def _model(self, parts: Sequence[VectorPart], dim: int) -> ModelRecord:
        source, records = without_secrets(self.source), [part.rows.model for part in parts]
        if (name := self.embedder or self.model) is not None:
            model = model_record(find_model(name, self.revision, allowed=(self.embedder,)).identity)
            for record in records:
                if record and not record.is_unknown and not record.agrees_with(model):
                    raise OtherModelError(f"{source} has exported vectors of {record}, but --model names {model}")
        elif len({record and record.fingerprint for record in records}) > 1:
            by_model = {
                str(record or "an unnamed model"): part.file.name for part, record in zip(parts, records, strict=True)
            }
            files = ", ".join(f"{file} of {name}" for name, file in by_model.items())
            raise OtherModelError(
                f"{source} has vectors of several models ({files}): import those of each model separately, "
                "into a collection of its own"
            )
        elif first := records[0]:
            model = first
        else:
            address = source_address(self.source)
            fingerprint = hashlib.sha256(f"unknown model of {address}".encode()).hexdigest()
            model = ModelRecord(id=UNKNOWN_MODEL, revision=None, fingerprint=fingerprint, dim=dim)
        if model.dim != dim:
            raise OtherModelError(
                f"{source} has vectors of {dim} dimensions, {model} makes {model.dim}: name the model that made them"
            )
        return model

    def _require_same_model(self, snapshot: Snapshot, model: ModelRecord) -> None:
        location, existing = snapshot.collection.location, collection_model(snapshot)
        if existing is None or existing.agrees_with(model):
            return
        if model.is_unknown:
            raise OtherModelError(
                f"{location} has vectors of {existing}, but {without_secrets(self.source)} does not name "
                "its model: name the model with --model if it is the same, else import into another collection"
            )
        raise OtherModelError(
            f"{location} has vectors of {existing}, which cannot be compared with those of {model}: import into "
            "another collection"
        )

    def _blocks(self, ids: RowIds) -> Iterator[pa.Table]:
        """The rows to write, with a reason for each reject."""
        start, pending = 0, ids.problems()
        problem = next(pending, None)
        for part in ids.parts:
            part_start = start
            self._note_columns(part)
            for columns, vectors, problems in part.blocks(_BLOCK):
                end, unusable = start + len(vectors), dict[int, tuple[str, str]]()
                while problem and problem[0] < end:
                    unusable[problem[0] - start] = problem[1]
                    problem = next(pending, None)
                problems |= unusable
                embeddings, normalised = unit_rows(vectors, problems)
                self.normalised += normalised
                numbers = range(start - part_start, end - part_start)
                rows_ids = ids.with_addresses(part.ids_of(columns, numbers), list(unusable), start)
                is_reject = np.zeros(len(embeddings), bool)
                is_reject[list(problems)] = True
                yield refuse(
                    self._columns(part, columns, rows_ids, numbers).append_column(
                        EMBEDDING, embedding_column(embeddings, is_reject)
                    ),
                    {
                        row: (_STAGE, reason, f"row {numbers[row]} of {part.file.name}: {message}", False)
                        for row, (reason, message) in problems.items()
                    },
                )
                start = end

    def _uri_column_of(self, part: VectorPart) -> str | None:
        """The column of addresses, if any. SourceError if it has other values, or --uri-column names a missing one."""
        defaults = ("uri", "image_path") if part.rows.model else (*URI_COLUMNS, "image_path")
        column = part.first_column((self.uri_column,) if self.uri_column else defaults)
        if column is None and self.uri_column:
            raise SourceError(f"{part.file.uri} has no column `{self.uri_column}`, which --uri-column names")
        if column is not None:
            require_texts(part.rows.file, column, part.rows.schema.field(column).type)
        return column

    def _note_columns(self, part: VectorPart) -> None:
        """Note which columns are left out, and which get another name."""
        shown = part.picture_column if self._uri_column_of(part) is None else None
        pictures = [name for name in part.bytes_columns() if name != shown]
        left_out = {
            "bytes": pictures,
            "other vectors": part.other_vectors(),
            "the collection's annotations": list(filter(self._is_annotated, part.rows.schema.names)),
            UNNAMED_INDEX: unnamed_index(part.rows.schema.names),
        }
        for content, names in left_out.items():
            if names:
                self.notes.setdefault(left_out_note(content, names), []).append(part.rows.file.name)
        if part.unused:
            note = "ids are numbers, as it is not certain that these files have them: name one with --ids"
            self.notes.setdefault(note, []).extend(part.unused)
        for note in renaming_notes(self._metadata(part, part.plain_columns())):
            self.notes.setdefault(note, [])

    def _metadata(self, part: VectorPart, names: Sequence[str]) -> list[str]:
        """Those of a part's plain columns that are metadata."""
        used = {part.id_column, self._uri_column_of(part), *_row_columns(part), *unnamed_index(names)}
        return [name for name in names if name not in used and not self._is_annotated(name)]

    def _is_annotated(self, column: str) -> bool:
        """Whether an annotation of the collection has reserved the name: as metadata, it would block the annotation."""
        return any(belongs_to(column, annotation) for annotation in self._annotations)

    def _columns(self, part: VectorPart, columns: pa.Table, ids: Column, numbers: range) -> pa.Table:
        """All columns except the vectors: those of rows, if it is an export, and metadata."""
        is_export, uri, names = part.rows.model is not None, self._uri_column_of(part), _row_columns(part)
        listing: dict[str, Column] = {name: columns[name] for name in names if name in LISTING.names}
        listing["image_id"] = ids
        if uri is not None:
            uris = columns[uri].cast(TEXT)
            listing["uri"] = uris if is_export else absolute_uris(part.rows.file, uris)
        elif (column := part.picture_column) is not None:
            cells = [cell_uri(part.file.uri, number, column) for number in numbers]
            listing["uri"] = pa.array(cells, TEXT)
        rows = listing_table(listing, {name: columns[name] for name in self._metadata(part, columns.column_names)})
        return with_columns(rows, {name: columns[name] for name in names if name not in LISTING.names})


def _row_columns(part: VectorPart) -> list[str]:
    """The columns of an export that are those of rows."""
    columns = part.rows.schema.names if part.rows.model else ()
    return [name for name in _ROW_COLUMNS if name in columns]


@contextmanager
def _discard_on_error(collection: Collection, run_id: str) -> Iterator[None]:
    """Delete the run, which no import would resume. After too many rejects it stays, for `likeness rejects`."""
    try:
        yield
    except TooManyRejectsError:
        raise
    except BaseException:
        if not collection.storage.is_file(run_path(run_id, MANIFEST)):
            collection.storage.delete(run_path(run_id))
        raise


def _common_dim(parts: Sequence[VectorPart]) -> int:
    first, dim = parts[0].file.uri, parts[0].dim
    for part in parts[1:]:
        if (other := part.dim) != dim:
            raise SourceError(f"{part.file.uri} has vectors of {other} dimensions, but {first} of {dim}: expected one")
    return dim
