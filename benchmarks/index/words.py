"""Measure an index of words: `python -m benchmarks.index.words [--rows 1000000] [--quick]`.

Rows have a caption of 7 to 13 words, drawn from 50,000 by Zipf's law, so that the most frequent word is in six of ten;
and an annotation of three. They are indexed with words and without, updated by 1% new and 1% deleted rows, and
searched.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common.clustered import BLOCK, MODEL, Clustered
from benchmarks.common.process import in_new_process, seconds_of, spent
from benchmarks.common.report import Report, run
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.layout import WORDS
from index.collection.records.index_settings import IndexSettings
from index.filters.filter import Filter
from index.search import Searcher
from index.segments.segmented_index import SegmentedIndex
from index.words.ranked import WordQuery
from index.words.text import any_terms, path_of

_MODEL = MODEL.model_copy(update={"dim": 64})
_VOCABULARY = 50_000
_K, _DRAWS = 100, 30
_COLUMNS = {"caption": (7, 14), "written": (3, 4)}
"""The least number of words, and the first that is too many."""


def vocabulary() -> list[str]:
    """Made-up words, the most frequent ones first and short."""
    drawn = random.Random(0)
    sizes = [*[1, 2, 3] * 10, *drawn.choices(range(3, 10), k=2 * _VOCABULARY)]
    made = ("".join(drawn.choices("etaoinshrdlucmfwypvbgk", k=size)) for size in sizes)
    return list(dict.fromkeys(made))[:_VOCABULARY]


def texts(words: Sequence[str], column: str, rows: range) -> Iterator[list[str]]:
    """A column of these rows, a list for each block."""
    shares = 1 / np.arange(1, len(words) + 1)
    for first in range(rows.start - rows.start % BLOCK, rows.stop, BLOCK):
        rng = np.random.default_rng([len(column), first])
        sizes = rng.integers(*_COLUMNS[column], BLOCK)
        drawn = iter(rng.choice(len(words), sizes.sum(), p=shares / shares.sum()).tolist())
        made = [" ".join(words[next(drawn)] for _ in range(size)) for size in sizes.tolist()]
        yield made[max(0, rows.start - first) : rows.stop - first]


def add_rows(collection: Collection, rows: range, deletes: range = range(0)) -> None:
    """Commit rows with captions, and their annotation."""
    words, log = vocabulary(), annotation_log(collection, "written")
    log.storage.create_folder("runs")

    def tables(column: str) -> Iterator[pa.Table]:
        start = rows.start
        for made in texts(words, column, rows):
            table = Clustered().table(start, start + len(made), _MODEL.dim).select(["image_id", "uri", "embedding"])
            yield table.append_column(column, pa.chunked_array([made]))
            start += len(made)

    collection.add_run("memory:", _MODEL, tables("caption"), deletes=list(map(str, deletes)))
    log.add_run("memory:", _MODEL.model_copy(update={"id": "written", "fingerprint": "1" * 64}), tables("written"))


def build(location: str, settings: IndexSettings | None = None) -> dict[str, float]:
    _, seconds, cpu = spent(lambda: build_index(Collection.open(location), settings))
    return {"seconds": seconds, "CPU s": cpu}


def report_builds(report: Report, collection: Collection, rows: int, updates: int) -> None:
    """Builds and updates without words and with them, which the collection ends with."""
    figures, share, first = dict[str, dict[str, float]](), rows // 100, rows
    for name, words in (("without words", ()), ("with words", None)):
        figures[f"build {name}"] = in_new_process(build, collection.location, IndexSettings(words=words))
        taken = []
        for _ in range(updates):
            add_rows(collection, range(first, first + share), range(first - rows, first - rows + share))
            first += share
            taken.append(in_new_process(build, collection.location))
        figures[f"1% + 1% {name}"] = {each: median(one[each] for one in taken) for each in taken[0]}
    report.table("builds", figures)
    cpu_s = {name: each["CPU s"] for name, each in figures.items()}
    added = cpu_s["1% + 1% with words"] - cpu_s["1% + 1% without words"]
    report.at_most("CPU of the words in an update ÷ in a build", added / cpu_s["build with words"], 0.05)


def report_size(report: Report, searcher: Searcher) -> None:
    """Bytes of the files of words ÷ those of their text, tombstones included."""
    files, text = 0, 0
    for record, part in zip(searcher.manifest.segments, searcher.segments.parts, strict=True):
        files += record.files[WORDS].size + (record.words.size if record.words else 0)
        for batch in part.batches:
            text += sum(len(path_of(uri)) for uri in batch.column("uri").to_pylist() if uri)
            text += sum(len(value or "") for name in _COLUMNS for value in batch.column(name).to_pylist())
    report.values("size in MB", {"text": text / 1e6, "files of words": files / 1e6})
    report.at_most("files of words ÷ text", files / text, 1.2)


def queries(words: Sequence[str]) -> dict[str, Callable[[random.Random], str]]:
    """Kinds of query, drawn."""
    return {
        "a rare word": lambda drawn: drawn.choice(words[5_000:20_000]),
        "the most frequent word": lambda drawn: words[0],
        "a prefix of three letters": lambda drawn: f"{drawn.choice(words[1_000:])[:3]}*",
        "a phrase of two frequent words": lambda drawn: f'"{words[0]} {drawn.choice(words[1:30])}"',
        "five words, two of them frequent": lambda drawn: " ".join(
            [*drawn.sample(words[:10], 2), *drawn.sample(words[30:5_000], 3)]
        ),
        "five frequent words": lambda drawn: " ".join(drawn.sample(words[:10], 5)),
    }


def report_queries(report: Report, searcher: Searcher, rows: int, bars: bool) -> None:
    """Median milliseconds of a filter's rows; of the best rows, by captions; the same among 1% of them; and of a page
    of the nearest vectors, without and with the words.
    """
    index = searcher.segments
    one_percent = Filter.parse({"image_id": {"$prefix": "77"}}, index.schema)
    index.eligible(one_percent)
    figures = {name: _timed(searcher, draw, one_percent) for name, draw in queries(vocabulary()).items()}
    report.table(f"queries of {rows:,} rows, in ms", figures)
    if bars:
        typical = figures["five words, two of them frequent"]
        report.at_most("ms of a ranked search for five words", typical["ranked"], 10)
        report.at_most("ms of the same among 1% of the rows", typical["ranked in 1%"], 10)
        report.at_most("ms that the words add to a search", typical["vector and words"] - typical["vector"], 10)


def _timed(searcher: Searcher, draw: Callable[[random.Random], str], one_percent: Filter) -> dict[str, float]:
    index, drawn, taken = searcher.segments, random.Random(1), defaultdict[str, list[float]](list)
    vectors = Clustered().queries(_DRAWS)[:, : searcher.dim]
    for number in range(_DRAWS):
        query = draw(drawn)
        terms, where = any_terms(query), Filter.parse({"caption": {"$match": query}}, index.schema)
        best = WordQuery(terms=terms, columns=["caption"], k=_K)
        searches: dict[str, Callable[[], object]] = {
            "$match": lambda where=where: [segment.passing(where) for segment in index.parts],  # type: ignore[misc]
            "ranked": partial(_ranked, index, best),
            "ranked in 1%": partial(_ranked, index, best, one_percent),
            "vector": partial(searcher.answer, vectors[number], 10),
            "vector and words": partial(searcher.answer, vectors[number], 10, words=query),
        }
        for name, search in searches.items():
            taken[name].append(seconds_of(search) * 1e3)
    return {name: median(each) for name, each in taken.items()}


def _ranked(index: SegmentedIndex, query: WordQuery, where: Filter | None = None) -> object:
    return index.rank_words(query, index.find_words(query), index.eligible(where))


def main(report: Report, folder: Path, options: Any) -> None:
    rows = 50_000 if options.quick else options.rows
    collection = Collection.create_or_open(str(folder / "collection"))
    add_rows(collection, range(rows))
    report_builds(report, collection, rows, updates=1 if options.quick else 3)
    searcher = Searcher.open(collection)
    report_size(report, searcher)
    report_queries(report, searcher, rows, bars=not options.quick)


if __name__ == "__main__":
    rows = {"--rows": {"type": int, "default": 1_000_000, "help": "number of rows"}}
    run("words", __doc__, main, "50,000 rows, without bars on times", rows)
