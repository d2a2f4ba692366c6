"""Answers as sets, against brute force: `python -m benchmarks.index.result_set [--rows 1000000] [--quick]`.

Random requests of a query, a lowest score, a filter, an order, groups, facets and pages over vectors of 512 dimensions
and 30 columns. A request without order, groups and facets is timed beside each, to see what those cost.

Sums of float32 differ by some 1e-7, by the order in which a kernel adds, and scores are reported with six decimals. So
an image whose score by brute force is within one of the last decimal of the lowest score may be in the set or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from benchmarks.common.clustered import BLOCK, DIM, GROUPS, MODEL, Clustered, Vectors
from benchmarks.common.process import in_new_process, seconds_of
from benchmarks.common.report import Report, run
from index.builder.build_index import build_index
from index.collection import Collection
from index.collection.records.index_settings import IndexSettings
from index.search import Searcher
from index.search.result_set import Answer

_ROWS, _QUICK_ROWS = 1_000_000, 100_000
_REQUESTS, _QUICK_REQUESTS = 1_000, 200
_K = 100
_FURTHER, _MAX_PAGES = 10_000, 12  # matches of each page after the first, and pages: sets of 110,100 come whole
_SIZES = (10, 100, 1_000, 10_000, 100_000)  # of the sets without a filter; None: no lowest score
_DECIMAL = 1e-6
_ORDERS = (None, "year", "-year", "label", "-taken", "number 3", "score")
_FACETS = ["year", "text 1"]


def columns_of(rows: int) -> dict[str, Any]:
    """The columns of the rows, as arrays."""
    data, random = Clustered(), np.random.default_rng(5)
    table = pa.concat_tables([data.table(first, min(first + BLOCK, rows)) for first in range(0, rows, BLOCK)])
    known = {name: table.column(name).to_numpy() for name in ("image_id", "bucket", "label", "year", "cluster")}
    more = {f"number {each}": random.integers(0, 10**each, rows) for each in range(1, 13)}
    texts = {f"text {each}": random.integers(0, 10 * each, rows).astype(str).astype(object) for each in (1, 9)}
    floats = {f"share {each}": random.random(rows) for each in range(10)}
    taken = random.integers(0, 20 * 365 * 86_400, rows).astype("datetime64[s]")
    return known | more | texts | floats | {"taken": taken}


def make(location: str, rows: int) -> None:
    collection = Collection.create_or_open(location)
    columns = columns_of(rows)

    def table(first: int) -> pa.Table:
        known = Clustered().table(first, min(first + BLOCK, rows))
        for name, values in columns.items():
            if name not in known.column_names:
                known = known.append_column(name, pa.array(values[first : first + BLOCK]))
        return known

    collection.add_run("memory:", MODEL, map(table, range(0, rows, BLOCK)))
    build_index(collection, IndexSettings(segment_rows=max(1_000_000, rows)))


@dataclass(frozen=True)
class Request:
    query: Vectors
    size: int | None
    buckets: int
    sort: str | None
    group_by: str | None

    @classmethod
    def drawn(cls, random: np.random.Generator, query: Vectors) -> Request:
        size = random.choice([*_SIZES, 0])
        return cls(
            query,
            int(size) or None,
            int(random.choice([GROUPS, GROUPS // 10, GROUPS // 100])),
            _ORDERS[random.integers(len(_ORDERS))],
            (None, None, "label", "year")[random.integers(4)],
        )


Outcome = Mapping[str, float]
"""What a request's pages had in comparison with brute force."""


def measure(location: str, rows: int, requests: int) -> list[Outcome]:
    faiss.omp_set_num_threads(1)
    searcher = Searcher.open(Collection.open(location))
    vectors, columns = Clustered().array(rows), columns_of(rows)
    random = np.random.default_rng(11)
    queries = Clustered().queries(requests)
    return [_outcome(searcher, vectors, columns, Request.drawn(random, query)) for query in queries]


def _outcome(searcher: Searcher, vectors: Vectors, columns: dict[str, Any], request: Request) -> Outcome:
    scores = (vectors @ request.query).astype(np.float64)
    size = min(request.size or 0, len(scores))
    cut = round(float(np.partition(scores, -size)[-size]), 6) if size else None
    passing = columns["bucket"] < request.buckets
    possible, certain = (
        np.flatnonzero(passing if cut is None else passing & (scores >= cut + by)) for by in (-_DECIMAL, _DECIMAL)
    )
    where = None if request.buckets == GROUPS else {"bucket": {"$lt": request.buckets}}
    options: dict[str, Any] = {"min_score": cut, "filter": where, "kind": "image", "fields": []}
    more: dict[str, Any] = {"sort": request.sort, "group_by": request.group_by, "facets": _FACETS}
    searcher.answer(request.query, 1, **options)  # the filter is known from here on, as from an earlier page
    answers: list[Answer] = []
    bare = seconds_of(lambda: searcher.answer(request.query, _K, **options))
    full = seconds_of(lambda: answers.append(searcher.answer(request.query, _K, **options, **more)))
    while answers[-1].end is not None and len(answers) < _MAX_PAGES:
        answers.append(searcher.answer(request.query, _FURTHER, after=answers[-1].end, **options, **more))
    found = [int(match.image_id) for answer in answers for match in answer.matches]
    first, whole = answers[0], answers[-1].end is None
    sizes = first.group_sizes
    shown = found if sizes is None else [match.group for answer in answers for match in answer.matches]
    groups = Counter(columns[request.group_by][certain].tolist() if request.group_by else [])
    counts = Counter(found) if sizes is None else Counter(sizes)
    members = Counter(certain.tolist()) if sizes is None else groups
    common = np.isin(found, possible).mean() if found else 1.0
    assert first.facets is not None
    years, counted = columns["year"], first.facets.values["year"]
    if whole and sizes is None:
        right = counted == Counter(years[found].tolist())
    else:
        right = not first.exact or Counter(years[certain].tolist()) <= counted <= Counter(years[possible].tolist())
    error = max(len(certain) - first.total, first.total - len(possible), 0)
    return {
        "exact": first.exact,
        "error": error / max(1, len(certain)),
        "precision": float(common),
        "recall": (members & counts).total() / len(certain) if whole and len(certain) else 1.0,
        "groups": len(groups.keys() & set(shown)) / len(groups) if whole and groups else 1.0,
        "disjoint": len({*shown}) == len(shown),
        "complete": not whole or len(shown) == (first.total if sizes is None else len(sizes)),
        "ordered": _in_order(
            [match.score for answer in answers for match in answer.matches], columns, found, request.sort
        ),
        "facets": right,
        "bare_ms": 1e3 * bare,
        "extra_ms": 1e3 * (full - bare),
    }


def _in_order(scores: Sequence[float | None], columns: dict[str, Any], found: list[int], sort: str | None) -> bool:
    """Whether the images found, with their scores, ascend in what they are sorted by, or descend."""
    order = sort or "-score"
    name = order.removeprefix("-")
    values = np.array(scores) if name == "score" else columns[name][found]
    earlier, later = (values[1:], values[:-1]) if order.startswith("-") else (values[:-1], values[1:])
    return bool((earlier <= later).all())


def main(report: Report, folder: Path, options: Any) -> None:
    rows, requests = (_QUICK_ROWS, _QUICK_REQUESTS) if options.quick else (options.rows, _REQUESTS)
    in_new_process(make, str(folder / "c"), rows)
    outcomes = in_new_process(measure, str(folder / "c"), rows, requests)
    judge(report.about(f"{rows:,} × {DIM}, {requests:,} requests"), outcomes)


def judge(report: Report, outcomes: list[Outcome]) -> None:
    bare, extra, errors = ([each[name] for each in outcomes] for name in ("bare_ms", "extra_ms", "error"))
    percentiles: list[dict[str, Any]] = [
        {"ms": name, **{f"p{each}": float(np.percentile(values, each)) for each in (10, 50, 90, 99)}}
        for name, values in (("a query, lowest score and filter", bare), ("order, groups and facets", extra))
    ]
    report.table("time of the first page", percentiles)
    report.at_most("median of a first page, ms", float(np.median(np.add(bare, extra))), 100)
    report.at_most("median of what order, groups and facets add, ms", float(np.median(extra)), 20)
    report.at_most("total, largest error", max(errors), 0.01)
    exact = [error for error, each in zip(errors, outcomes, strict=True) if each["exact"]]
    report.at_most("total where it is called exact, largest error", max(exact, default=0.0), 0.0)
    report.values("requests", {"called exact": len(exact), "of": len(outcomes)})
    report.at_least("members: precision, lowest", min(each["precision"] for each in outcomes), 0.99)
    report.at_least("members: recall, lowest", min(each["recall"] for each in outcomes), 0.99)
    for name in ("disjoint", "complete", "ordered", "facets"):
        report.at_least(f"share of requests: {name}", float(np.mean([each[name] for each in outcomes])), 1)
    report.at_least("share of requests: all groups", float(np.mean([each["groups"] == 1 for each in outcomes])), 0.99)


if __name__ == "__main__":
    rows = {"--rows": {"type": int, "default": _ROWS, "help": "rows of the index"}}
    run("result_set", __doc__, main, f"{_QUICK_ROWS:,} rows, {_QUICK_REQUESTS} requests", rows)
