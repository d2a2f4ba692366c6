"""Writes the live rows of a collection, vectors and all columns, to files that other tools can read."""

import glob
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from index.arrays import Vectors
from index.collection import Collection
from index.collection.annotations import list_annotations, rows_with_values
from index.collection.rows import EMBEDDING, REJECT_COLUMNS, TILES, filterable, join_batches, vectors_of
from index.collection.stored_rows import BATCH_ROWS
from index.errors import EmptyCollectionError
from index.filters.filter import Filter
from index.storage.bucket_address import without_secrets
from index.storage.disk import name_full_disk
from index.storage.storage import Storage
from jobs.errors import UsageError
from jobs.sources.listing import free_name

Format = Literal["parquet", "npy", "clip-retrieval"]
FILES: Final[dict[str, tuple[str, str]]] = {
    "parquet": ("", "rows.parquet"),
    "npy": ("vectors.npy", "rows.parquet"),
    "clip-retrieval": ("img_emb/img_emb_0.npy", "metadata/metadata_0.parquet"),
}
"""By format, the file of vectors (empty if they are a column) and the file of rows with all other columns."""
MODEL_KEY: Final = b"likeness.model"
"""Key in a Parquet file's metadata; its value is the model's record as JSON."""

_SCRATCH: Final = ".likeness-export-"


def export(
    collection: Collection,
    folder: str,
    form: Format,
    progress: Callable[[int, int], None] = lambda *_: None,
    *,
    where: Mapping[str, Any] | None = None,
) -> int:
    """Write each live row that has a vector and passes a filter, with its annotations, to a new `folder`. Returns the
    number of rows.

    The folder is complete or not created. `progress` gets the number of rows written so far, and of all live rows,
    including rejects. UsageError if the folder is not empty or no row passes, FilterError for an invalid filter,
    EmptyCollectionError if nothing is embedded.
    """
    target = _require_new(folder)
    snapshot = collection.snapshot()
    live, count = snapshot.live, 0
    annotations = rows_with_values(list_annotations(collection))
    with name_full_disk(target), _all_or_nothing(target) as output, ExitStack() as files:
        writer = None
        for batch in join_batches(live.embedded(annotations), BATCH_ROWS):
            table = pa.Table.from_batches([batch])
            if where is not None:
                table = table.filter(pa.array(Filter.parse(where, filterable(table.schema)).mask(batch)))
            if writer is None:
                model = snapshot.committed[-1].model.model_copy(update={"tiles": None})  # not exported
                writer = files.enter_context(_Writer(output, form, table.schema, model.model_dump_json().encode()))
            writer.write(table)
            count += table.num_rows
            progress(count, len(live))
        if writer and not count:
            raise UsageError("no image passes --filter: expected one that some images pass")
        if not count:
            raise EmptyCollectionError(f"{collection.location} has no vectors to export: embed or import some first")
    return count


class _Writer:
    """The files of one export, row group by row group."""

    def __init__(self, folder: Path, form: Format, schema: pa.Schema, model: bytes) -> None:
        vectors = folder / FILES[form][0] if FILES[form][0] else None
        rows = folder / FILES[form][1]
        for path in (vectors, rows):
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
        excluded = (*REJECT_COLUMNS, TILES, *([EMBEDDING] if vectors else []))
        self._columns = [name for name in schema.names if name not in excluded]
        # clip-retrieval calls `uri` image_path, and a column of that name gets another.
        others = {"uri": "image_path", "image_path": free_name("image_path", self._columns)}
        self._names = [others.get(name, name) if form == "clip-retrieval" else name for name in self._columns]
        fields = [schema.field(old).with_name(new) for old, new in zip(self._columns, self._names, strict=True)]
        self._schema = pa.schema(fields, metadata={MODEL_KEY: model})
        self._npy = _NpyFile(vectors, schema.field(EMBEDDING).type.list_size) if vectors else None
        self._parquet = pq.ParquetWriter(
            rows,
            self._schema,
            compression="zstd",
            # As in a run's files: vectors are all different.
            use_dictionary=[name for name in self._names if name != EMBEDDING],  # type: ignore[arg-type]
        )

    def write(self, table: pa.Table) -> None:
        if self._npy:
            self._npy.write(vectors_of(table[EMBEDDING]))
        self._parquet.write_table(pa.table(table.select(self._columns).columns, schema=self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._parquet.close()
        if self._npy:
            self._npy.close()


class _NpyFile:
    """A .npy file of `(n, dim)` float32. n is only known at the end: numpy leaves room for it in the header."""

    def __init__(self, path: Path, dim: int) -> None:
        self._file, self._dim, self._rows = path.open("wb"), dim, 0
        self._write_header()

    def write(self, vectors: Vectors) -> None:
        self._file.write(vectors.tobytes())
        self._rows += len(vectors)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._rows, self._dim)}
        np.lib.format.write_array_header_1_0(self._file, header)


def _require_new(folder: str) -> Path:
    if "://" in folder and not folder.startswith("file://"):
        raise UsageError(f"{without_secrets(folder)} is not on this machine: expected a local folder to copy from")
    target = Path(Storage.open(folder).root)
    entries = target.iterdir() if target.is_dir() else ()
    is_empty = target.is_dir() and all(entry.name.startswith(_SCRATCH) for entry in entries)
    if (target.exists() or target.is_symlink()) and not is_empty:
        raise UsageError(f"{folder} already exists: expected a new or an empty folder to export into")
    return target


@contextmanager
def _all_or_nothing(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` without an error, and is removed after one; if this process is
    killed, by the next export.
    """
    exists = target.exists()  # then it is empty; it may be a mount, which cannot be replaced
    parent = target if exists else target.parent
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{_SCRATCH}{glob.escape(target.name)}-*"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{target.name}-", dir=parent))
    try:
        output = scratch / "export"
        output.mkdir()
        yield output
        for path in output.iterdir() if exists else ():
            path.rename(target / path.name)
        if not exists:
            output.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
