"""Rows of older segments that no longer count, as a file of an index version."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index.arrays import Positions
from index.collection.layout import TOMBSTONES, version_path
from index.collection.records import VersionManifest
from index.storage import Storage


def write_tombstones(path: Path, tombstones: Mapping[str, Positions]) -> None:
    """A file with the columns `segment` (string) and `position` in it (int64)."""
    names = np.repeat(list(tombstones), [len(positions) for positions in tombstones.values()])
    table = pa.table(
        {
            "segment": pa.array(names.tolist(), pa.string()),
            "position": pa.array(np.concatenate([*tombstones.values(), np.empty(0, np.int64)]), pa.int64()),
        }
    )
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def read_tombstones(storage: Storage, manifest: VersionManifest) -> list[Positions]:
    """Positions that no longer count, for each segment of a version."""
    names = [segment.name for segment in manifest.segments]
    if TOMBSTONES not in manifest.files:
        return [np.empty(0, np.int64)] * len(names)
    with storage.open_input(version_path(manifest.version, TOMBSTONES)) as file:
        table = pa.ipc.open_file(file).read_all()
    segment = pc.index_in(table["segment"], value_set=pa.array(names, pa.string())).fill_null(-1).to_numpy()
    order = np.argsort(segment, kind="stable")
    bounds = np.searchsorted(segment[order], np.arange(len(names) + 1))
    positions = table["position"].to_numpy()[order]
    return [positions[start:end] for start, end in pairwise(bounds)]
