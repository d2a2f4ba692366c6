"""Computed columns: annotations whose values depend on the whole collection, such as a selection of it.

A run of their log has the rows whose values have changed, and deletes those of images without a value. All runs with
the same columns agree, whatever the settings, so the newest row of an image counts.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from index.arrays import Positions
from index.collection import Collection
from index.collection.annotations import annotation_log, belongs_to
from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.merged.merge import merge_runs
from index.collection.records.model_record import ModelRecord
from index.collection.records.run_manifest import RunManifest
from index.collection.rows import EMBEDDING, conform, embedding_type, metadata_columns, number_array, numbers_of
from index.errors import DamagedVersionError
from index.search import Searcher
from index.search.searcher import no_index
from index.segments.segmented_index import SegmentedIndex
from index.versions.servable import live_manifest
from jobs.annotation.publish import SOURCE, publish, require_name_available, require_same_kind
from jobs.errors import RolledBackColumnsError
from jobs.values import fingerprint_of

_ROWS: Final = 1 << 18  # of a file


@dataclass(frozen=True, kw_only=True)
class ComputedColumns:
    """The annotation `name` of a collection, whose lease the caller has, and the live index version, which has its
    values.
    """

    collection: Collection
    name: str
    searcher: Searcher
    runs: Sequence[RunManifest]

    @classmethod
    def open(cls, collection: Collection, name: str, kind: str) -> ComputedColumns:
        """EmptyCollectionError if there is no index, UsageError if `name` is not free for columns of this kind,
        RolledBackColumnsError if the last columns were rolled back.
        """
        live, runs = live_manifest(collection), collection.runs()
        if live is None:
            raise no_index(collection)
        indexed = [RunRows.of(collection.storage, run) for run in runs if run.run_id in live.runs]
        columns = metadata_columns(Catalog(collection.storage, indexed, live=False).schema_of())
        require_name_available(collection, name, columns)
        log = annotation_log(collection, name).snapshot()
        require_same_kind(collection, name, kind, log)
        written = [run.run_id for run in log.committed]
        if written and live.annotations.get(name) != written:
            publish(collection, Console(quiet=True))  # what made the last was killed before it did
        searcher = Searcher.open(collection)
        if written and searcher.manifest.annotations.get(name) != written:
            raise _rolled_back(collection, name, written)
        return cls(collection=collection, name=name, searcher=searcher, runs=log.committed)

    @property
    def by(self) -> str:
        """What made the columns, and how; empty if there are none."""
        return self.runs[-1].model.id if self.runs else ""

    @property
    def segments(self) -> SegmentedIndex:
        return self.searcher.segments

    def _agrees_with(self, schema: pa.Schema) -> bool:
        """Whether the last columns were these."""
        return bool(self.runs) and self.runs[-1].model.fingerprint == _fingerprint(schema)

    @cached_property
    def live(self) -> Positions:
        """The positions of all live rows."""
        return self.segments.live_positions()

    @cached_property
    def _known(self) -> pa.Table:
        """The ids of the live rows, and the columns as the index has them."""
        names = [name for name in self.segments.schema.names if belongs_to(name, self.name)]
        return self.segments.table_at(self.live, names)

    def values(self, schema: pa.Schema) -> pa.Table:
        """The values that the `live` rows have, null unless they are of this schema."""
        agrees = self._agrees_with(schema)
        return conform(self._known if agrees else pa.table({"": pa.nulls(len(self.live))}), schema)

    def put(self, by: str, positions: Positions, columns: pa.Table) -> int:
        """Make `columns` the values of the live rows at `positions`, which ascend, and let no other row have one,
        without publishing them. Returns the number of images whose values have changed.

        The columns are called `name` or `name_…`; a row without any value has none. `by` says what computed them and
        how, for `likeness columns`. If this is killed before its one commit, nothing has changed.
        """
        log, schema, every = annotation_log(self.collection, self.name), columns.schema, self.live
        record = ModelRecord(id=by, revision=None, fingerprint=_fingerprint(schema), dim=0)
        if len(positions) < len(every):
            columns = columns.take(number_array(np.searchsorted(positions, every), ~np.isin(every, positions)))
        before = self.values(schema)
        differs = np.any([_differ(before[name], columns[name]) for name in schema.names], axis=0)
        has = _has_value(columns)
        rows = self.segments.table_at(every[differs & has], ("content_hash",))
        for name in schema.names:
            rows = rows.append_column(name, columns[name].filter(number_array(differs & has)))
        gone = self._gone(has) if self._agrees_with(schema) else []
        if rows.num_rows or gone or self.by != by:
            vectors: Any = embedding_type(0)
            rows = rows.append_column(EMBEDDING, pa.nulls(len(rows), vectors))
            log.check_lease()
            parts = (rows.slice(start, _ROWS) for start in range(0, len(rows), _ROWS))
            log.add_run(SOURCE, record, parts, deletes=gone)
            merge_runs(log)
        return rows.num_rows + len(gone)

    def is_complete(self, by: str, schema: pa.Schema) -> bool:
        """Whether this made the columns, and since then no image is new, changed or gone."""
        has = _has_value(self.values(schema))
        return self.by == by and bool(has.all()) and not self._gone(has)

    def _gone(self, has: npt.NDArray[np.bool_]) -> list[str]:
        """The ids whose newest row in the log is of the last columns, but for those of the live rows of a mask."""
        valued = self._known.select(["image_id"])
        valued = valued if has.all() else valued.filter(number_array(has))
        storage = annotation_log(self.collection, self.name).storage
        catalog = Catalog(storage, [RunRows.of(storage, run) for run in self.runs], live=False)
        last = (str(number) for number, run in enumerate(self.runs) if run.model.agrees_with(self.runs[-1].model))
        newest = f"arg_max(run, seq) IN ({', '.join(last)})"
        catalog.group("gone", "image_id", _UNVALUED, "image_id", having=newest, valued=valued)
        return list(map(str, catalog.table("FROM gone ORDER BY image_id")["image_id"].to_pylist()))


def _rolled_back(collection: Collection, name: str, written: list[str]) -> RolledBackColumnsError:
    """The error for columns that the live version does not have, which names a version that has."""
    having = "VERSION"
    for version in reversed(collection.versions()):
        with suppress(DamagedVersionError):
            if collection.read_version(version).annotations.get(name) == written:
                having = version
                break
    return RolledBackColumnsError(
        f"the last columns of {name} were rolled back, with their index version: make that one live with `likeness "
        f"promote {collection.location} {having}`, or remove them with `likeness columns {collection.location} --drop "
        f"{name}`"
    )


_UNVALUED: Final = """
FROM (SELECT seq, run, image_id FROM written UNION ALL SELECT seq, -1, image_id FROM deleted)
ANTI JOIN valued USING (image_id)
"""  # not of `live_rows`, which would compare all ids


def _fingerprint(schema: pa.Schema) -> str:
    return fingerprint_of(["computed", {field.name: str(field.type) for field in schema}])


def _differ(one: Any, other: Any) -> npt.NDArray[np.bool_]:
    """Where two columns have another value, or one has none."""
    return numbers_of(pc.coalesce(pc.not_equal(one, other), pc.not_equal(pc.is_valid(one), pc.is_valid(other))))


def _has_value(table: pa.Table) -> npt.NDArray[np.bool_]:
    has: npt.NDArray[np.bool_] = np.any([numbers_of(pc.is_valid(column)) for column in table.columns], axis=0)
    return has
