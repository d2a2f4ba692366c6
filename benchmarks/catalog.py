"""Peak memory and time of commands that read the rows of a large collection: `python -m benchmarks.catalog [--quick]`.

A tenth of the rows is rejected, and a tenth of the pictures have the bytes of another one. Each command is run over all
rows and over a tenth of them, in a process of its own; the difference gives bytes a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.common.process import likeness
from benchmarks.common.report import Figure, Report, run
from benchmarks.common.rows import SOURCE, model_of, usual_rows
from index.collection import Collection
from index.collection.rows import EMBEDDING

ROWS, QUICK_ROWS = 5_000_000, 100_000
BAR_MIB = 1_500
_MODEL = model_of(8)
_BLOCK = 1_024  # rows of a file
_COMMANDS = {
    "index": ("index", "{0}"),
    "info": ("info", "{0}"),
    "rejects": ("rejects", "{0}", "--format", "json"),
    "duplicates by bytes": ("duplicates", "{0}", "--kinds", "identical_bytes", "--format", "json"),
    "export": ("export", "{0}", "{0}-vectors"),
    "import": ("import", "{0}-vectors", "{0}-imported", "--no-index"),
    "index, 0.1% new": ("index", "{0}"),
}
"""Commands in this order; `{0}` is the folder of the collection."""


def write_collection(folder: Path, rows: int) -> Collection:
    """A collection of this many rows in one run, without an index."""
    collection = Collection.create_or_open(str(folder))
    collection.add_run(SOURCE, _MODEL, (_table(first, min(_BLOCK, rows - first)) for first in range(0, rows, _BLOCK)))
    return collection


def _table(first: int, count: int) -> pa.Table:
    table = usual_rows(range(first, first + count), _MODEL.dim)
    rejected = pa.array([number % 10 == 0 for number in range(first, first + count)])
    # Those that end in 1 have the bytes of those that end in 2.
    hashes = pa.array([f"{number + (number % 10 == 1):064x}" for number in range(first, first + count)], pa.string())
    values = {
        "content_hash": hashes,
        "error_stage": pc.if_else(rejected, "decode", pa.scalar(None, pa.string())),
        "error_reason": pc.if_else(rejected, "truncated", pa.scalar(None, pa.string())),
        "error_message": pc.if_else(rejected, "ends early", pa.scalar(None, pa.string())),
        EMBEDDING: pc.if_else(rejected, pa.scalar(None, table[EMBEDDING].type), table[EMBEDDING]),
    }
    for name, column in values.items():
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table


def measure(folder: Path, rows: int) -> Iterator[tuple[str, float, float]]:
    """Yields each command's name, peak MiB and seconds."""
    home = folder / str(rows)
    collection = write_collection(home, rows)
    for name, words in _COMMANDS.items():
        if name == "index, 0.1% new":
            collection.add_run(SOURCE, _MODEL, [_table(rows, max(1, rows // 1_000))])
        done = likeness(*(word.format(home) for word in words))
        yield name, done.peak_mib, done.seconds


def main(report: Report, folder: Path, options: Any) -> None:
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    few = {name: peak for name, peak, _ in measure(folder, rows // 10)}
    table: list[dict[str, Figure]] = []
    for name, peak, seconds in measure(folder, rows):
        report.console.log(name)
        a_row = (peak - few[name]) * 2**20 / (rows - rows // 10)
        table.append({"command": name, "peak MiB": peak, "bytes a row": a_row, "s": seconds})
        report.at_most(f"{name}: peak MiB", peak, BAR_MIB)
    report.table(f"{rows:,} rows", table)


if __name__ == "__main__":
    rows_option = {"type": int, "help": f"how many rows, instead of {ROWS:,}"}
    run("catalog", __doc__, main, f"{QUICK_ROWS:,} rows", {"--rows": rows_option})
