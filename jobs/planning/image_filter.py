"""Which images are embedded: those that an expression of the filter language (`--keep`) holds for.

Its conditions, the parts that must all hold, are judged one by one, as soon as all is known that they name: what the
listing says before an image is fetched, the rest once it is decoded. The row of an unchanged image still knows its
size, hash, width, height and format, so these need no file. Measures of the pixels are in no row: a row is believed in
these if its run had the same expression, else the file is read again.
"""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedder.images.exif import EXIF_COLUMNS
from embedder.images.quality import MEASURES
from index.collection.records import RunStart
from index.collection.rows import FILTERED, TEXT, in_files, metadata_columns
from index.errors import FilterError
from index.filters.filter import Filter
from jobs.errors import UsageError
from jobs.sources.listing import KNOWN, LISTING, Column, refuse

Mask = npt.NDArray[np.bool_]

_FACTS: Final = ("size", *KNOWN.names)
"""What the listing may not know, and the file says."""
MEASURE_TYPES: Final = {name: pa.bool_() if name == "near_uniform" else pa.float64() for name in MEASURES}
EXIF_TYPES: Final[dict[str, pa.DataType]] = dict(
    zip(EXIF_COLUMNS, (pa.timestamp("us"), pa.string(), pa.float64(), pa.float64()), strict=True)
)  # the time is by the camera's clock, in no time zone


@dataclass(frozen=True, kw_only=True)
class ImageFilter:
    """`key` is the expression as canonical JSON, which runs record; None: every image is embedded.

    `measures` are the measures of the pixels that it names. With a key alone nothing is judged. `exif`: the rows of
    images get `EXIF_TYPES` as well.
    """

    key: str | None = None
    expression: Mapping[str, Any] | None = None
    schema: pa.Schema | None = None
    measures: tuple[str, ...] = ()
    exif: bool = False

    @classmethod
    def parse(cls, expression: Mapping[str, Any], listing: pa.Schema) -> ImageFilter:
        """An expression on the images of a listing, whose own columns hide measures of the same name.

        UsageError says what is wrong with it.
        """
        own = pa.schema([listing.field(name) for name in metadata_columns(listing)])
        measures = {name: kind for name, kind in MEASURE_TYPES.items() if name not in own.names}
        facts = {**{field.name: field.type for field in (*LISTING, *KNOWN)}, **measures}
        schema = pa.schema([*map(pa.field, facts, facts.values()), *own])
        try:
            key = Filter.parse(expression, in_files(schema)).key
        except FilterError as error:
            raise UsageError(f"--keep: {error}") from error
        named = _names(expression)
        return cls(
            key=key, expression=expression, schema=schema, measures=tuple(name for name in measures if name in named)
        )

    def judge(self, images: pa.Table) -> tuple[Column, Mask]:
        """Why images are left out, a text, null if nothing known so far says so; and a mask: all conditions are judged.

        A condition is judged if no fact and no measure that it names is null or missing in `images`.
        """
        conditions = list(_conditions(self.expression or {}))
        failed, judged = np.full(images.num_rows, -1), np.ones(images.num_rows, bool)
        for number, condition in enumerate(conditions):
            named = _names(condition)
            known = np.ones(images.num_rows, bool)
            for name in named.intersection([*_FACTS, *self.measures]):
                there = name in images.column_names
                known &= images[name].is_valid().to_numpy() if there else np.zeros(images.num_rows, bool)
            judged &= known
            if self.schema is None or not known.any():
                continue
            part = images.select([name for name in images.column_names if name in named or name == "image_id"])
            test = Filter.parse(condition, self.schema)
            holds = np.concatenate([test.mask(batch) for batch in part.to_batches()])
            failed[known & ~holds & (failed < 0)] = number
        texts = pa.array([f"--keep leaves it out: {json.dumps(condition)}" for condition in conditions], TEXT)
        return texts.take(pa.array(failed, mask=failed < 0)), judged

    def can_reuse(self, run: RunStart) -> bool:
        """Whether the rows of a run say all that this filter needs, of listed images that now have other metadata as
        well.
        """
        if self.exif and not run.exif:
            return False
        if not self.measures:
            return True
        apart = {*_FACTS, *self.measures}
        mixed = any(
            named.intersection(self.measures) and not named <= apart
            for named in map(_names, _conditions(self.expression or {}))
        )
        return run.keep == self.key and not mixed


EVERY_IMAGE: Final = ImageFilter()


def leave_out(table: pa.Table, why: Column) -> pa.Table:
    """`table` with the columns `REJECT_COLUMNS`, by which images with a reason in `why` are left out."""
    reasons: list[Any] = why.to_pylist()
    return refuse(table, {row: ("filter", FILTERED, text, False) for row, text in enumerate(reasons) if text})


def _conditions(expression: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What must all hold."""
    for name, operand in expression.items():
        if name == "$and":
            for part in operand:
                yield from _conditions(part)
        else:
            yield {name: operand}


def _names(expression: Mapping[str, Any]) -> set[str]:
    """The columns that a checked expression names."""
    names = set[str]()
    for name, operand in expression.items():
        if name in ("$and", "$or"):
            names.update(*map(_names, operand))
        elif name == "$not":
            names |= _names(operand)
        else:
            names.add(name)
    return names
