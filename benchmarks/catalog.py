"""Peak memory and time of commands that read the rows of a large collection: `python -m benchmarks.catalog [--quick]`.

A tenth of the rows is rejected, and a tenth of the pictures have the bytes of another one. Each command is run over all
rows and over a tenth of them, in a process of its own; the difference gives bytes a row.

With `--runs`, what a collection of 100,000 rows costs after so many nights of 100 changed ones, ÷ after one.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from benchmarks.common.process import by_turns, in_new_process, likeness, seconds_of
from benchmarks.common.report import Figure, Report, run
from benchmarks.common.rows import SOURCE, model_of, random_vectors, usual_rows
from embedder.models.load import find_model
from index.build.build_index import build_index
from index.collection import Collection
from index.collection.merged.merge import merge_runs
from index.collection.records import ModelRecord
from index.collection.rows import EMBEDDING, embedding_column
from index.search import Searcher
from index.versions.prune import prune
from jobs.embedding.model_source import model_record
from jobs.sources.list_images import list_images
from jobs.values import DEMO_MODEL

ROWS, QUICK_ROWS = 5_000_000, 100_000
BAR_MIB = 1_500
RUN_ROWS, NIGHT_ROWS = 100_000, 100
BAR_RUNS = 1.3
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


def measure_runs(report: Report, folder: Path, nights: int) -> None:
    """Compare a collection after `nights` nights with one after a single night, of the same pictures."""
    pictures, many, one = folder / "pictures", folder / "many", folder / "one"
    for number in range(RUN_ROWS):
        if number % 1_000 == 0:  # a file may have 65,000 names
            _path(pictures, number).parent.mkdir(parents=True)
            first = _draw(pictures, number, seed=0)
        else:
            _path(pictures, number).hardlink_to(first)
    listing = list_images(str(pictures))
    model = model_record(find_model(str(DEMO_MODEL)).identity)
    collection = Collection.create_or_open(str(many))
    starts = range(0, RUN_ROWS, _BLOCK)
    collection.add_run(str(pictures), model, (_with_vectors(listing.slice(at, _BLOCK), model, at) for at in starts))
    build_index(collection)
    for night in range(nights):
        changed = listing.slice(night * NIGHT_ROWS % RUN_ROWS, NIGHT_ROWS)
        collection.add_run(str(pictures), model, [_with_vectors(changed, model, RUN_ROWS + night)])
        merge_runs(collection)
        build_index(collection)
        prune(collection)
        if night == 0:
            shutil.copytree(many, one)
    report.console.log(f"{nights} nights")
    seeds, known = itertools.count(1), str(listing["image_id"][-1])

    def night_of(home: Path) -> float:
        seed = next(seeds)
        for number in range(NIGHT_ROWS):
            _draw(pictures, number, seed=seed)
        return likeness("reembed", str(pictures), str(home)).seconds

    table: list[dict[str, Figure]] = []
    steps: dict[str, Callable[[Path], float]] = {
        "info": lambda home: likeness("info", str(home)).seconds,
        "opening the index alone": lambda home: in_new_process(_open, str(home)),
        "a search": lambda home: likeness("search", str(home), "--like", known, "-k", "1").seconds,
        "a night": night_of,
    }
    for name, step in steps.items():
        after = by_turns({"one": partial(step, one), "many": partial(step, many)}, rounds=5)
        ratio = after["many"] / after["one"]
        table.append({"": name, "s after one": after["one"], f"s after {nights}": after["many"], "ratio": ratio})
        if not name.endswith("alone"):  # a few ms for each segment, of which there are some more than after one night
            report.at_most(f"{name}: seconds ÷ those after one night", ratio, BAR_RUNS)
    report.table(f"{RUN_ROWS:,} rows after {nights} nights of {NIGHT_ROWS}", table)


def _path(pictures: Path, number: int) -> Path:
    return pictures / f"{number // 1_000:03}" / f"{number:06}.png"


def _draw(pictures: Path, number: int, *, seed: int) -> Path:
    path = _path(pictures, number)
    path.unlink(missing_ok=True)
    pixels = np.random.default_rng([seed, number]).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).resize((96, 96)).save(path)
    return path


def _with_vectors(listing: pa.Table, model: ModelRecord, seed: int) -> pa.Table:
    vectors = random_vectors(listing.num_rows, model.dim, seed)
    return listing.append_column(EMBEDDING, embedding_column(vectors))


def _open(location: str) -> float:
    collection = Collection.open(location)
    return seconds_of(lambda: Searcher.open(collection))


def main(report: Report, folder: Path, options: Any) -> None:
    if options.runs:
        measure_runs(report, folder, options.runs)
        return
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
    runs_option = {"type": int, "help": "measure nights instead, so many"}
    run("catalog", __doc__, main, f"{QUICK_ROWS:,} rows", {"--rows": rows_option, "--runs": runs_option})
