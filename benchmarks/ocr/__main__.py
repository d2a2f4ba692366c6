"""How many words `likeness annotate --ocr` reads, and what it costs: `python -m benchmarks.ocr [--quick]`.

2,000 pictures have words drawn on them (`benchmarks.ocr.pictures`). A word counts as read if it is in the picture's
text exactly; in Latin letters, as a whole word. Then each word is searched for, and 1% of the pictures is replaced.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.annotate import command_that_annotates, embedded
from benchmarks.common.report import Figure, Report, run
from benchmarks.ocr.pictures import DrawnWords, draw_words
from index.builder.build_index import build_index
from index.collection import Collection
from index.search import Searcher

_SMALL = 24  # pixels: the height of small print, once the picture is reduced to what is read


def draw_into(folder: Path, location: str, numbers: Sequence[int]) -> list[DrawnWords]:
    """Draw pictures, save them, and index them with random vectors under their number modulo 100,000."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        drawn = list(pool.map(draw_words, numbers, chunksize=16))
    folder.mkdir(exist_ok=True)
    names = [f"{number % 100_000:05}.jpg" for number in numbers]
    for name, picture in zip(names, drawn, strict=True):
        (folder / name).write_bytes(picture.data)
    hashes = [hashlib.sha256(picture.data).hexdigest() for picture in drawn]
    uris = [str(folder / name) for name in names]
    build_index(embedded(location, pa.table({"image_id": names, "uri": uris, "content_hash": hashes}), numbers[0]))
    return drawn


def judge(location: str, pictures: Sequence[DrawnWords], report: Report) -> None:
    """The share of words that are in the texts of their pictures, by script and by size."""
    searcher = Searcher.open(Collection.open(location))
    words: dict[str, list[bool]] = defaultdict(list)
    for number, picture in enumerate(pictures):
        row: Any = searcher.row(f"{number:05}.jpg")
        kinds = [picture.script, "small print" if picture.read_height < _SMALL else "larger print", "all"]
        for word in picture.words:
            for kind in kinds:
                words[kind].append(_is_in(word, row["written"], whole=picture.script == "Latin"))
    shares = {kind: sum(read) / len(read) for kind, read in words.items()}
    table: list[dict[str, Figure]] = [
        {"": kind, "words": len(words[kind]), "read": share} for kind, share in sorted(shares.items())
    ]
    report.table(f"words in {len(pictures):,} pictures", table)
    report.at_least("share of words read", shares["all"], 0.95)


def judge_search(location: str, pictures: Sequence[DrawnWords], report: Report) -> None:
    """Recall@10 of the pictures with a word, as text; its vector is that of one of them."""
    searcher = Searcher.open(Collection.open(location))
    drawn: dict[str, set[str]] = defaultdict(set)
    for number, picture in enumerate(pictures):
        for word in picture.words:
            drawn[word].add(f"{number:05}.jpg")
    recalls: dict[str, list[float]] = defaultdict(list)
    for word, relevant in drawn.items():
        vector = searcher.vector(min(relevant))
        for kind, query, words in (("vector", vector, None), ("words", None, word), ("both", vector, word)):
            found = {match.image_id for match in searcher.answer(query, 10, words=words).matches}
            recalls[kind].append(len(found & relevant) / min(10, len(relevant)))
    means = {kind: sum(each) / len(each) for kind, each in recalls.items()}
    report.values(f"recall@10 of {len(drawn)} words", {**means})
    report.at_least("recall@10 of both", means["both"], 0.98)
    report.at_least("recall@10 of both ÷ of the better one", means["both"] / max(means["words"], means["vector"]), 1)


def _is_in(word: str, text: str, *, whole: bool) -> bool:
    return word in text.split() if whole else word in "".join(text.split())


def main(report: Report, folder: Path, options: Any) -> None:
    count = 200 if options.quick else 2_000
    location, changed = str(folder / "collection"), range(100_000, 100_000 + count, 100)
    draw = partial(draw_into, folder / "pictures", location)
    pictures = draw(range(count))
    first = command_that_annotates(location, "written", ["--ocr"], count).cpu_s
    judge(location, pictures, report)
    judge_search(location, pictures, report)
    draw(changed)
    some, nothing = (
        command_that_annotates(location, "written", ["--ocr"], expected).cpu_s for expected in (len(changed), 0)
    )
    figures = {"all": first, "1% changed": some, "nothing changed": nothing, "each picture": first / count}
    report.values("CPU seconds of a command", figures)
    if not options.quick:  # two processes start for two pictures
        report.at_most("(1% changed − nothing changed) ÷ all", (some - nothing) / first, 0.03)


if __name__ == "__main__":
    run("ocr", __doc__, main, "200 pictures instead of 2,000, and no bar for what 1% costs")
