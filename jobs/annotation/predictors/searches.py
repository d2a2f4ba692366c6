"""Saved searches: which of them each image matches, by one matrix product over the stored vectors."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index.arrays import Ids, Vectors, least_score, rounded
from index.collection import Collection
from index.collection.annotations import PRUNE, SELECT, belongs_to, kind_of, list_annotations, rows_with_values
from index.collection.live_rows import LiveRows, annotation_values
from index.collection.records.model_record import ModelRecord
from index.collection.rows import filterable, number_array, row_schema, text_array
from index.errors import FilterError
from index.filters.filter import Filter, named_columns
from index.matches import SEARCHES
from jobs.annotation.predictor import Batch, Columns, Recipe
from jobs.annotation.predictors.search_queries import Queries, embed_queries
from jobs.embedding.model_source import Load
from jobs.planning.image_filter import EXIF_TYPES
from jobs.search_spec import SearchSpec
from jobs.spec import JobSpec
from jobs.values import fingerprint_of

Mask: TypeAlias = npt.NDArray[np.bool_]

_VERSION = 1
"""Changes with whatever affects the columns, so that all images are tested again."""
_SCORES: Final = 1 << 24  # in memory
SEARCHES_WAITING: Final = f"{SEARCHES}_waiting"


def check_searches(
    spec: JobSpec, collection: Collection, listing: pa.Schema, model: ModelRecord, load: Load
) -> Queries:
    """The queries of a job's searches; those that will not work with its model, its pictures, the columns that images
    will have or its environment are broken. Columns of annotations that have yet to be made may be anything, and ids of
    images may have yet to come.
    """
    live = [collection.snapshot().live.catalog.schema_of()] if collection.runs() else []
    exif = pa.schema(list(map(pa.field, EXIF_TYPES, EXIF_TYPES.values()))) if spec.exif else pa.schema([])
    schema = _filterable(_other_annotations(collection), listing, exif, *live)
    queries = embed_queries(spec.searches, collection, None, model, load)
    broken = queries.broken
    for search in spec.searches:
        unknown = [name for name in named_columns(search.filter) if name not in schema.names]
        if not any(belongs_to(column, each.name) for column in unknown for each in spec.annotations):
            broken |= _broken_filter(search, schema)
        if search.notify and search.notify.problem:
            broken[search.name] = f"the search {search.name!r} cannot notify: {search.notify.problem}"
    return queries


def broken_filters(
    searches: Sequence[SearchSpec], collection: Collection, live: LiveRows, stale: Mapping[str, str]
) -> dict[str, str]:
    """Why filters cannot judge the `live` rows, by the names of their searches. Annotations that are `stale`, each with
    what to do, have no values for new images, which a filter would miss for ever.
    """
    schema = _filterable(_other_annotations(collection), live.schema)
    broken = dict[str, str]()
    for search in searches:
        needs = [
            (column, remedy)
            for column in named_columns(search.filter)
            for name, remedy in stale.items()
            if belongs_to(column, name)
        ]
        if needs:
            [column, remedy], *_ = needs
            broken[search.name] = (
                f"the filter of the search {search.name!r} needs {column}, which is not up to date{remedy}"
            )
        else:
            broken |= _broken_filter(search, schema)
    return broken


def unlisted_stale(spec: JobSpec, collection: Collection, live: LiveRows) -> dict[str, str]:
    """The annotations that filters of a job's searches name, but not the job, and that have not seen all `live` images,
    each with what to do. A selection is never behind: it says nothing of the images that it leaves out.
    """
    columns = {column for search in spec.searches for column in named_columns(search.filter)}
    listed, remedy = {each.name for each in spec.annotations}, "run `likeness annotate` before the next job"
    return {
        each.name: f": list the annotation {each.name} in the job's file, or {remedy}"
        for each in list_annotations(collection)
        if each.name not in {*listed, SEARCHES}
        and any(map(each.has, columns))
        and kind_of(each.runs[-1].model.id) not in (SELECT, PRUNE)
        and not each.has_seen(live)
    }


def searches_recipe(searches: Sequence[SearchSpec], queries: Queries, collection: Collection, live: LiveRows) -> Recipe:
    """The recipe for `Searches`, of which none is broken, among the `live` rows of the queries' model."""
    searches = sorted(searches, key=lambda each: each.name)
    keys = [queries.keys[each.name] for each in searches]
    parts = [[each.name, key, each.min_score, each.filter] for each, key in zip(searches, keys, strict=True)]

    def make() -> Searches:
        others = _other_annotations(collection)
        schema = _filterable(others, live.schema)
        filters = {number: Filter.parse(each.filter, schema) for number, each in enumerate(searches) if each.filter}
        vectors = np.stack([queries.vectors[key] for key in keys])
        cuts = np.array([least_score(each.min_score) for each in searches], np.float32)
        return Searches([each.name for each in searches], vectors, cuts, filters, live, others)

    fingerprint = fingerprint_of([_VERSION, parts])
    return Recipe(id=SEARCHES, fingerprint=fingerprint, make=make, on_ray=False, waiting=SEARCHES_WAITING)


@dataclass(frozen=True)
class Searches:
    """The names of the searches that an image matches, and its cosine with the query of each as `scores`. `queries` are
    `(n, dim)`, `cuts` `(n,)`; the `filters`, by the number of their search, look at `live` rows and their annotations.

    Searches cannot be judged yet if an annotation that their filter names has no value for the image and tries again:
    these are `waiting`, a column that is there only if some image has one.
    """

    names: Sequence[str]
    queries: Vectors
    cuts: npt.NDArray[np.float32]
    filters: dict[int, Filter]
    live: LiveRows
    annotations: Sequence[LiveRows]

    def __call__(self, batch: Batch) -> Columns:
        vectors, step = batch["embedding"], max(1, _SCORES // len(self.names))
        passing, waiting = self._judge(batch["image_id"]) if self.filters else ({}, {})
        found, scores, counts = list[Any](), list[Any](), list[Any]()
        for start in range(0, len(vectors), step):
            cosines = vectors[start : start + step] @ self.queries.T
            matches = cosines >= self.cuts
            for number, mask in passing.items():
                matches[:, number] &= mask[start : start + step]
            found.append(np.nonzero(matches)[1])
            scores.append(rounded(cosines[matches]))
            counts.append(matches.sum(axis=1))
        offsets: Any = number_array(np.concatenate([[0], *counts]).cumsum().astype(np.int32))
        names = text_array(self.names).take(number_array(np.concatenate(found)))
        waits = {}
        if waiting:
            lists = [[self.names[number] for number in waiting if waiting[number][row]] for row in range(len(vectors))]
            waits = {"waiting": pa.array([each or None for each in lists], pa.list_(pa.string()))}
        return {
            "": pa.ListArray.from_arrays(offsets, names),
            "scores": pa.ListArray.from_arrays(offsets, number_array(np.concatenate(scores))),
            **waits,
        }

    def _judge(self, ids: Ids) -> tuple[dict[int, Mask], dict[int, Mask]]:
        """Which of some images pass each filter, and which have to wait for it, if any have."""
        catalog, columns = self.live.catalog, set[str]().union(*(each.columns for each in self.filters.values()))
        given = pa.table({"image_id": text_array(ids), "number": number_array(np.arange(len(ids)))})
        sql = f"SELECT seq, number FROM {self.live.sql} JOIN given USING (image_id) ORDER BY seq"
        found = catalog.table(sql, given=given)
        rows = LiveRows.at(catalog, np.asarray(found["seq"], np.int64))
        table = rows.read(["image_id", *(columns & {*rows.schema.names} - {"image_id"})])
        sql = "(SELECT seq AS number, image_id, content_hash FROM written SEMI JOIN found USING (seq))"
        annotations = [each for each in self.annotations if not columns.isdisjoint(each.metadata)]
        if annotations:
            values = pa.concat_tables(part for _, part in annotation_values(catalog, sql, annotations, found=found))
            for name in values.column_names:
                table = table.append_column(name, values[name])
        [batch] = table.combine_chunks().to_batches()
        masks, waiting = dict[str, Mask](), dict[int, Mask]()
        failed = [(each, self._failed(each, found, len(ids))) for each in annotations]
        for number, filter_ in self.filters.items():
            if filter_.key not in masks:
                masks[filter_.key] = np.zeros(len(ids), bool)
                masks[filter_.key][np.asarray(found["number"])] = filter_.mask(batch)
            for each, mask in failed:
                if mask.any() and not filter_.columns.isdisjoint(each.metadata):
                    waiting[number] = waiting.get(number, False) | mask
        passing = {number: masks[each.key] for number, each in self.filters.items()}
        return passing | {number: passing[number] & ~mask for number, mask in waiting.items()}, waiting

    def _failed(self, annotation: LiveRows, found: pa.Table, count: int) -> Mask:
        """Which of the images that are `found` have no value, but will be annotated again."""
        numbers = self.live.catalog.table(_FAILED.format(rows=annotation.sql), found=found)["number"]
        mask = np.zeros(count, bool)
        mask[np.asarray(numbers, np.int64)] = True
        return mask


_FAILED: Final = """
SELECT number FROM found JOIN written AS image USING (seq) JOIN {rows} AS row ON row.image_id = image.image_id
AND row.content_hash IS NOT DISTINCT FROM image.content_hash AND row.error_reason IS NOT NULL AND row.retryable
"""


def _other_annotations(collection: Collection) -> list[LiveRows]:
    return rows_with_values(each for each in list_annotations(collection) if each.name != SEARCHES)


def _filterable(annotations: Sequence[LiveRows], *schemas: pa.Schema) -> pa.Schema:
    """The columns that filters can name."""
    columns = (row_schema(0), *schemas, *(each.schema_of(each.metadata) for each in annotations))
    fields = {field.name: field for schema in columns for field in schema}
    return filterable(pa.schema(fields.values()))


def _broken_filter(search: SearchSpec, schema: pa.Schema) -> dict[str, str]:
    try:
        Filter.parse(search.filter or {}, schema)
    except FilterError as error:
        return {search.name: f"the filter of the search {search.name!r}: {error}"}
    return {}
