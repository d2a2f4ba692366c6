"""The file of held-out queries: written, and read with what it must have, whoever wrote it."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.builder.ground_truth import MAX_PARENTS, RECALL_KS, GroundTruth
from index.collection.layout import QUERIES, version_path
from index.collection.records.version_manifest import VersionManifest
from index.errors import DamagedVersionError
from index.queries import KINDS
from index.storage.arrow_file import read_batches, require_columns


def write_queries(path: Path, queries: GroundTruth) -> None:
    def fixed_lists(values: pa.Array[Any], size: int) -> pa.Array[Any]:
        return pa.FixedSizeListArray.from_arrays(values, size)

    nearest, depth = queries.nearest.ravel(), queries.scores.shape[1]
    # An image is a neighbour of many queries; without a dictionary, ids would be most of the file.
    neighbours = pa.DictionaryArray.from_arrays(pa.array(nearest, pa.int32(), mask=nearest < 0), queries.ids)
    table = pa.table(
        {
            "kind": pa.array(queries.kinds, pa.string()),
            "parents": fixed_lists(pa.array(queries.parents.ravel(), pa.string()), MAX_PARENTS),
            "vector": fixed_lists(pa.array(queries.vectors.ravel()), queries.vectors.shape[1]),
            "neighbours": fixed_lists(neighbours, depth),
            "scores": fixed_lists(pa.array(queries.scores.ravel()), depth),
            "found": fixed_lists(pa.array(queries.recalls.ravel()), len(RECALL_KS)),
        },
        metadata={"sampled_from": str(queries.sampled_from)},
    )
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def queries_of(manifest: VersionManifest, source: Path | bytes) -> GroundTruth:
    """A version's queries. DamagedVersionError if its file cannot be used."""
    try:
        if QUERIES not in manifest.files:  # otherwise the file was checked against the manifest
            raise ValueError("the manifest does not name it")
        queries = read_queries(source)
        if queries.vectors.shape[1] != manifest.dim:
            raise ValueError(f"its vectors have {queries.vectors.shape[1]} dimensions, not {manifest.dim}")
        return queries
    except ValueError as error:
        path = version_path(manifest.version, QUERIES)
        raise DamagedVersionError(f"{path} cannot be read ({error}): build a new index", path) from error


def read_queries(source: Path | bytes) -> GroundTruth:
    """From a file, or from the bytes of one. ValueError for one that `write_queries` did not write."""
    with pa.memory_map(str(source)) if isinstance(source, Path) else pa.BufferReader(source) as file:
        schema, batches = read_batches(file)
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    _require_queries(schema, table)

    def matrix(name: str) -> npt.NDArray[Any]:
        return pc.list_flatten(table.column(name)).to_numpy().reshape(table.num_rows, -1)

    neighbours: Any = pc.list_flatten(table.column("neighbours").chunk(0))
    nearest = neighbours.indices.fill_null(-1).to_numpy()
    return GroundTruth(
        kinds=table.column("kind").to_numpy(),
        parents=matrix("parents"),
        vectors=matrix("vector").copy(),
        ids=neighbours.dictionary,
        nearest=nearest.astype(np.int32).reshape(table.num_rows, -1),
        scores=matrix("scores").copy(),
        recalls=matrix("found").copy(),
        sampled_from=int(table.schema.metadata[b"sampled_from"]),
    )


def _require_queries(schema: pa.Schema, table: pa.Table) -> None:
    """ValueError unless a file has the columns, the types and the values that `write_queries` gives it."""
    vector, scores = (schema.field(name).type if name in schema.names else pa.null() for name in ("vector", "scores"))
    dim, depth = (kind.list_size if pa.types.is_fixed_size_list(kind) else 0 for kind in (vector, scores))
    neighbour = pa.dictionary(pa.int32(), pa.string())
    require_columns(
        schema,
        {
            "kind": pa.string(),
            "parents": pa.list_(pa.string(), MAX_PARENTS),
            "vector": pa.list_(pa.float32(), dim),
            "neighbours": pa.list_(neighbour, depth),
            "scores": pa.list_(pa.float32(), depth),
            "found": pa.list_(pa.float64(), len(RECALL_KS)),
        },
    )
    nulls = [name for name in schema.names if table.column(name).null_count]
    if nulls or not table.num_rows or not set(table.column("kind").unique().to_pylist()) <= set(KINDS):
        raise ValueError("it has no queries, or some without a value, or of an unknown kind")
    if not np.isfinite(pc.list_flatten(table.column("vector")).to_numpy()).all():
        raise ValueError("its queries have values that are not finite")
    recalls = pc.list_flatten(table.column("found")).to_numpy()
    if not ((recalls >= 0) & (recalls <= 1) | np.isnan(recalls)).all():
        raise ValueError("it has a recall that is not from 0 to 1")
    if not (schema.metadata or {}).get(b"sampled_from", b"").isdigit():
        raise ValueError("it does not say how many rows its queries were sampled from")
