from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from embedder.errors import ModelError
from jobs.embedding.embed_rows import embed_rows
from tests.support.fake_embedder import FakeEmbedder

SIDE = 8
FAKE = FakeEmbedder(side=SIDE, dim=4)


def pictures(count: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


def batch(crops: Sequence[NDArray[np.uint8] | None], side: int = SIDE) -> pa.Table:
    cells = [None if crop is None else crop.tobytes() for crop in crops]
    ids = [f"id-{row}" for row in range(len(cells))]
    return pa.table({"image_id": ids, "pixels": pa.array(cells, pa.binary(side * side * 3)), "label": ids[::-1]})


@pytest.mark.parametrize("rejected", [{0, 4, 5, 8}, set(), set(range(9))], ids=["some", "none", "all"])
def test_each_row_gets_its_own_vector_and_rejected_rows_none(rejected: set[int]) -> None:
    crops = pictures(9)
    table = batch([None if row in rejected else crops[row] for row in range(9)])
    embedded = embed_rows(table, FAKE)
    assert embedded.schema.field("embedding").type == pa.list_(pa.float32(), 4)
    assert embedded.select(["image_id", "label"]) == table.select(["image_id", "label"])
    vectors = FAKE.embed_images(crops).tolist()
    expected = [None if row in rejected else vectors[row] for row in range(9)]
    assert embedded["embedding"].to_pylist() == expected
    # Parts of a table share its memory.
    assert embed_rows(table.slice(3, 4), FAKE)["embedding"].to_pylist() == expected[3:7]
    parts = pa.concat_tables([table.slice(5), table.slice(1, 2), table.slice(0, 0)])
    assert embed_rows(parts, FAKE)["embedding"].to_pylist() == [*expected[5:], *expected[1:3]]
    assert embed_rows(table.slice(0, 0), FAKE)["embedding"].to_pylist() == []


def test_pictures_of_another_size_are_refused_with_both_sizes() -> None:
    with pytest.raises(ModelError, match=r"expected pixels of 192 bytes, 8 × 8 × 3, got fixed_size_binary\[48\]"):
        embed_rows(batch([np.zeros((4, 4, 3), np.uint8)], side=4), FAKE)
