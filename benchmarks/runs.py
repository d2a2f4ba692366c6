"""What a collection costs after many nights of 100 changed rows, ÷ after one, and what a night costs that finds nothing
new in a large one: `python -m benchmarks.runs [--quick]`.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.common.process import by_turns, in_new_process, likeness, seconds_of
from benchmarks.common.report import Figure, Report, run
from benchmarks.common.rows import with_vectors
from benchmarks.common.small_pictures import draw, path_of
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.load import find_model
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.merged.merge import merge_runs
from index.search import Searcher
from index.versions.prune import prune
from jobs.embedding.model_source import model_record
from jobs.sources.list_images import list_images

ROWS, NIGHT_ROWS = 100_000, 100
NIGHTS, QUICK_NIGHTS = 300, 30
BAR = 1.3
LARGE, QUICK_LARGE = 1_000_000, 200_000
BAR_OF_LISTING, BAR_MORE_S = 1.2, 3.0
_BLOCK = 1_024  # rows of a file


def main(report: Report, folder: Path, options: Any) -> None:
    """Compare a collection after `nights` nights with one after a single night, of the same pictures."""
    nights = options.nights or (QUICK_NIGHTS if options.quick else NIGHTS)
    pictures, many, one = folder / "pictures", folder / "many", folder / "one"
    collection, listing = _write_collection(pictures, many, ROWS)
    model = collection.runs()[0].model
    for night in range(nights):
        changed = listing.slice(night * NIGHT_ROWS % ROWS, NIGHT_ROWS)
        collection.add_run(str(pictures), model, [with_vectors(changed, model.dim, ROWS + night)])
        merge_runs(collection)
        build_index(collection)
        prune(collection)
        if night == 0:
            shutil.copytree(many, one)
    report.console.log(f"{nights} nights")
    seeds, known = itertools.count(ROWS), str(listing["image_id"][-1])

    def night_of(home: Path) -> float:
        draw(pictures, range(NIGHT_ROWS), seed=next(seeds))
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
            report.at_most(f"{name}: seconds ÷ those after one night", ratio, BAR)
    report.table(f"{ROWS:,} rows after {nights} nights of {NIGHT_ROWS}", table)
    _night_without_news(report, folder, QUICK_LARGE if options.quick else LARGE)


def _night_without_news(report: Report, folder: Path, files: int) -> None:
    pictures, home = folder / "many pictures", folder / "large"
    _write_collection(pictures, home, files)
    spent = by_turns(
        {
            "listing alone": partial(in_new_process, _list, str(pictures)),
            "a night": lambda: likeness("reembed", str(pictures), str(home)).seconds,
        },
        rounds=3,
    )
    bar = BAR_OF_LISTING * spent["listing alone"] + BAR_MORE_S
    report.at_most(f"a night that finds nothing new in {files:,} files: s", spent["a night"], bar)
    report.values(f"seconds, {files:,} files, nothing new", spent)


def _write_collection(pictures: Path, home: Path, rows: int) -> tuple[Collection, pa.Table]:
    """A collection of so many files, with an index; and their listing."""
    for first in range(0, rows, 1_000):  # a file may have 65,000 names
        draw(pictures, range(first, first + 1), seed=first)
        for number in range(first + 1, first + 1_000):
            path_of(pictures, number).hardlink_to(path_of(pictures, first))
    listing, model = list_images(str(pictures)).read(), model_record(find_model(str(DEMO_MODEL)).identity)
    collection, starts = Collection.create_or_open(str(home)), range(0, rows, _BLOCK)
    collection.add_run(str(pictures), model, (with_vectors(listing.slice(at, _BLOCK), model.dim, at) for at in starts))
    build_index(collection)
    return collection, listing


def _list(location: str) -> float:
    return seconds_of(lambda: list_images(location))


def _open(location: str) -> float:
    collection = Collection.open(location)
    return seconds_of(lambda: Searcher.open(collection))


if __name__ == "__main__":
    nights_option = {"type": int, "help": f"how many nights, instead of {NIGHTS}"}
    run("runs", __doc__, main, f"{QUICK_NIGHTS} nights", {"--nights": nights_option})
