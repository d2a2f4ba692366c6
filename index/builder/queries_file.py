"""What the file of held-out queries must have, whoever wrote it."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.queries import KINDS
from index.storage.arrow_file import require_columns

RECALL_KS = (1, 10, 100)
"""The k for which recall is measured."""
MAX_PARENTS = 3


def require_queries(schema: pa.Schema, table: pa.Table) -> None:
    """ValueError unless a file has the columns, the types and the values that `GroundTruth.write` gives it."""
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


def fixed_lists(values: pa.Array[Any], size: int) -> pa.Array[Any]:
    return pa.FixedSizeListArray.from_arrays(values, size)
