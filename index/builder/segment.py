"""Writes one segment: streams rows to disk, then trains, fills and tunes the approximate index from there."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.arrays import Positions
from index.builder.choose import ann_factory, factory_of
from index.builder.segment_rows import write_row_words, write_rows
from index.builder.tune import tune
from index.collection.cache.checked import remember_checked, sound_key
from index.collection.layout import ANN, ANN_OF, TILE_ANN, TILE_VECTORS, VECTORS, segment_path
from index.collection.records.index_settings import IndexSettings
from index.collection.records.version_manifest import FLAT, Option, SegmentRecord
from index.collection.rows import EMBEDDING, TILES, conform, unify
from index.collection.stored_rows import BATCH_ROWS
from index.segments.exact import max_exact_rows
from index.segments.kinds.registry import copy_index, new_index
from index.segments.segment import Segment
from index.segments.vector_file import VectorFile
from index.segments.vector_index import VectorIndex
from index.storage import Storage
from index.versions.files import store_file

logger = logging.getLogger(__name__)

_FIXED_MEMORY = 600 << 20  # the interpreter, libraries, and blocks in transit


class RowSource(Protocol):
    """A stream of rows with embeddings. `len` is an upper bound of its rows."""

    def __len__(self) -> int: ...

    @property
    def schema(self) -> pa.Schema: ...

    def embedded(self) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, kw_only=True)
class Inherited:
    """An open segment whose trained quantizers and tuned parameters a new one takes over. It `extends` it, or consists
    of other rows.
    """

    segment: Segment
    record: SegmentRecord
    extends: bool


@dataclass(frozen=True, kw_only=True)
class SegmentJob:
    """Everything that a worker needs to build one segment of the rows of some sources. Picklable if these are, and
    nothing is inherited.
    """

    storage: Storage
    name: str
    sources: Sequence[RowSource]
    options: Sequence[Option]
    settings: IndexSettings
    max_exact_rows: int
    """A segment of at most so many rows is searched exactly, whatever index was chosen or requested."""
    inherited: Inherited | None = None

    @property
    def rows(self) -> int:
        return sum(map(len, self.sources)) + self.first

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all sources."""
        return unify([source.schema for source in self.sources])

    @property
    def dim(self) -> int:
        return int(self.schema.field(EMBEDDING).type.list_size)

    @property
    def _base(self) -> Segment | None:
        """The segment whose rows come first, dead ones included, so that they stay at their positions."""
        return self.inherited.segment if self.inherited and self.inherited.extends else None

    @property
    def first(self) -> int:
        """The position of the first row of the sources."""
        return self._base.ntotal if self._base else 0

    @property
    def dead_positions(self) -> Positions:
        """The rows without life that the segment takes over."""
        return self._base.dead_positions() if self._base else np.empty(0, np.int64)

    @property
    def memory(self) -> int:
        """Maximum memory of `run` in bytes: blocks, a training sample, and an index with room for twice its rows."""
        rows = self.rows * max(1, self._tiles)  # tiles have an index of their own
        factory = self.settings.factory or ann_factory(rows, self.dim, refine=True, spread=self.dim)
        index_bytes = 0 if factory == FLAT else 2 * rows * new_index(factory, self.dim).row_bytes
        blocks = 3 * BATCH_ROWS * 4 * self.dim * self._tiles
        return _FIXED_MEMORY + blocks + 3 * self._training_rows(rows) * 4 * self.dim + index_bytes

    def run(self) -> SegmentRecord | None:
        """Build the segment and store it. None if no row has an embedding. Raises the errors of `build_index`."""
        home = segment_path(self.name)
        with self.storage.scratch(home) as scratch:
            ntotal = write_rows(scratch, self._embedded(), self.schema, self._base)
            if ntotal == 0:
                return None
            factory = self._add_ann(scratch, ntotal, VECTORS)
            tile_factory = self._add_ann(scratch, ntotal * self._tiles, TILE_VECTORS) if self._tiles else FLAT
            max_exact = max_exact_rows(self.settings, self.dim)
            segment = Segment(scratch, max_exact_rows=max_exact, files=_file_names(scratch))
            write_row_words(segment, self.settings, self._base)
            if self.inherited:
                parameters, tile_parameters = self.inherited.record.parameters, self.inherited.record.tile_parameters
            else:
                parameters = self._tune(segment, scratch / ANN, factory)
                tile_parameters = self._tune(segment.tiles, scratch / TILE_ANN, tile_factory)
            names = _file_names(scratch)
            files = {name: store_file(self.storage, scratch / name, f"{home}/{name}") for name in names}
        counts = {ANN: ntotal, TILE_ANN: ntotal * self._tiles}
        remember_checked(sound_key(files[name].sha256, counts[name], self.dim) for name in counts.keys() & files)
        searched = [index if index in files else vectors for vectors, index in ANN_OF.items() if vectors in files]
        return SegmentRecord(
            name=self.name,
            ntotal=ntotal,
            live=ntotal - len(self.dead_positions),
            factory=factory if ANN in files else FLAT,
            trained=self._trained(ntotal, factory),
            parameters=parameters if ANN in files else {},
            tile_parameters=tile_parameters if TILE_ANN in files else {},
            memory=sum(files[name].size for name in searched),
            files=files,
        )

    def _embedded(self) -> Iterator[pa.RecordBatch]:
        for source in self.sources:
            for batch in source.embedded():
                yield from conform(pa.Table.from_batches([batch]), self.schema).combine_chunks().to_batches()

    @property
    def _tiles(self) -> int:
        """Number of tiles of each picture."""
        return self.schema.field(TILES).type.list_size // self.dim if TILES in self.schema.names else 0

    def _add_ann(self, folder: Path, ntotal: int, vectors: str) -> str:
        """Write the approximate index of a file of vectors beside it, if it gets one. Returns the factory."""
        if self.inherited:
            return self._take_over_ann(folder, ntotal, vectors, self.inherited)
        training = VectorFile(folder / vectors, ntotal, self.dim).sample(self._training_rows(ntotal))
        factory = factory_of(self.options, training, ntotal, self.settings, max_exact_rows=self.max_exact_rows)
        if factory != FLAT:
            write_ann(folder, factory, ntotal, training, vectors)
        return factory

    def _take_over_ann(self, folder: Path, ntotal: int, vectors: str, inherited: Inherited) -> str:
        """`_add_ann` with the index of another segment: the same quantizers, and its rows if they come first."""
        few = not inherited.extends and ntotal <= self._rows_scanned_as_fast
        if few or ANN_OF[vectors] not in inherited.record.files:
            return FLAT
        path = inherited.segment.folder / ANN_OF[vectors]
        kind = copy_index(path, keep_rows=inherited.extends)
        kind.fill(VectorFile(folder / vectors, ntotal, self.dim).blocks(first=kind.index.ntotal))
        kind.write(folder / ANN_OF[vectors])
        return inherited.record.factory

    @property
    def _rows_scanned_as_fast(self) -> int:
        """Up to how many rows of its own a segment is scanned, as that costs less than a search like those in the
        segment that it inherits from. If memory is limited, codes are smaller.
        """
        if not self.inherited or self.inherited.extends or self.settings.max_memory:
            return self.max_exact_rows
        return self.max_exact_rows + self.inherited.segment.kind.rows_scanned_meanwhile(self.dim)

    def _trained(self, ntotal: int, factory: str) -> int:
        """How many rows the quantizers were trained for, also if the index missed its recall; 0 for too few rows."""
        if factory == FLAT and ntotal <= self._rows_scanned_as_fast:
            return 0
        return self.inherited.record.trained if self.inherited else ntotal if factory != FLAT else 0

    def _tune(self, index: VectorIndex | None, ann_path: Path, factory: str) -> dict[str, float]:
        """Tune the approximate index, if there is one, and return its parameters. If it misses its recall, it is
        deleted, so its vectors are scanned exactly. An index that was requested, or is needed to save memory, stays;
        then the version's recall decides.
        """
        target = self.settings.target_recall
        if index is None or factory == FLAT:
            return {}
        if tune(index, target) >= target or self.settings.factory or self.settings.max_memory:
            return index.parameters
        message = "segment %s: %s does not reach recall@10 %s here, so its vectors are scanned exactly, which is slower"
        logger.warning(message, self.name, factory, target)
        ann_path.unlink()
        return {}

    def _training_rows(self, rows: int) -> int:
        factory = self.settings.factory or ann_factory(rows, self.dim, refine=False)
        return min(rows, new_index(factory, self.dim).training_rows)


def write_ann(folder: Path, factory: str, ntotal: int, sample: npt.NDArray[np.float32], vectors: str = VECTORS) -> None:
    """Train an index on a sample of the folder's vectors, `(n, dim)`, add all of them, and write it beside them."""
    kind = new_index(factory, sample.shape[1])
    kind.train(sample)
    kind.fill(VectorFile(folder / vectors, ntotal, sample.shape[1]).blocks())
    kind.write(folder / ANN_OF[vectors])


def _file_names(folder: Path) -> list[str]:
    """The names of the segment's files; not those that NFS hides in the folder when an open file is deleted."""
    return sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
