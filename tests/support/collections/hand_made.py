"""Collections with rows made by hand."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.builder.build_index import build_index
from index.builder.segment import write_ann
from index.builder.segment_rows import write_rows
from index.collection import Collection
from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.layout import ANN
from index.collection.live_rows import LiveRows
from index.collection.records.index_settings import IndexSettings
from index.collection.records.model_record import ModelRecord
from index.collection.records.record import Record
from index.collection.records.run_manifest import RowFile, RunManifest, RunStart
from index.collection.records.version_manifest import FLAT, VersionManifest
from index.search import Searcher
from index.segments.segment import Segment
from jobs.embedding.model_source import model_record
from tests.support.fake_embedder import FakeEmbedder
from tests.support.listings import write_files

DIM = 8
MODEL = ModelRecord(id="hand-made", revision="1", fingerprint="a" * 64, dim=DIM)


class AnyRecord(Record, extra="allow"):
    """A record with any fields, such as one of another release."""


def unit_vectors(count: int, seed: int = 0, dim: int = DIM) -> npt.NDArray[np.float32]:
    """`(count, dim)` float32, unit norm."""
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def rows(
    ids: Sequence[str],
    vectors: npt.NDArray[np.float32] | None = None,
    *,
    uris: Sequence[str] | None = None,
    rejected: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> pa.Table:
    """A row for each id, then one for each rejected id with its reason; URIs are memory:<id> by default."""
    rejected = rejected or {}
    if vectors is None:
        vectors = unit_vectors(len(ids), seed=len(ids))
    all_ids = [*ids, *rejected]
    embedding = pa.array([*vectors, *[None] * len(rejected)], pa.list_(pa.float32(), vectors.shape[1]))
    columns: dict[str, Any] = {
        "image_id": pa.array(all_ids, pa.string()),
        "uri": pa.array(uris or [f"memory:{image_id}" for image_id in all_ids], pa.string()),
        "embedding": embedding,
        "error_reason": pa.array([*[None] * len(ids), *rejected.values()], pa.string()),
    }
    return pa.table({**columns, **(metadata or {})})


def hashed(table: pa.Table, content: str = "a") -> pa.Table:
    """The rows with a hash of their content, which differs for each id and `content`."""
    hashes = [f"{content} {image_id}" for image_id in table["image_id"].to_pylist()]
    return table.append_column("content_hash", pa.array(hashes))


def segment_of(folder: Path, vectors: npt.NDArray[np.float32], factory: str = FLAT, *, start: int = 0) -> Segment:
    """A segment of ids that are numbers from `start`, with an approximate index unless it is flat."""
    folder.mkdir(exist_ok=True)
    table = rows([str(number) for number in range(start, start + len(vectors))], vectors)
    write_rows(folder, table.to_batches(), table.schema)
    if factory != FLAT:
        write_ann(folder, factory, len(vectors), vectors)
    return Segment(folder, files=() if factory == FLAT else (ANN,))


def add_run(
    collection: Collection,
    *tables: pa.Table,
    deletes: Sequence[str] | None = None,
    model: ModelRecord = MODEL,
    source: str = "memory:",
) -> RunManifest:
    """Write and commit a run with one file per table."""
    return collection.add_run(source, model, tables, deletes=deletes or ())


def add_version(
    collection: Collection, *tables: pa.Table, settings: IndexSettings | None = None, **run: Any
) -> VersionManifest:
    """Write and commit a run, and index it."""
    add_run(collection, *tables, **run)
    return build_index(collection, settings)


def of_fake_model(
    folder: Path, ids: Sequence[str], *, seed: int = 0, settings: IndexSettings | None = None, **columns: Any
) -> Collection:
    """The collection in `folder`, with an index of these rows, whose vectors are as long as those of FakeEmbedder.
    `columns` are as in `rows`.
    """
    identity, collection = FakeEmbedder().identity, Collection.create_or_open(str(folder))
    table = rows(ids, unit_vectors(len(ids), seed=seed, dim=identity.dim), **columns)
    add_version(collection, table, settings=settings, model=model_record(identity))
    return collection


def indexed(folder: Path, *tables: pa.Table, settings: IndexSettings | None = None) -> Path:
    """The folder of a new collection with an index of these rows, such as a `template`."""
    add_version(Collection.create_or_open(str(folder)), *tables, settings=settings)
    return folder


def written_rows(collection: Collection, run: RunStart, files: Sequence[RowFile]) -> LiveRows:
    """All rows in these files of a run, those of repeated ids too."""
    catalog = Catalog(collection.storage, [RunRows(run=run, files=files)], live=False)
    return LiveRows.at(catalog, np.asarray(catalog.table("SELECT seq FROM written ORDER BY seq")["seq"], np.int64))


def add_files(collection: Collection, folder: Path, files: Mapping[str, bytes]) -> VersionManifest:
    """Write these files to a folder, and index a row with a random vector for each."""
    write_files(folder, files)
    uris = [str(folder / name) for name in files]
    hashes = {"content_hash": [hashlib.sha256(data).hexdigest() for data in files.values()]}
    return add_version(collection, rows(list(files), unit_vectors(len(files)), uris=uris, metadata=hashes))


def metadata_of(collection: Collection, where: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The metadata of every image that a search returns, by id."""
    searcher = Searcher.open(collection)
    matches = searcher.search(unit_vectors(1, dim=searcher.dim), k=1000, filter=where)[0]
    return {match.image_id: match.metadata for match in matches}


def searcher_of(
    folder: Path, ids: Sequence[str], vectors: npt.NDArray[np.floating[Any]], settings: IndexSettings | None = None
) -> Searcher:
    """A searcher of a new collection of these rows, with one run and one index version."""
    collection = Collection.create_or_open(str(folder))
    model = MODEL.model_copy(update={"dim": vectors.shape[1]})
    add_version(collection, rows(ids, vectors.astype(np.float32)), settings=settings, model=model)
    return Searcher.open(collection)
