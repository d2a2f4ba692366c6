"""Saved searches: tests the images that are new, and delivers those that match, each once.

An image is new to a search in the run that tests its bytes first; one that has to wait for an annotation does so in
each run, in another column. What a search has delivered is recorded as a run: matches among
images of later runs are still to be delivered, in calls for one run each. So a job that was killed before it could
record a call repeats it with the same key, and nothing is lost.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import pyarrow as pa
from pydantic import Field
from pydantic_core import to_json

from index.collection import Collection
from index.collection.annotations import annotation_log
from index.collection.layout import DELIVERED
from index.collection.live_rows import LiveRows
from index.collection.records.bounds import Name, RunId
from index.collection.records.record import Record
from index.collection.records.run_manifest import RunManifest
from index.collection.rows import conform
from index.errors import CollectionError
from index.matches import SEARCHES
from jobs.annotation.annotate import Annotate
from jobs.annotation.predictors.search_queries import embed_queries, remember
from jobs.annotation.predictors.searches import SEARCHES_WAITING, broken_filters, searches_recipe
from jobs.annotation.publish import publish
from jobs.embedding.model_source import Load
from jobs.embedding.report import Report, SearchCounts
from jobs.fields import Target
from jobs.schedule.notify import NotifyError, send
from jobs.search_spec import SearchSpec
from jobs.values import counted

Found: TypeAlias = tuple[str, int, dict[str, Any]]
"""A search, the number of the run in which the image was new, and the match."""

_MATCHES: Final = 1_000
"""Of a call."""


class Delivered(Record):
    """`delivered.json`: of each saved search, the run up to which its matches have been delivered."""

    format: Literal[1] = 1
    runs: dict[Name, RunId] = Field(default_factory=dict)


def run_searches(
    job: Annotate, searches: Sequence[SearchSpec], load: Load, report: Report, stale: Mapping[str, str] | None = None
) -> None:
    """Test the images that are new, publish all annotations, and deliver the matches.

    A search that cannot work is a problem of the report, and left out as if the job did not have it: once it works, it
    delivers what has come since it last did. So it is with filters on `stale` annotations, which have no values for
    new images (see `broken_filters`). Deliveries that fail are noted, and made by the next job.
    """
    collection, log = job.collection, annotation_log(job.collection, SEARCHES)
    live, model = job.live
    before, delivered = log.runs(), _read_delivered(log)
    new = [each.name for each in searches if each.name not in delivered]
    if before and new:  # what is there already is not new to them, even if this is killed
        delivered |= dict.fromkeys(new, before[-1].run_id)
        _write_delivered(log, delivered)
    queries = embed_queries(searches, collection, live, model, load)
    broken = queries.broken | broken_filters(searches, collection, live, stale or {})
    report.problems += broken.values()
    searches = [each for each in searches if each.name not in broken]
    if not searches:
        return
    remember(collection, queries.vectors)
    recipe = searches_recipe(searches, queries, collection, live)
    job.annotate(SEARCHES, recipe, live)
    publish(collection, job.console, said=report.notes)
    if not (runs := log.runs()):
        return
    values = LiveRows.of_runs(log.storage, runs).of_model(recipe.record)
    report.searches = _count(values, len(runs) - 1 if len(runs) > len(before) else -1, searches)
    delivered = dict.fromkeys(new, runs[0].run_id) | delivered
    numbers = _numbers(runs, searches, delivered)
    late = _deliver(log, searches, _undelivered(live, values, numbers), runs, delivered, report)
    finished = delivered | {each.name: runs[-1].run_id for each in searches if each.name not in late}
    if finished != _read_delivered(log):
        _write_delivered(log, finished)


def _read_delivered(log: Collection) -> dict[str, str]:
    try:
        return dict(Delivered.from_bytes(log.storage.read(DELIVERED)).runs)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CollectionError(
            f"{log.location}/{DELIVERED} is damaged ({error}): restore it from a backup, or remove it, and saved "
            "searches report what comes from then on"
        ) from error


def _write_delivered(log: Collection, runs: Mapping[str, str]) -> None:
    log.check_lease()
    log.storage.write_atomic(DELIVERED, Delivered(runs=dict(runs)).to_bytes())


_COUNTS = """
SELECT search, count(*) AS matched FROM (SELECT unnest({names}) AS search FROM written WHERE run = {run}) GROUP BY ALL
"""


def _count(values: LiveRows, run: int, searches: Sequence[SearchSpec]) -> dict[str, SearchCounts]:
    """What a run has tested, and how many of it match."""
    catalog = values.catalog
    [[tested]] = catalog.table(f"SELECT count(*) AS tested FROM written WHERE run = {run}").to_pydict().values()
    rows = catalog.table(_COUNTS.format(names=catalog.aliases[SEARCHES], run=run)).to_pylist()
    matched = {str(row["search"]): row["matched"] for row in rows}
    return {each.name: SearchCounts(tested=tested, matched=matched.get(each.name, 0)) for each in searches}


_UNDELIVERED = """
WITH tested AS (
    SELECT image_id, coalesce(content_hash, '') AS hash, run, coalesce({waiting}, []) AS waiting FROM {log}.written
),
known AS (SELECT image_id, hash FROM tested WHERE run <= {since} AND len(waiting) = 0),
matches AS (
    SELECT image_id, coalesce(content_hash, '') AS hash, unnest({names}) AS search, unnest({scores}) AS score
    FROM {values} SEMI JOIN (FROM tested WHERE run > {since}) USING (image_id)
),
new AS (
    SELECT search, image_id, hash, score, min(run) AS run
    FROM matches JOIN (FROM tested ANTI JOIN known USING (image_id, hash)) USING (image_id, hash)
    WHERE NOT list_contains(waiting, search)
    GROUP BY ALL
),
images AS (
    SELECT image_id, coalesce(content_hash, '') AS hash, {columns} FROM {live} WHERE error_reason IS NULL
)
SELECT search, new.run, score, images.* EXCLUDE (image_id, hash)
FROM new JOIN images USING (image_id, hash) JOIN delivered USING (search)
WHERE new.run > delivered.run
ORDER BY search, new.run, score DESC, image_id
"""


def _numbers(
    runs: Sequence[RunManifest], searches: Sequence[SearchSpec], delivered: Mapping[str, str]
) -> dict[str, int]:
    """The number of the last run that each search with a target has delivered, unless that is the newest."""
    ids = [run.run_id for run in runs]
    numbers = {each.name: bisect_right(ids, delivered[each.name]) - 1 for each in searches if each.notify}
    return {name: number for name, number in numbers.items() if number < len(runs) - 1}


def _undelivered(live: LiveRows, values: LiveRows, numbers: Mapping[str, int]) -> Iterator[Found]:
    """The matches of runs after these `numbers`, by search and run, best first, but for images that are gone."""
    if not numbers:
        return
    columns = ["image_id", "uri", *live.metadata]
    sql = _UNDELIVERED.format(
        log=values.catalog.name,
        since=min(numbers.values()),
        names=values.catalog.aliases[SEARCHES],
        scores=values.catalog.aliases[f"{SEARCHES}_scores"],
        waiting=values.catalog.aliases.get(SEARCHES_WAITING, "NULL"),
        values=values.sql,
        columns=live.catalog.columns(columns),
        live=live.sql,
    )
    delivered = pa.table({"search": [*numbers], "run": [*numbers.values()]})
    for part in live.catalog.query(sql, _MATCHES, delivered=delivered):
        images = part.select(range(3, part.num_columns)).rename_columns(columns)
        rows = conform(images, live.schema_of(columns)).to_pylist()
        for found, image in zip(part.select(range(3)).to_pylist(), rows, strict=True):
            match = {"image_id": image.pop("image_id"), "uri": image.pop("uri"), "score": found["score"]}
            yield found["search"], found["run"], {**match, "metadata": image}


def _deliver(
    log: Collection,
    searches: Sequence[SearchSpec],
    found: Iterator[Found],
    runs: Sequence[RunManifest],
    delivered: dict[str, str],
    report: Report,
) -> set[str]:
    """Make the calls, and record each. Returns the searches of which some have failed."""
    targets, late, down = {each.name: each.notify for each in searches if each.notify}, set[str](), set[Target]()
    for (search, run), matches in groupby(found, itemgetter(0, 1)):
        target, run_id, number = targets[search], runs[run].run_id, 0
        try:
            while (part := [match for *_, match in islice(matches, _MATCHES)]) and target not in down:
                number += 1
                _call(target, report.collection, search, f"{run_id}/{quote(search, safe='')}/{number}", part)
                report.searches[search].delivered += len(part)
        except NotifyError as error:
            down.add(target)
            report.notes.append(f"matches are not delivered ({': '.join(error.args)}): the next job tries again")
        if target in down:
            late.add(search)
        else:
            delivered[search] = run_id
            _write_delivered(log, delivered)
    return late


def _call(target: Target, collection: str, search: str, key: str, matches: Sequence[dict[str, Any]]) -> None:
    text = f"likeness: {search} matches {counted(len(matches), 'new image')} of {collection}"
    body = {"text": text, "key": key, "search": search, "collection": collection, "matches": matches}
    send(target, to_json(body, inf_nan_mode="null", bytes_mode="base64"), key)
