"""Files on this machine that only this process needs."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pyarrow as pa

from index.storage import Storage


class Scratch:
    """A folder that is removed with this object, or at the end of the process."""

    def __init__(self, use: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"likeness-{use}-"))
        self.storage = Storage.open(self.path)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class StoredTables:
    """Tables, with the `schemas` that they have, metadata of their fields included."""

    def __init__(self) -> None:
        self._scratch, self.schemas = Scratch("tables"), list[pa.Schema]()

    def add(self, table: pa.Table) -> None:
        path, options = self._path(len(self.schemas)), pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
        self.schemas.append(table.schema)

    def read(self, number: int) -> pa.Table:
        return self._read(number, pa.ipc.IpcReadOptions())

    def column(self, number: int, name: str) -> pa.ChunkedArray[Any]:
        """A column of a table, read alone."""
        wanted = [self.schemas[number].get_field_index(name)]
        return self._read(number, pa.ipc.IpcReadOptions(included_fields=wanted))[0]

    def _read(self, number: int, options: pa.ipc.IpcReadOptions) -> pa.Table:
        with pa.OSFile(self._path(number), "rb") as file, pa.ipc.open_file(file, options=options) as reader:
            return reader.read_all()

    def _path(self, number: int) -> str:
        return str(self._scratch.path / f"{number:06}.arrow")
