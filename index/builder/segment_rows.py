"""Writes the rows of a segment, their vectors and words to disk, as they come."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.collection.layout import IDS, ROWS, TILE_VECTORS, VECTORS, WORDS
from index.collection.records.index_settings import IndexSettings
from index.collection.rows import EMBEDDING, TILES, conform, join_batches, vectors_of
from index.collection.stored_rows import BATCH_ROWS
from index.errors import CollectionError
from index.segments.mapped_rows import write_by_id
from index.segments.segment import Segment
from index.segments.vector_file import flat_header
from index.words.block import BLOCK_ROWS
from index.words.word_index import text_columns, write_words

_NORM_TOLERANCE = 1e-3


def write_rows(folder: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema, base: Segment | None = None) -> int:
    """Stream embedded rows into a folder, after all rows of `base`, and return their number. CollectionError names one
    without unit norm.
    """
    dim = schema.field(EMBEDDING).type.list_size
    stored = pa.schema([field for field in schema if field.name not in (EMBEDDING, TILES)])
    columns = {EMBEDDING: VECTORS} | ({TILES: TILE_VECTORS} if TILES in schema.names else {})
    written = dict.fromkeys(columns, 0)
    total = 0
    with ExitStack() as files:
        rows = files.enter_context(pa.ipc.new_file(str(folder / ROWS), stored))
        targets = {column: files.enter_context((folder / name).open("wb")) for column, name in columns.items()}
        for target in targets.values():
            target.write(flat_header(dim, 0))

        def stored_rows() -> Iterator[pa.RecordBatch]:
            """The rows without their vectors, which are written meanwhile."""
            if base is not None:
                for column, target in targets.items():
                    for block in (base.tiles if column == TILES and base.tiles else base).all_blocks():
                        target.write(block.data)
                        written[column] += len(block)
                for batch in base.batches:
                    yield from conform(pa.Table.from_batches([batch]), stored).to_batches()
            for batch in join_batches(batches, BATCH_ROWS):
                for column, target in targets.items():
                    vectors = _unit_vectors(batch, dim, column)
                    target.write(vectors.data)  # an error of `tofile` has no reason
                    written[column] += len(vectors)
                yield batch.select(stored.names)

        for batch in join_batches(stored_rows(), BATCH_ROWS):
            rows.write_batch(batch)
            total += len(batch)
        for column, target in targets.items():
            target.seek(0)
            target.write(flat_header(dim, written[column]))
    write_by_id(folder / ROWS, folder / IDS)
    return total


def write_row_words(segment: Segment, settings: IndexSettings, base: Segment | None) -> None:
    """Write the words of a segment's own columns into its folder. The first rows are those of `base`."""
    if settings.words == ():
        return
    names = text_columns(segment.schema, settings.words)
    whole = base.ntotal // BLOCK_ROWS if base else 0
    known = {name: blocks[:whole] for name, blocks in base.words.columns.items()} if base else {}
    write_words(segment.folder / WORDS, names, segment.batches, known)


def _unit_vectors(batch: pa.RecordBatch, dim: int, column: str) -> npt.NDArray[np.float32]:
    vectors = vectors_of(batch.column(column)).reshape(-1, dim)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.abs(norms[:, 0] - 1) <= _NORM_TOLERANCE))  # true for NaN too
    if len(wrong):
        first = int(wrong[0])
        image_id = batch.column("image_id")[first * len(batch) // len(vectors)].as_py()
        raise CollectionError(
            f"the embedding of {image_id!r} has norm {norms[first, 0]:.4g}: "
            f"expected 1 (within {_NORM_TOLERANCE}); embed it again with a model that returns unit vectors"
        )
    unit: npt.NDArray[np.float32] = vectors / norms
    return unit
