"""A segment of an index, mapped from disk. A position is the same image in all of its files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.arrays import Ids, Positions, Scores, Vectors
from index.collection.layout import ANN_OF, IDS, ROWS, TILE_VECTORS, VECTORS, WORDS, segment_path
from index.collection.rows import EMBEDDING, TILES, embedding_column, embedding_type
from index.errors import DamagedVersionError
from index.filters.filter import Filter
from index.segments.eligible import Eligible
from index.segments.mapped_rows import MappedRows
from index.segments.vector_index import VectorIndex
from index.words.word_index import WordIndex


class Segment(VectorIndex):
    """An open segment: the vectors of whole pictures, their rows, and the vectors of their tiles if it has any.

    Tiles, words and approximate indexes are used if their files are among `files`. The file `columns` has further
    columns of its rows, and the file `words` their words. DamagedVersionError if the numbers of vectors and rows
    differ; faiss and Arrow raise their own errors.
    """

    def __init__(
        self,
        folder: Path,
        *,
        parameters: Mapping[str, float] | None = None,
        tile_parameters: Mapping[str, float] | None = None,
        tombstones: Positions | None = None,
        max_exact_rows: int = 0,
        files: Collection[str] = (),
        columns: Path | None = None,
        words: Path | None = None,
    ) -> None:
        self.folder = folder
        self.tiles: VectorIndex | None = None
        ann_paths = {vectors: folder / index if index in files else None for vectors, index in ANN_OF.items()}
        super().__init__(
            folder / VECTORS, ann_path=ann_paths[VECTORS], parameters=parameters, max_exact_rows=max_exact_rows
        )
        self._rows = MappedRows(folder / ROWS, folder / IDS, columns)
        self.batches, self.starts = self._rows.batches, self._rows.starts
        own = WordIndex.open(folder / WORDS, self.ntotal) if WORDS in files else None
        further = WordIndex.open(words, self.ntotal) if words is not None else None
        self.words = WordIndex.joined(self.ntotal, own, further, self._rows.replaced)
        if TILE_VECTORS in files:
            self.tiles = VectorIndex(
                folder / TILE_VECTORS,
                ann_path=ann_paths[TILE_VECTORS],
                parameters=tile_parameters,
                max_exact_rows=max_exact_rows,
            )
        self.tiles_per_row = self.tiles.ntotal // self.ntotal if self.tiles is not None else 0
        if self.ntotal != len(self._rows) or (
            self.tiles is not None and self.tiles.ntotal != self.ntotal * self.tiles_per_row
        ):
            raise DamagedVersionError(
                f"{folder} has {self.ntotal} vectors but {len(self._rows)} rows: build the index again",
                segment_path(folder.name),
            )
        vectors = {EMBEDDING: self.dim} | ({TILES: self.dim * self.tiles_per_row} if self.tiles is not None else {})
        self.schema = pa.schema([*self._rows.schema, *((name, embedding_type(size)) for name, size in vectors.items())])
        """The schema of `embedded`."""
        if tombstones is not None:
            self.add_tombstones(tombstones)

    def add_tombstones(self, positions: Positions) -> None:
        super().add_tombstones(positions)
        if self.tiles is not None:
            self.tiles.add_tombstones(self._tiles_of(positions))

    def eligible(self, mask: npt.NDArray[np.bool_]) -> Eligible:
        """The rows of `mask`, `(ntotal,)`, without tombstones."""
        return Eligible.of(mask & self._live_mask(), self.tiles_per_row)

    def mask_of(self, eligible: Eligible | None) -> npt.NDArray[np.bool_]:
        """These rows, `(ntotal,)`; None: the live ones."""
        return self._live_mask() if eligible is None else eligible.mask[: self.ntotal]

    def part_scores(self, query: Vectors, positions: Positions) -> Scores:
        """Cosines of a query, `(1, dim)`, with the pictures at these positions and their tiles, `(1 + tiles, n)`."""
        whole = self.scores(query, positions[np.newaxis])
        if self.tiles is None:
            return whole
        tiles = self.tiles.scores(query, self._tiles_of(positions)[np.newaxis])
        return np.vstack([whole, tiles.reshape(-1, self.tiles_per_row).T])

    def passing(self, where: Filter) -> npt.NDArray[np.bool_]:
        """Which rows pass a filter, `(ntotal,)`, with tombstones. Words are looked up in the index of words."""
        known = {
            each: self.words.with_terms(each.column.name, each.value)
            for each in where.of_words
            if each.column.name in self.words.columns
        }
        masks = [np.zeros(0, bool)]
        for batch, start in zip(self.batches, self.starts.tolist(), strict=False):
            part = {each: mask[start : start + len(batch)] for each, mask in known.items()}
            masks.append(where.mask(batch, part))
        return np.concatenate(masks)

    def embedded(self) -> Iterator[pa.RecordBatch]:
        """The live rows in batches, each with its embedding, and with the vectors of its tiles."""
        live = self._live_mask()
        for batch, start in zip(self.batches, self.starts, strict=False):
            positions = np.flatnonzero(live[start : start + len(batch)]) + start
            if len(positions):
                rows = batch.take(pa.array(positions - start)).append_column(
                    EMBEDDING, embedding_column(self.vectors(positions))
                )
                if self.tiles is not None:
                    tiles = self.tiles.vectors(self._tiles_of(positions)).reshape(len(positions), -1)
                    rows = rows.append_column(TILES, embedding_column(tiles))
                yield rows

    def rows(self, positions: Positions, columns: list[str]) -> list[dict[str, Any]]:
        return self._rows.rows(positions, columns)

    def ids(self, positions: Positions) -> Ids:
        return self._rows.ids(positions)

    def positions(self, ids: pa.Array[Any]) -> Positions:
        return self._rows.positions(ids, self.live)

    def _tiles_of(self, positions: Positions) -> Positions:
        """The positions of the tiles of these rows, row by row."""
        return (positions[:, np.newaxis] * self.tiles_per_row + np.arange(self.tiles_per_row)).ravel()
