"""Decides which images are embedded: those that match an expression of the filter language (`--keep`).

Its conditions, the parts that must all hold, are judged one by one, as soon as everything that they name is known: some
from the listing, before an image is fetched, the rest once it is decoded. The row of an unchanged image has its size,
hash, width, height and format, so conditions on these need no file. Measures of the pixels are not stored: their
outcome is taken from the row if its run had the same expression; otherwise the file is read again.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedder.images.exif import EXIF_COLUMNS
from embedder.images.quality import MEASURES
from index.collection.records.run_manifest import RunSettings
from index.collection.rows import FILTERED, in_files, metadata_columns
from index.errors import FilterError
from index.filters.filter import Filter
from jobs.errors import UsageError
from jobs.sources.listing import FILE_FACTS, LISTING, Column, refuse

Mask = npt.NDArray[np.bool_]

_FACTS: Final = ("size", *FILE_FACTS.names)
"""Columns that the listing may lack and that reading the file fills."""
MEASURE_TYPES: Final = {name: pa.bool_() if name == "near_uniform" else pa.float64() for name in MEASURES}
EXIF_TYPES: Final[dict[str, pa.DataType]] = {
    name: pa.type_for_alias(kind)  # type: ignore[call-overload]  # takes any name
    for name, kind in EXIF_COLUMNS.items()
}


@dataclass(frozen=True, kw_only=True)
class ImageFilter:
    """`settings` are those of a run: `keep` is the expression; with `exif`, rows also get the columns of `EXIF_TYPES`.

    `measures` are the measures of the pixels that the expression names. Without `conditions`, nothing is judged.
    """

    settings: RunSettings = field(default_factory=RunSettings)
    conditions: tuple[Filter, ...] = ()
    measures: tuple[str, ...] = ()

    @classmethod
    def parse(cls, expression: Mapping[str, Any], listing: pa.Schema) -> ImageFilter:
        """Parse an expression for a listing with this schema, whose columns hide measures of the same name.

        Raises UsageError for an invalid expression.
        """
        own = pa.schema([listing.field(name) for name in metadata_columns(listing)])
        measures = {name: kind for name, kind in MEASURE_TYPES.items() if name not in own.names}
        facts = {**{field.name: field.type for field in (*LISTING, *FILE_FACTS)}, **measures}
        schema = in_files(pa.schema([*map(pa.field, facts, facts.values()), *own]))
        try:
            keep = Filter.parse(expression, schema)
        except FilterError as error:
            raise UsageError(f"--keep: {error}") from error
        measured = tuple(name for name in measures if name in keep.columns)
        conditions = tuple(Filter.parse(each, schema) for each in _conditions(keep.expression))
        return cls(settings=RunSettings(keep=keep.key), conditions=conditions, measures=measured)

    def judge(self, images: pa.Table) -> tuple[Column, Mask]:
        """The number of the condition that leaves out each image, null if none does so far; and a mask: all conditions
        are judged.

        A condition is judged once every fact and measure that it names is present in `images` and not null.
        """
        failed, judged = np.full(images.num_rows, -1), np.ones(images.num_rows, bool)
        for number, condition in enumerate(self.conditions):
            known = np.ones(images.num_rows, bool)
            for name in condition.columns.intersection([*_FACTS, *self.measures]):
                known &= images[name].is_valid().to_numpy() if name in images.column_names else False
            judged &= known
            if known.any():
                holds = np.concatenate([condition.mask(batch) for batch in images.to_batches()])
                failed[known & ~holds & (failed < 0)] = number
        return pa.chunked_array([pa.array(failed, pa.int16(), mask=failed < 0)]), judged

    def leave_out(self, table: pa.Table, failed: Column) -> pa.Table:
        """`table` with the columns of `REJECT_COLUMNS`, which mark the images that a condition has left out."""
        texts = [f"--keep leaves it out: {json.dumps(each.expression)}" for each in self.conditions]
        numbers: list[Any] = failed.to_pylist()
        left_out = ((row, texts[number]) for row, number in enumerate(numbers) if number is not None)
        return refuse(table, {row: ("filter", FILTERED, text, False) for row, text in left_out})

    def exif_columns(self, names: Sequence[str]) -> list[str]:
        """Those of these columns that hold EXIF, if it is read."""
        return [name for name in EXIF_TYPES if self.settings.exif and name in names]

    def can_reuse(self, run: RunSettings) -> bool:
        """Whether this filter can be judged by the rows of a run, even if the metadata has changed since."""
        others = set(self.settings.differing(run))
        if others - {"keep", "exif"} or run.exif < self.settings.exif:
            return False
        if not self.measures:
            return True
        measures, by_file = {*self.measures}, {*_FACTS, *self.measures}
        mixed = any(each.columns & measures and each.columns - by_file for each in self.conditions)
        return "keep" not in others and not mixed


def _conditions(expression: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The conditions that must all hold: the members of the expression, and those within `$and`."""
    for name, operand in expression.items():
        if name == "$and":
            for each in operand:
                yield from _conditions(each)
        else:
            yield {name: operand}


EVERY_IMAGE: Final = ImageFilter()
