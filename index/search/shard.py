"""A shard: the segments of a version that one searcher holds. Its methods take and return arrays, rows, and `Hits`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from index.arrays import Positions
from index.collection import Collection
from index.collection.layout import ROWS, columns_path, segment_path
from index.collection.records.version_manifest import SegmentRecord, VersionManifest
from index.collection.row_files import map_small
from index.collection.rows import EMBEDDING, embedding_type, metadata_columns
from index.errors import DamagedVersionError
from index.matches import ROW_FIELDS
from index.search.result_set import SetPage, SetRequest
from index.search.set_search import SetSearch
from index.segments.mapped_rows import with_columns
from index.segments.segmented_index import SegmentedIndex, union_schema
from index.storage.arrow_file import read_schema
from index.storage.scratch import Scratch
from index.versions.opening import open_segments

_FEW = 64  # matches; rows of more would cost more than a second call, as each shard would send as many


@dataclass(frozen=True)
class ShardSegments:
    """The segments of one shard, in the manifest's order, and the position of their first row in the version."""

    segments: tuple[SegmentRecord, ...]
    start: int

    @property
    def live(self) -> int:
        return sum(segment.live for segment in self.segments)

    @property
    def memory(self) -> int:
        return sum(segment.memory for segment in self.segments)


def split_into_shards(segments: Sequence[SegmentRecord], count: int) -> list[ShardSegments]:
    """The segments as `count` shards, as even by rows as whole segments in their order allow; the last may be empty."""
    starts = np.cumsum([0, *(segment.ntotal for segment in segments)])
    shards = min(count, len(segments))
    cuts = [0]
    for number in range(1, shards):
        nearest = int(np.abs(starts * shards - starts[-1] * number).argmin())
        cuts.append(min(max(nearest, cuts[-1] + 1), len(segments) - shards + number))
    cuts += [len(segments)] * (count + 1 - len(cuts))
    return [ShardSegments(tuple(segments[a:b]), int(starts[a])) for a, b in pairwise(cuts)]


def version_schema(collection: Collection, manifest: VersionManifest) -> pa.Schema:
    """The columns of all segments of a version, as in `SegmentedIndex.schema`. Only the files' schemas are read."""

    def read(path: str) -> pa.Schema:
        try:
            with collection.storage.open_input(path) as file:
                return read_schema(file)
        except (FileNotFoundError, ValueError) as error:
            raise DamagedVersionError(f"index version {manifest.version} is damaged: {path}: {error}", path) from error

    def stored(segment: SegmentRecord) -> pa.Schema:
        schema = read(segment_path(segment.name, ROWS))
        if segment.columns:
            schema = with_columns(schema, read(columns_path(manifest.version, segment.name)))
        return schema.append(pa.field(EMBEDDING, embedding_type(manifest.dim)))

    return union_schema(map_small(collection.storage, stored, manifest.segments))


class Shard:
    """Some segments of a version; positions count through them. Thread-safe."""

    def __init__(self, segments: SegmentedIndex) -> None:
        self._segments = segments
        self.vectors, self.ids, self.rows = segments.vectors, segments.ids, segments.rows
        self.count_values, self.word_statistics = segments.count_values, segments.word_statistics
        self.sort_keys = segments.sort_keys
        self._columns = [*ROW_FIELDS, *metadata_columns(segments.schema)]

    @classmethod
    def open(cls, collection: Collection, manifest: VersionManifest, shard: ShardSegments) -> Shard:
        """Verify and map only the shard's files. DamagedVersionError names a damaged one."""
        part = manifest.model_copy(update={"segments": list(shard.segments)})
        schema = version_schema(collection, manifest)
        with Scratch("segments") as cache:
            return cls(SegmentedIndex(open_segments(collection, part, cache.path).parts, schema))

    def page(self, request: SetRequest) -> SetPage:
        """Like `SetSearch.page`; if they are few, the hits have what matches show of their rows."""
        page = SetSearch(self._segments, request).page()
        if len(page.hits) <= _FEW:
            positions = np.array([hit.position for hit in page.hits], np.int64)
            for hit, row in zip(page.hits, self.rows(positions, self._columns), strict=True):
                hit.row = row
        return page

    def positions(self, ids: Sequence[str]) -> Positions:
        return self._segments.positions(pa.array(ids, pa.string()))
