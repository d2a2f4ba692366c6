"""The rows of images that need no model."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from index.collection.catalog.catalog import Catalog
from index.storage import Storage
from jobs.planning import known_rows
from jobs.planning.image_filter import EVERY_IMAGE
from jobs.sources.listing import COPIED, listing_table, with_columns
from jobs.sources.stored_listing import Listing


def test_copies_come_in_the_order_of_the_rows_that_they_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(known_rows, "_copied_rows", lambda listed, *_: listed)
    seqs = np.random.default_rng(1).permutation(140_000)  # more than are put in order at once
    seqs[:70_000].sort()
    names = seqs.astype(str).tolist()
    images = listing_table({"image_id": names, "uri": names}, {})
    copies, nothing = Listing.of([with_columns(images, {COPIED: pa.array(seqs)})]), Storage.open(str(tmp_path))
    blocks = [*known_rows.copied_blocks(copies, Catalog(nothing, [], live=False), EVERY_IMAGE)]
    copied = pa.concat_tables(blocks)
    assert copied[COPIED].to_pylist() == list(range(140_000))
    assert copied["image_id"].to_pylist() == list(map(str, range(140_000)))
    assert max(map(len, blocks)) == known_rows.BLOCK
