"""Ways to change the files of a collection so that they hurt; `hurts.py` lists what is done with them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.collections.every_file import set_field

LARGE: Final = "index/segments/000001-00"
"""The segment with an approximate index."""

Hurt = Callable[[Path], object]
"""Changes the collection in a folder. `outside` lies beside the folder, with the file `secret`."""


def one(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[-1 if "started" in pattern else 0]  # the last run is the unfinished one


def field(file: str, name: str, value: object) -> Hurt:
    return lambda root: set_field(one(root, file), name, value)


def content(file: str, data: bytes) -> Hurt:
    def write(root: Path) -> None:
        path = one(root, file)
        path.unlink()
        path.write_bytes(data)

    return write


def sparse(file: str) -> Hurt:
    return lambda root: os.truncate(one(root, file), 1 << 40)


def pipe(file: str) -> Hurt:
    def make(root: Path) -> None:
        path = root / file if file.startswith(".") else one(root, file)
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return make


def link(file: str, target: str = "../outside/secret") -> Hurt:
    """A link in place of a file or folder, to a path relative to the collection."""

    def make(root: Path) -> None:
        path = next(iter(sorted(root.glob(file))), root / file)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(root / target)

    return make


def folder(file: str) -> Hurt:
    def make(root: Path) -> None:
        path = one(root, file)
        path.unlink()
        path.mkdir()

    return make


def arrow(file: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> Hurt:
    """Rewrite an Arrow or Parquet file with a changed table."""

    def write(root: Path) -> None:
        path = one(root, file)
        is_parquet = path.suffix == ".parquet"
        with pa.memory_map(str(path)) as source:
            table = change(pq.read_table(source) if is_parquet else pa.ipc.open_file(source).read_all())
        path.unlink()
        if is_parquet:
            pq.write_table(table, path)
            return
        with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table)

    return write


def column(name: str, values: Callable[[pa.Table], Any]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, values(table))


def added(name: str, values: Callable[[pa.Table], Any]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.append_column(name, values(table))


def repeated(value: Any) -> Callable[[pa.Table], Any]:
    return lambda table: pa.chunked_array([pa.array([value] * table.num_rows)])


def occurrences(value: list[dict[str, int]] | None) -> Callable[[pa.Table], Any]:
    """The same occurrences of all words."""
    return lambda table: pa.chunked_array([pa.array([value] * table.num_rows, table.schema.field("occurrences").type)])


def tombstone(position: int | None) -> Hurt:
    return arrow(
        "index/000005/tombstones.arrow",
        lambda table: pa.table(
            {"segment": table["segment"], "position": pa.array([position] * table.num_rows, pa.int64())}
        ),
    )


def zoned(zone: str) -> Hurt:
    kind = pa.timestamp("us", tz=zone)
    return arrow(f"{LARGE}/rows.arrow", added("taken", lambda table: pa.nulls(table.num_rows, kind)))


def ann(index: Callable[[int, int], faiss.Index]) -> Hurt:
    """Another approximate index for the rows and dimensions that the manifest says."""

    def write(root: Path) -> None:
        flat = faiss.read_index(str(root / LARGE / "vectors.faiss"))
        path = root / LARGE / "ann.faiss"
        path.unlink()
        faiss.write_index(index(flat.ntotal, flat.d), str(path))

    return write


def made(
    factory: str, ntotal: int, dim: int, metric: int = faiss.METRIC_INNER_PRODUCT, first: int | None = None
) -> faiss.Index:
    """An index of random vectors, with ids from `first` if it is given."""
    index = faiss.index_factory(dim, factory, metric)
    vectors = np.random.default_rng(0).standard_normal((ntotal, dim)).astype(np.float32)
    index.train(vectors)
    if first is None:
        index.add(vectors)
    else:
        index.add_with_ids(vectors, np.arange(first, first + ntotal))
    return index


def with_links(value: int, ntotal: int, dim: int) -> faiss.Index:
    index = made("HNSW8,Flat", ntotal, dim)
    links = faiss.vector_to_array(index.hnsw.neighbors)
    links[:] = value
    faiss.copy_array_to_vector(links, index.hnsw.neighbors)
    return index


def on_disk(target: str, ntotal: int, dim: int) -> faiss.Index:
    """Lists in another file, which faiss opens by the name in the index."""
    index = made("IVF4,Flat", ntotal, dim)
    lists = faiss.OnDiskInvertedLists(index.nlist, index.code_size, target)
    lists.merge_from_1(index.invlists)
    index.replace_invlists(lists)
    lists.this.disown()
    return index


def vectors_that_are_not_numbers(root: Path) -> None:
    path = root / LARGE / "vectors.faiss"
    data = bytearray(path.read_bytes())
    np.frombuffer(memoryview(data)[45:], np.float32)[:16] = np.nan
    path.unlink()
    path.write_bytes(data)
