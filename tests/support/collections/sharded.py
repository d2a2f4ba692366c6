"""A collection of five segments for sharded servers, and shards in this process."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.search import VersionSearcher
from index.search.shard import Shard, split_into_shards, version_schema
from index.search.sharded_index import Call, ShardedIndex
from jobs.embedding.model_source import model_record
from tests.support.collections.hand_made import add_run, add_version, rows, unit_vectors
from tests.support.fake_embedder import FakeEmbedder

COUNT = 800
DIM = FakeEmbedder().identity.dim
LIMITS = IndexSettings(segment_rows=200)


def make_sharded(folder: Path, limits: IndexSettings = LIMITS, *, seed: int = 0) -> Collection:
    """800 rows of the fake model in four segments, and 40 newer ones in a fifth."""
    collection = Collection.create_or_open(str(folder))
    model = model_record(FakeEmbedder().identity)
    ids = [f"{number:03d}" for number in range(COUNT)]
    label = ["cat" if number % 3 else "dog" for number in range(COUNT)]
    older = unit_vectors(COUNT, seed=seed, dim=DIM)
    add_version(collection, rows(ids, older, metadata={"label": label}), model=model, settings=limits)
    newer = unit_vectors(40, seed=9, dim=DIM)
    add_run(collection, rows(ids[:40], newer, metadata={"label": label[:40]}), model=model, deletes=["100", "500"])
    build_index(collection, limits)
    return collection


class InProcessShards:
    """The shards of a collection's live version, called in this process. Those in `lost` do not answer; those in
    `lost_from` stop answering at the first call of a method.
    """

    def __init__(self, collection: Collection, count: int) -> None:
        self.manifest = collection.read_version(collection.current() or "")
        self.parts = dict(enumerate(split_into_shards(self.manifest.segments, count)))
        self.shards = {
            number: Shard.open(collection, self.manifest, part) for number, part in self.parts.items() if part.segments
        }
        self.schema = version_schema(collection, self.manifest)
        self.lost: set[int] = set()
        self.lost_from: dict[str, set[int]] = {}

    def __call__(self, calls: Mapping[int, Call]) -> dict[int, Any]:
        (method,) = {method for method, _ in calls.values()}
        self.lost |= self.lost_from.get(method, set())
        return {
            number: getattr(self.shards[number], method)(*pickle.loads(pickle.dumps(arguments)))  # as Ray passes them
            for number, (method, arguments) in calls.items()
            if number not in self.lost
        }

    def searcher(self) -> VersionSearcher:
        return VersionSearcher(self.manifest, ShardedIndex(self.parts, self.schema, self.manifest.dim, self))


def ids_of(shard: Shard) -> set[str]:
    """The ids of a shard's live rows."""
    return {image_id for part in shard._segments.parts for image_id in part.ids(part.live_positions())}
