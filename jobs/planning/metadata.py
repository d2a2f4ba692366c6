"""Whether the metadata of listed images is still that of their rows."""

from __future__ import annotations  # pyarrow's types take arguments in its stubs alone

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index.collection.collection import Collection
from index.collection.live_rows import LiveRows
from index.collection.records import RowFile
from index.collection.rows import STATE, conform, metadata_columns
from jobs.sources.listing import Column, together

_COMPARED_ROWS = 2**18
"""Rows whose metadata is held at once."""


def compare_metadata(live: LiveRows, listing: pa.Table) -> tuple[pa.Table, Column]:
    """The `STATE` of rows, and a mask over them: their images are listed, with other metadata.

    Metadata may be captions of any length, so of the rows' no more is held than a part.
    """
    names = live.metadata
    listed = listing.select(metadata_columns(listing.schema))
    schema = together(listed.schema, pa.schema([live.schema_of(names).field(name) for name in names]))
    # In one array each, to take from.
    there = {field.name: conform(listing, pa.schema([field]))[field.name].combine_chunks() for field in schema}
    states, masks = [live.schema_of(STATE).empty_table()], [np.zeros(0, bool)]
    for rows in live.parts([*STATE, *names], _COMPARED_ROWS):
        states.append(rows.select(STATE))
        differs = np.zeros(rows.num_rows, bool)
        if there:
            at = pc.index_in(rows["image_id"], listing["image_id"])
            for field in schema:
                here = conform(rows, pa.schema([field]))[field.name]
                differs |= _differ(there[field.name].take(at), here)
            differs &= pc.is_valid(at).to_numpy()
        masks.append(differs)
    return pa.concat_tables(states), pa.array(np.concatenate(masks))


def _differ(one: Any, other: Any) -> npt.NDArray[np.bool_]:
    """A mask: what is nowhere is the same."""
    neither = pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True))
    same: Column = pc.or_(neither, pc.equal(one, other).fill_null(False))
    mask: npt.NDArray[np.bool_] = pc.invert(same).to_numpy(zero_copy_only=False)
    return mask


def still_listed(collection: Collection, listing: pa.Table, files: Sequence[RowFile]) -> list[RowFile]:
    """The files of an unfinished run whose images are all still listed, and so: a row would outlive its image. The
    other rows of a file that is left out are found again by `jobs.planning.reuse`.
    """
    rows, relabelled = compare_metadata(LiveRows.of_files(collection.storage, files), listing)
    gone = pc.invert(pc.is_in(rows["image_id"], listing["image_id"]))
    wrong = np.cumsum([0, *pc.or_(gone, relabelled).to_numpy()])
    ends = np.cumsum([file.rows for file in files])
    return [file for file, end in zip(files, ends, strict=True) if wrong[end] == wrong[end - file.rows]]
