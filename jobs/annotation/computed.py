"""Computed columns: annotations whose values depend on the whole collection, such as a selection of it.

A run of their log has the rows whose values have changed, and deletes those of images without a value. All runs with
the same columns agree, whatever the settings, so the newest row of an image counts.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from typing import Final

import numpy as np
import pyarrow as pa
from rich.console import Console

from index.collection import Collection
from index.collection.annotations import annotation_log, list_annotations
from index.collection.live_rows import LiveRows
from index.collection.merged.merge import merge_runs
from index.collection.records import ModelRecord
from index.collection.rows import EMBEDDING, TEXT, embedding_type, number_array
from index.versions.servable import live_manifest
from jobs.annotation.predictor import fingerprint_of
from jobs.annotation.publish import SOURCE, publish, require_name_available

_ROWS: Final = 1 << 18  # of a file


def indexed_rows(collection: Collection, name: str) -> LiveRows:
    """The rows that the live index version was built from. EmptyCollectionError if there is none, UsageError if `name`
    is not free for an annotation.
    """
    manifest = live_manifest(collection)
    if manifest is None:
        from index.search.searcher import no_index  # imported late: faiss takes a second

        raise no_index(collection)
    runs = [run for run in collection.runs() if run.run_id in manifest.runs]
    rows = LiveRows.of_runs(collection.storage, runs).of_model(manifest.model)
    require_name_available(name, rows.metadata, list_annotations(collection))
    return rows


def put_columns(collection: Collection, name: str, by: str, rows: pa.Table, console: Console) -> int:
    """Make `rows` the values of the annotation `name`, whatever it had, and publish an index version with them. Returns
    the number of images whose values have changed.

    `rows` are of the live index version: `image_id`, and typed columns called `name` or `name_…`. Images that are
    missing, or whose columns are all null, have no value. `by` says what computed them and how, for `likeness columns`.
    The caller has the lease. If this is killed before its one commit, nothing has changed. Raises like `indexed_rows`.
    """
    live = indexed_rows(collection, name)
    log, columns = annotation_log(collection, name), rows.drop_columns(["image_id"])
    schema = {field.name: str(field.type) for field in columns.schema}
    record = ModelRecord(id=by, revision=None, fingerprint=fingerprint_of(["computed", schema]), dim=0)
    committed = log.runs()
    changed, gone = _changes(live, LiveRows.of_runs(log.storage, committed).of_model(record), rows)
    if changed.num_rows or gone or not committed or committed[-1].model != record:
        changed = changed.append_column(EMBEDDING, pa.array([None] * len(changed), embedding_type(0)))
        log.check_lease()
        log.add_run(
            SOURCE,
            record,
            (changed.slice(start, _ROWS) for start in range(0, len(changed), _ROWS)),
            deletes=gone,
        )
        merge_runs(log)
    publish(collection, collection.runs(), console)
    return changed.num_rows + len(gone)


_WANTED = """
WITH wanted AS (
    SELECT given.*, live.content_hash FROM given JOIN {live} AS live USING (image_id)
    WHERE live.error_reason IS NULL AND ({some})
)
"""
_CHANGED = f"""{_WANTED}
SELECT number, content_hash FROM wanted ANTI JOIN known
ON known.image_id = wanted.image_id AND known.content_hash IS NOT DISTINCT FROM wanted.content_hash AND {{same}}
ORDER BY number
"""
_GONE = f"{_WANTED} SELECT image_id FROM known ANTI JOIN wanted USING (image_id) ORDER BY image_id"


def _changes(live: LiveRows, before: LiveRows, rows: pa.Table) -> tuple[pa.Table, list[str]]:
    """The rows with another value than before, with the hash of their content, and the ids that no longer have one."""
    names = [name for name in rows.column_names if name != "image_id"]
    values = [f"v{number}" for number in range(len(names))]
    columns = [rows["image_id"], *(rows[name] for name in names)]
    given = pa.table([number_array(np.arange(len(rows))), *columns], ["number", "image_id", *values])
    known = (
        rows.slice(0, 0).append_column("content_hash", pa.nulls(0, TEXT)).select(["content_hash", "image_id", *names])
    )
    if len(before):
        known = before.read(["content_hash", "image_id", *names])
    tables = {"given": given, "known": known.rename_columns(["content_hash", "image_id", *values])}
    parts = {
        "live": live.sql,
        "some": " OR ".join(f"{value} IS NOT NULL" for value in values),
        "same": " AND ".join(f"known.{value} IS NOT DISTINCT FROM wanted.{value}" for value in values),
    }
    changed = live.catalog.table(_CHANGED.format(**parts), **tables)
    gone = live.catalog.table(_GONE.format(**parts), **tables)
    return rows.take(changed["number"]).append_column("content_hash", changed["content_hash"]), list(
        map(str, gone["image_id"].to_pylist())
    )
